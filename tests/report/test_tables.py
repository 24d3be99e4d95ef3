"""The verdict on a task, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.runs import lost, play
from turngrad.report.folder import EpisodeFile
from turngrad.report.tables import TaskLine, Visit, task_lines, visits


def line(*rewards: tuple[float, ...]) -> TaskLine:
    files = [EpisodeFile(step, "", Path(f"step-{step:04d}.jsonl.zst")) for step in range(len(rewards))]
    return TaskLine("task", "training", tuple(Visit(file, found, 0) for file, found in zip(files, rewards, strict=True)))


@pytest.mark.parametrize(
    ("verdict", "rewards"),
    [
        ("always right", [(1.0, 1.0), (1.0,)]),
        ("never moves", [(0.2, 0.2), (0.2,)]),
        ("lost", [(), ()]),
        ("one visit", [(0.0, 1.0), ()]),
        # 0.75 against 0.25 with variance 1/4 over four attempts each: two standard errors are 0.71.
        ("no clear trend", [(0.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0, 0.0)]),
        # The same over sixteen: variance 1/5 over 16 each, two standard errors are 0.32.
        ("rises", [(0.0, 0.0, 0.0, 1.0) * 4, (1.0, 1.0, 1.0, 0.0) * 4]),
        ("falls", [(1.0, 1.0, 1.0, 0.0) * 4, (0.0, 0.0, 0.0, 1.0) * 4]),
    ],
)
def test_the_verdict_needs_a_difference_beyond_two_standard_errors(verdict: str, rewards: list[tuple[float, ...]]) -> None:
    assert line(*rewards).verdict == verdict


def test_means_are_of_each_visits_sound_attempts() -> None:
    assert line((0.0, 1.0), (), (1.0,)).means == [0.5, None, 1.0]


def test_lost_attempts_are_counted_apart_and_tasks_sort_by_number() -> None:
    file = EpisodeFile(1, "", Path("step-0001.jsonl.zst"))
    held = EpisodeFile(1, "held_out", Path("eval-0001-held_out.jsonl.zst"))
    first = visits(file, [play("base_10", 0, 1.0), lost("base_10", 1, 1), play("base_9", 0, 0.0)])
    lines = task_lines([first, visits(held, [play("base_1", 0, 0.0)])])
    assert [(each.task_id, each.kind, each.attempts, each.visits[0].lost) for each in lines] == [
        ("base_9", "training", 1, 0),
        ("base_10", "training", 1, 1),
        ("base_1", "evaluation, held-out", 1, 0),
    ]
