"""A run that is killed, however often, is the run that never was (C11), and nothing of it is lost or left behind (C12).

Tasks, steps, seeds, prompts and the optimizer's steps are the uninterrupted run's; given its samples, so are the weights and
Adam's moments, bit for bit. Lost: at most the step that was under way.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.drill.replay import Key, Recorder, recorder
from tests.processes import SMALL, at_service, finished, kill_9, left_nothing, parses, rows, start, starter_engine, steps
from turngrad.presets import STARTER_POOL
from turngrad.runlog import read_episodes

STEPS = 6
SERVICE = {"FIREWORKS_API_KEY": "drill-of-the-trainer"}
LEARNABLE = ["--taskset", "bfcl-multi-turn", "--train-ids", str(STARTER_POOL)]
"""Tasks at which the starter's attempts differ, so that nearly every step updates."""


@dataclass
class Whole:
    """The run that was never stopped: what it asked for and came to, and the recorder that can replay it."""

    recorder: Recorder
    flags: list[str]
    states: Path
    tasks: list[list[str]]
    updated: list[bool]
    asked: set[Key]
    state: tuple[bytes, bytes, int]
    seconds: float

    def same(self, folder: Path) -> None:
        """Assert that the run in `folder` is this one."""
        assert [row["tasks"] for row in rows(folder)] == self.tasks
        assert [row["step"] for row in rows(folder)] == list(range(1, STEPS + 1))
        assert [row["updated"] for row in rows(folder)] == self.updated
        assert self.recorder.asked == self.asked
        assert self.recorder.misses == 0
        assert _state(self.states, folder) == self.state


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("whole")
    with starter_engine(folder) as url, recorder(url) as made:
        flags = [*at_service(made.url), *SMALL, *LEARNABLE, "--steps", str(STEPS)]
        started = time.monotonic()
        finished(folder / "run", *flags, small=False, environment=SERVICE)
        seconds = time.monotonic() - started
        made.replay = True
        found = rows(folder / "run")
        assert sum(row["updated"] for row in found) >= 4, "weights that never change compare as equal"
        state = _state(folder / "states", folder / "run")
        yield Whole(
            made,
            flags,
            folder / "states",
            [row["tasks"] for row in found],
            [row["updated"] for row in found],
            set(made.asked),
            state,
            seconds,
        )


def test_a_run_killed_after_its_third_step_and_at_two_random_moments_is_the_run_that_was_never_stopped(
    whole: Whole, tmp_path: Path
) -> None:
    whole.recorder.asked.clear()
    moments = random.Random(str(time.time_ns()))
    folder = tmp_path / "run"
    run = start(folder, *whole.flags, small=False, environment=SERVICE)
    run.until_rows(3)
    kill_9(run)
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "step"')
    for _ in range(2):
        run = start(folder, resume=True, environment=SERVICE)
        time.sleep(moments.uniform(0, whole.seconds))
        kill_9(run)
    finished(folder, resume=True, environment=SERVICE)
    parses(folder)
    whole.same(folder)
    again = finished(folder, resume=True, environment=SERVICE)
    assert f"already has its {STEPS} steps" in again.output
    whole.same(folder)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_run_killed_at_five_random_moments_is_the_run_that_was_never_stopped(whole: Whole, seed: int, tmp_path: Path) -> None:
    """Fifty moments in all. The folder may not be there yet, or the run may have ended before its moment."""
    whole.recorder.asked.clear()
    whole.recorder.misses = 0
    moments = random.Random(seed)
    folder = tmp_path / "run"
    for _ in range(5):
        before = steps(folder)
        again = (folder / "config.json").exists()
        run = start(folder, *([] if again else whole.flags), small=False, resume=again, environment=SERVICE)
        time.sleep(moments.uniform(0, whole.seconds))
        kill_9(run)
        # What was saved stays; a step without a saved state behind it is played again.
        assert len(steps(folder)) >= len(before) - 1
    again = (folder / "config.json").exists()
    finished(folder, *([] if again else whole.flags), small=False, resume=again, environment=SERVICE)
    parses(folder)
    whole.same(folder)


@pytest.mark.long
def test_an_embedded_run_killed_at_random_moments_plays_the_same_tasks_and_leaves_no_engine(tmp_path: Path) -> None:
    """Without a replay a token may differ where two probabilities meet; the optimizer has taken the same steps."""
    reference = tmp_path / "reference"
    flags = [*LEARNABLE, "--steps", str(STEPS)]
    started = time.monotonic()
    left_nothing(finished(reference, *flags))
    seconds = time.monotonic() - started
    moments, folder = random.Random(0), tmp_path / "run"
    for _ in range(5):
        again = (folder / "config.json").exists()
        run = start(folder, *([] if again else flags), resume=again)
        time.sleep(moments.uniform(0, seconds))
        kill_9(run)
    left_nothing(finished(folder, resume=True))
    parses(folder)
    for name in ("step", "tasks", "rollouts"):
        assert [row[name] for row in rows(folder)] == [row[name] for row in rows(reference)]
    for number in range(1, STEPS + 1):
        for one, other in zip(_episodes(folder, number), _episodes(reference, number), strict=True):
            assert (one.task_id, one.attempt) == (other.task_id, other.attempt)
            assert one.turns[0].context_ids.tolist() == other.turns[0].context_ids.tolist()


def _episodes(folder: Path, number: int) -> list[Any]:
    return list(read_episodes(folder / "episodes" / f"step-{number:04d}.jsonl.zst"))


def _state(states: Path, folder: Path) -> tuple[bytes, bytes, int]:
    """The last saved state: weights, Adam's moments and the number of optimizer steps."""
    _, run, name = rows(folder, "checkpoints.jsonl")[-1]["state"].split("/")
    state = states / run / "states" / name
    taken = json.loads((state / "manifest.json").read_text())["meta"]["steps"]
    return (state / "weights.safetensors").read_bytes(), (state / "optimizer.safetensors").read_bytes(), taken
