"""What trained, by hand, and as the batch builder has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.runs import hostile, lost, play
from tests.test_batch import episode, turn
from turngrad.advantages import group_advantages
from turngrad.batch import build_batch
from turngrad.episodes import Break
from turngrad.report.training import trainings

CONFIG = {"advantage": "group-mean", "advantage_clip": None, "max_seq_len": 12}


def test_each_turn_counts_its_trained_tokens_up_to_the_length_limit() -> None:
    first = turn([1, 2], [3, 4], [-0.1, -0.2])
    silent = turn([5], [6], [], untrainable="no logprobs")
    # Its segment begins anew: ten tokens of context leave two of its three outputs below twelve.
    long = turn(list(range(10)), [7, 8, 9], [-0.1] * 3, opens=Break.HISTORY_REWRITE)
    better = replace(episode(first, silent, long), reward=1.0, attempt=0)
    worse = replace(better, reward=0.0, attempt=1)
    found = trainings([better, worse], CONFIG, trains=True)
    assert [training.trained for training in found] == [(2, 0, 2), (2, 0, 2)]
    assert [training.advantage for training in found] == [0.5, -0.5]
    assert found[0].why_not is None


def test_the_counts_are_those_of_the_batch_that_the_run_sent() -> None:
    group = [play("a", 0, 1.0), play("a", 1, 0.0), hostile("a", 2, 1), lost("a", 3, 1)]
    config = {"advantage": "group-zscore", "max_seq_len": 2048}
    found = trainings(group, config, trains=True)
    batch = build_batch([(group, group_advantages(group, "group-zscore"))], normalize="token", max_seq_len=2048)
    sent = [sum(s.trained for s in batch.sent if batch.episodes[s.episode] is member) for member in group]
    assert [sum(training.trained) for training in found] == sent
    assert sent[0] > 0


@pytest.mark.parametrize(
    ("rewards", "why"),
    [((1.0, 1.0), "earned the same"), ((1.0,), "no second sound attempt")],
)
def test_a_group_without_a_lesson_says_why(rewards: tuple[float, ...], why: str) -> None:
    group = [play("a", attempt, reward) for attempt, reward in enumerate(rewards)]
    for training in trainings(group, CONFIG, trains=True):
        assert training.advantage is None
        assert why in (training.why_not or "")
        assert not any(training.trained)


def test_a_lost_episode_names_its_failure() -> None:
    found = trainings([play("a", 0, 1.0), play("a", 1, 0.0), lost("a", 2, 1)], CONFIG, trains=True)
    assert "tool_server" in (found[2].why_not or "")


def test_an_evaluation_trains_nothing() -> None:
    found = trainings([play("a", 0, 1.0), play("a", 1, 0.0)], CONFIG, trains=False)
    assert [(training.advantage, any(training.trained)) for training in found] == [(None, False)] * 2
