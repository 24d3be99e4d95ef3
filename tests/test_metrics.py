"""Rows of numbers, by hand; excluded rollouts enter no mean (C7)."""

from __future__ import annotations

import pytest

from turngrad.calibration import advice, report
from turngrad.compare import compare
from turngrad.config import TrainConfig
from turngrad.costs import price_of_row
from turngrad.display import sparkline
from turngrad.episodes import BadCall, Break, Episode, Failure, StopReason, ToolCall, Turn, logprob_array, token_array
from turngrad.errors import UserError
from turngrad.metrics import by_category, evaluation_metrics, prompt_tokens, rollout_metrics
from turngrad.transcript import printable


def turn(context: int, output: int, *calls: ToolCall, opens: bool = False) -> Turn:
    return Turn(
        token_array([1] * context),
        token_array([2] * output),
        logprob_array([-0.5] * output),
        "stop",
        segment_break=Break.HISTORY_REWRITE if opens else None,
        tool_calls=calls,
    )


def episode(reward: float | None, *turns: Turn, failure: Failure | None = None, attempt: int = 0) -> Episode:
    stop = StopReason.INFRASTRUCTURE if failure else StopReason.DONE
    return Episode("task_1", "g", attempt, turns or (turn(3, 2),), reward, stop, failure=failure)


def test_means_are_over_sound_episodes_and_spread_is_the_mean_of_sample_deviations() -> None:
    groups = [
        [episode(0.0), episode(1.0), episode(0.0, failure=Failure.SAMPLER)],
        [episode(0.5), episode(0.5)],
    ]
    row = rollout_metrics(groups)
    assert row["reward"] == pytest.approx(0.5)
    assert row["reward_std_within_group"] == pytest.approx((0.5**0.5 + 0.0) / 2)
    assert (row["rollouts"], row["valid_rollouts"], row["groups_with_spread"], row["groups"]) == (5, 4, 1, 2)
    assert row["solved"] == pytest.approx(0.25)
    assert row["stop_done"] == 4
    assert "stop_infrastructure" not in row


def test_rates_of_calls_and_turns() -> None:
    good = ToolCall("1", "t", {}, "", "ok")
    bad = ToolCall("2", None, None, "x", "Error", bad=BadCall.UNPARSABLE)
    failed = ToolCall("3", "t", {}, "", "Error", is_error=True)
    row = rollout_metrics([[episode(1.0, turn(3, 2, good, bad), turn(1, 4, failed)), episode(0.0)]])
    assert row["tool_calls_per_episode"] == 1.5
    assert row["turns_per_episode"] == 1.5
    assert row["bad_call_rate"] == pytest.approx(1 / 3)
    assert row["tool_error_rate"] == pytest.approx(1 / 3)
    assert row["sampled_tokens"] == 8


def test_prompt_tokens_count_every_turns_whole_prompt() -> None:
    # Prompts: 10; 10 + 2 + 3 = 15; a new segment of 20.
    assert prompt_tokens(episode(0.0, turn(10, 2), turn(3, 4), turn(20, 1, opens=True))) == 10 + 15 + 20


def test_without_a_sound_episode_means_are_none_not_zero() -> None:
    row = rollout_metrics([[episode(0.0, failure=Failure.GRADER)]])
    assert row["reward"] is None
    assert row["reward_std_within_group"] is None


def test_an_evaluation_averages_over_tasks_first_and_counts_those_left_out() -> None:
    row = evaluation_metrics([[episode(1.0), episode(0.0)], [episode(1.0)], [episode(None, failure=Failure.TIMEOUT)]])
    assert row["reward"] == pytest.approx(0.75)
    half = 1.96 * (0.125**0.5) / 2**0.5
    assert row["reward_ci95"] == pytest.approx([0.75 - half, 0.75 + half])
    # pass^2 is over the one task with two sound attempts, of which one passes.
    assert (row["pass_at_1"], row["k"], row["pass_hat_k"]) == (pytest.approx(0.75), 2, pytest.approx(0.0))
    assert (row["tasks"], row["tasks_left_out"], row["samples"]) == (2, 1, 3)


