"""A whole run whose environment server is killed again and again: every step is there, and the row says what was lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.processes import left_nothing, rows, start

pytestmark = pytest.mark.long


def test_a_run_whose_environment_server_is_killed_in_every_step_trains_every_step(tmp_path: Path) -> None:
    """Lost: nothing; the tries that were on the server are played again and counted."""
    run = start(tmp_path / "run", "--steps", "3", "--rollout-retries", "3")
    for step in range(3):
        run.until_rows(step)
        run.until(lambda: "server_child" in run.children())
        # Somewhere in the step: a publication takes less, a step of eight rollouts more.
        time.sleep(1)
        os.kill(run.children()["server_child"], signal.SIGKILL)
    assert run.wait(300) == 0, run.output
    left_nothing(run)
    found = rows(run.folder)
    assert [row["step"] for row in found] == [1, 2, 3]
    for row in found:
        assert row["rollouts"] == row["valid_rollouts"] == 8
        assert row["rollouts_started"] == 8 + sum(row["failures"].values())
    assert "Traceback" not in run.output
