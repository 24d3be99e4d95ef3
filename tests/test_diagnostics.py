"""Diagnostics: every figure by hand on small batches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.test_batch import TWO_TURNS, batch_of, episode, turn
from turngrad.advantages import GroupAdvantages, NoTraining
from turngrad.batch import Batch, build_batch
from turngrad.diagnostics import batch_metrics, comparison_metrics, unmerged_tokens
from turngrad.episodes import Break, Failure, StopReason

LOG2 = math.log(2.0)


def compare(batch: Batch, *logprobs: list[float] | None, loss_fn: str = "ppo", first: int | None = None) -> dict[str, float]:
    values = [None if found is None else np.array(found, dtype=np.float32) for found in logprobs]
    return comparison_metrics([batch], [values], values[:first], loss_fn=loss_fn, clip_low=0.8, clip_high=1.2)


class TestComparison:
    def test_ratio_and_gap_are_taken_over_trained_tokens_only(self) -> None:
        # Sampler -0.25, -0.5 and -0.125 under the mask; the trainer's values elsewhere do not matter.
        metrics = compare(batch_of(TWO_TURNS), [9, 9, -0.25, -0.5 + LOG2, 9, 9, -0.125 - 2 * LOG2])
        assert metrics == pytest.approx(
            {
                "gap/mean": 3 * LOG2 / 3,
                "gap/max": 2 * LOG2,
                "gap/tokens": 3,
                "ratio/mean": (1 + 2 + 0.25) / 3,
                "ratio/max": 2.0,
                "ratio/min": 0.25,
                "ratio/k3": ((2 - 1 - LOG2) + (0.25 - 1 + 2 * LOG2)) / 3,
                "ratio/clip_fraction": 1 / 3,
            },
            rel=1e-6,
        )

    def test_turns_with_advantage_zero_do_not_count_whatever_the_service_returns_for_them(self) -> None:
        played = replace(TWO_TURNS, turns=(TWO_TURNS.turns[0], replace(TWO_TURNS.turns[1], user_turn=1)))
        group = GroupAdvantages((1.0,), None, 0.0, 1.0, by_user_turn=((0.0, 2.0),))
        batch = build_batch([((played,), group)], normalize="none")
        metrics = compare(batch, [0, 0, 0, 0, 0, 0, -0.125])
        assert (metrics["gap/max"], metrics["gap/tokens"], metrics["ratio/max"]) == (0.0, 1, 1.0)

    @pytest.mark.parametrize(
        ("loss_fn", "advantage", "fraction"),
        [("ppo", 1.0, 1 / 3), ("ppo", -1.0, 1 / 3), ("cispo", 1.0, 2 / 3), ("cispo", -1.0, 2 / 3)],
    )
    def test_ppo_clips_in_the_direction_of_the_advantage_and_cispo_in_both(
        self, loss_fn: str, advantage: float, fraction: float
    ) -> None:
        batch = batch_of(TWO_TURNS, advantages=[advantage])
        metrics = compare(batch, [0, 0, -0.25, -0.5 + LOG2, 0, 0, -0.125 - LOG2], loss_fn=loss_fn)
        assert metrics["ratio/clip_fraction"] == pytest.approx(fraction)

    def test_importance_sampling_has_no_clip_fraction(self) -> None:
        assert "ratio/clip_fraction" not in compare(
            batch_of(TWO_TURNS), [0, 0, -0.25, -0.5, 0, 0, -0.125], loss_fn="importance_sampling"
        )

    def test_older_samples_count_in_the_ratio_and_not_in_the_gap(self) -> None:
        old = replace(TWO_TURNS, lag=1)
        metrics = compare(batch_of(TWO_TURNS, old), [0, 0, -0.25, -0.5, 0, 0, -0.125], [0, 0, 5, 5, 0, 0, 5])
        assert (metrics["gap/max"], metrics["gap/tokens"]) == (0.0, 3)
        assert metrics["ratio/max"] > 100

    def test_segments_without_logprobs_are_left_out(self) -> None:
        assert compare(batch_of(TWO_TURNS), None) == {}
        assert compare(batch_of(TWO_TURNS, TWO_TURNS), None, [0, 0, -0.25, -0.5, 0, 0, -0.125])["gap/tokens"] == 3

    def test_a_broken_ratio_stays_finite(self) -> None:
        metrics = compare(batch_of(TWO_TURNS), [0, 0, 5000, 0, 0, 0, 0])
        assert all(map(math.isfinite, metrics.values()))


def test_unmerged_tokens_counts_each_trained_turn_with_its_whole_prompt() -> None:
    rewritten = turn([1, 9], [10, 11], opens=Break.HISTORY_REWRITE)
    silent = turn([12], [13], [], untrainable="no logprobs")
    # 3 + 2 - 1, then 5 + 2 + 1 - 1, then 2 + 2 - 1, and nothing for the turn that may not train.
    assert unmerged_tokens(episode(*TWO_TURNS.turns, rewritten, silent)) == 4 + 7 + 3


class TestBatchMetrics:
    def metrics(self) -> dict[str, float]:
        winner = replace(TWO_TURNS, task_id="a")
        loser = replace(
            episode(turn([1], [2], [-1.0]), turn([3, 4], [5], [-2.0], opens=Break.LENGTH)),
            task_id="b",
            stop_reason=StopReason.MAX_TURNS,
        )
        failed = replace(TWO_TURNS, failure=Failure.TOOL_SERVER)
        groups = [
            ([winner, loser, failed], GroupAdvantages((2.0, -1.0, None), None, 0.0, 1.0, clipped=1)),
            ([winner], GroupAdvantages((0.0,), NoTraining.TOO_SMALL, 0.0, math.nan)),
        ]
        return batch_metrics(groups, build_batch(groups, normalize="token", max_seq_len=8))

    def test_groups_and_episodes_are_counted_by_class(self) -> None:
        metrics = self.metrics()
        expected = {
            "groups/kept": 1,
            "groups/dropped_too_small": 1,
            "episodes/excluded": 1,
            "episodes/excluded_tool_server": 1,
            "episodes/clipped_advantages": 1,
            "episodes/in_batch": 2,
            "breaks/length": 1,
            "breaks/history_rewrite": 0,
        }
        assert {name: metrics[name] for name in expected} == expected

    def test_tokens_are_those_sent(self) -> None:
        metrics = self.metrics()
        # Seven positions with three trained, one with one, two with one; entropy from the five sampled logprobs.
        assert (metrics["tokens/trained"], metrics["tokens/masked"], metrics["tokens/cut"]) == (5, 5, 0)
        assert (metrics["segments/sent"], metrics["segments/per_episode"]) == (3, 1.5)
        assert metrics["tokens/merge_factor"] == pytest.approx((4 + 7 + 1 + 2) / 10)
        assert metrics["entropy/sampled"] == pytest.approx((0.25 + 0.5 + 0.125 + 1 + 2) / 5)

    def test_shares_of_the_gradient_are_of_the_sum_of_absolute_advantages(self) -> None:
        metrics = self.metrics()
        expected = {
            "gradient/better": 6 / 8,
            "gradient/worse": 2 / 8,
            "gradient/task/a": 6 / 8,
            "gradient/task/b": 2 / 8,
            "gradient/largest_task": 6 / 8,
            "gradient/stop_done": 6 / 8,
            "gradient/stop_max_turns": 2 / 8,
        }
        assert {name: value for name, value in metrics.items() if name.startswith("gradient/")} == pytest.approx(expected)

    def test_a_batch_with_nothing_to_train_has_counts_and_no_shares(self) -> None:
        metrics = batch_metrics([], build_batch([], normalize="token"))
        assert metrics["tokens/trained"] == 0
        assert not any(name.startswith("gradient/") for name in metrics)