def test_categories_are_the_ids_without_their_numbers() -> None:
    groups = {"multi_turn_base_3": [episode(1.0)], "multi_turn_base_12": [episode(0.0)], "multi_turn_miss_func_3": [episode(1.0)]}
    found = by_category(groups)
    assert {kind: figures["reward"] for kind, figures in found.items()} == {"multi_turn_base": 0.5, "multi_turn_miss_func": 1.0}


def test_a_comparison_is_paired_by_task() -> None:
    found = compare({"a": 0.0, "b": 0.5, "c": 1.0}, {"a": 0.5, "b": 1.0, "d": 0.0})
    assert (found.tasks, found.first, found.second, found.difference) == (2, 0.25, 0.75, 0.5)
    assert found.interval == (0.5, 0.5)
    with pytest.raises(UserError, match="no task in common"):
        compare({"a": 0.0}, {"b": 0.0})


def _figures(**changes: float) -> dict[str, float | None]:
    base: dict[str, float | None] = {
        **rollout_metrics([[episode(0.0), episode(1.0)]]),
        "trained_tokens": 1000,
    }
    return {**base, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "nothing stands in the way"),
        ({"reward": 1.0, "groups_with_spread": 0}, "almost everything is right"),
        ({"reward": 0.0, "groups_with_spread": 0}, "everything is wrong"),
        ({"reward": 0.4, "groups_with_spread": 0}, "no group has two rewards"),
        ({"stop_max_tokens": 2}, "hit a token limit"),
        ({"bad_call_rate": 0.5}, "malformed or refused"),
        ({"valid_rollouts": 0}, "every rollout failed"),
        ({"tool_calls_per_episode": 0.0}, "no tool was called"),
    ],
)
def test_calibration_gives_the_advice_that_fits(changes: dict[str, float], words: str) -> None:
    config = TrainConfig(backend="local").resolve()
    figures = _figures(**{"tool_calls_per_episode": 2.0, **changes})
    assert words in " ".join(advice(config, figures, has_tools=True))


def test_calibration_estimates_tokens_and_money_by_hand() -> None:
    config = TrainConfig(
        backend="local",
        steps=10,
        tasks_per_step=4,
        group_size=5,
        eval_tasks=10,
        eval_samples=1,
        price_sampled=2.0,
        price_trained=1.0,
    ).resolve()
    figures = _figures(rollouts=2, sampled_tokens=200, prompt_tokens=2000, trained_tokens=1000)
    text = "\n".join(report(config, figures, has_tools=False))
    # 200 training and 40 evaluation rollouts: 100 sampled, 1000 prompt tokens each; 500 trained for training ones.
    assert "0.02 M sampled, 0.24 M prefill, 0.10 M trained" in text
    assert "estimated cost 0.15 (without --price-prefill)" in text


def test_a_sparkline_spans_lowest_to_highest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([]) == ""


def test_control_characters_of_an_episode_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[31mb\u202ec\nd") == "a\\u001b[31mb\\u202ec\nd"


def test_the_price_of_a_row_counts_what_it_sampled_read_and_trained() -> None:
    row = {"sampled_tokens": 3e6, "prompt_tokens": 10e6, "tokens/trained": 1e6, "tokens/masked": 4e6}
    assert price_of_row(TrainConfig(), row) is None
    config = TrainConfig(price_sampled=2.0, price_prefill=0.5, price_trained=3.0)
    assert price_of_row(config, row) == 3 * 2.0 + 10 * 0.5 + 5 * 3.0
    # The reference of a KL penalty reads the 5 M tokens once more.
    assert price_of_row(config.model_copy(update={"kl_coef": 0.1}), row) == 3 * 2.0 + 15 * 0.5 + 5 * 3.0
    assert price_of_row(TrainConfig(price_trained=3.0), {"sampled_tokens": 1e6, "prompt_tokens": 1e6}) == 0.0
