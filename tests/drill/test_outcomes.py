"""One fault after the other in one run of 4 tasks x 8 attempts a step, and what each costs: see `tests/drill/desk.py`.

The numbers are those of the run's own rows, so a fault that is not counted under its class fails here too.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import at_service, break_requests, left_nothing, parses, rows, start, starter_engine
from turngrad.runlog import read_episodes

HERE = Path(__file__).parent
SERVICE = {"FIREWORKS_API_KEY": "drill-of-the-trainer"}
FOUR_TIMES_EIGHT = ["--tasks-per-step", "4", "--group-size", "8", "--eval-tasks", "0", "--rollout-retries", "0"]
STALL = 30.0


@pytest.mark.long
def test_each_fault_of_a_rollout_costs_what_it_must_and_no_more(tmp_path: Path) -> None:
    """Step 1 loses one rollout, step 2 a group, step 3 one rollout; a storm of 429 and a stall of 30 s lose nothing."""
    tasks = tmp_path / "tasks.jsonl"
    with open(tasks, "w") as file:
        for number in range(20):
            row = {"env": "desk", "id": "desk", "args": {"folder": f"box{number}", "file": f"note{number}.txt"}}
            file.write(json.dumps({**row, "slug": f"desk-{number}"}) + "\n")
    with starter_engine(tmp_path) as url:
        flags = ["--tasks-file", str(tasks), "--env-path", str(HERE / "desk.py"), "--steps", "5"]
        run = start(tmp_path / "run", *at_service(url), *FOUR_TIMES_EIGHT, *flags, small=False, environment=SERVICE)
        run.until_rows(3)
        break_requests(url, {"match": "completions", "action": "status", "status": 429, "times": 40})
        run.until_rows(4)
        stalled = time.monotonic()
        break_requests(url, {"match": "completions", "action": "delay", "seconds": STALL, "times": 1})
        assert run.wait() == 0, run.output
        seconds = time.monotonic() - stalled
    left_nothing(run)
    parses(run.folder)
    assert "Traceback" not in run.output
    crashed, group, grader, storm, stall = rows(run.folder)

    assert (crashed["rollouts"], crashed["valid_rollouts"]) == (32, 31)
    assert sum(crashed["failures"].values()) == 1
    assert "world 5 cannot be made" in crashed["last_error"]
    assert (group["rollouts"], group["valid_rollouts"]) == (32, 24)
    assert sum(group["failures"].values()) == 8
    assert group["groups"] == 4
    assert group["kept_groups"] <= 3
    assert (grader["rollouts"], grader["valid_rollouts"]) == (32, 31)
    assert grader["failures"] == {"grader": 1}
    assert "the grader of world 69 raises" in grader["last_error"]
    for row in (storm, stall):
        assert (row["rollouts"], row["valid_rollouts"], row["failures"]) == (32, 32, {})
    assert STALL < stall["seconds_rollout"] <= seconds

    for step, row in enumerate(rows(run.folder), 1):
        episodes = list(read_episodes(run.folder / "episodes" / f"step-{step:04d}.jsonl.zst"))
        sound = [episode for episode in episodes if episode.failure is None]
        assert len(sound) == row["valid_rollouts"]
        assert row["rollouts_started"] == row["valid_rollouts"] + sum(row["failures"].values())
        assert row["reward"] == pytest.approx(_mean([episode.reward for episode in sound]))
        assert row["updated"]


def _mean(values: list[Any]) -> float:
    return sum(values) / len(values)
