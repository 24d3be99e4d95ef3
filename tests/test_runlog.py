"""The run folder: whole rows, repaired tails, one trainer at a time (C12)."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turngrad.config import TrainConfig
from turngrad.episodes import Episode, StopReason, Turn, logprob_array, token_array
from turngrad.errors import RunError, UserError
from turngrad.runlog import RunLog, read_episodes, read_rows


def _log(folder: Path) -> RunLog:
    log = RunLog.create(TrainConfig(output_dir=folder))
    log.write_config(TrainConfig(output_dir=folder))
    return log


def _episode(attempt: int) -> Episode:
    turn = Turn(token_array([1, 2, 3]), token_array([4, 5]), logprob_array([-0.1, -1e-9]), "stop")
    return Episode("täsk\n\u2028", "g", attempt, (turn,), 0.5, StopReason.DONE, info={"note": "a\nb"})


def test_episodes_come_back_as_they_were_however_many(tmp_path: Path) -> None:
    log = _log(tmp_path / "run")
    episodes = [_episode(index) for index in range(5000)]
    path = log.episodes("step-0001", episodes)
    assert list(read_episodes(path)) == episodes
    assert not list((tmp_path / "run" / "episodes").glob("*.partial"))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400))
def test_whatever_a_kill_left_of_the_last_row_every_line_parses_after_a_reopen(tmp_path: Path, cut: int) -> None:
    folder = tmp_path / f"run-{cut}"
    if not folder.exists():
        log = _log(folder)
        for step in range(4):
            log.metrics({"kind": "train", "step": step + 1, "text": "ü" * 20})
        log.close()
    path = folder / "metrics.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    RunLog.reopen(folder).close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert path.read_bytes() == data[: len(path.read_bytes())]


def test_rows_and_episodes_beyond_the_resumed_step_are_dropped(tmp_path: Path) -> None:
    log = _log(tmp_path / "run")
    for step in range(1, 5):
        log.metrics({"kind": "train", "step": step})
        log.checkpoint({"step": step, "state": f"s{step}", "snapshot": f"p{step}"})
        log.episodes(f"step-{step:04d}", [_episode(0)])
    log.metrics({"kind": "eval", "step": 4})
    log.episodes("eval-0004-held_out", [_episode(0)])
    log.drop_after(2)
    assert [row["step"] for row in log.rows("metrics.jsonl")] == [1, 2]
    assert [row["step"] for row in log.rows("checkpoints.jsonl")] == [1, 2]
    assert sorted(path.name for path in (log.folder / "episodes").iterdir()) == ["step-0001.jsonl.zst", "step-0002.jsonl.zst"]


def test_a_folder_with_a_run_is_not_written_over_and_a_second_trainer_is_refused(tmp_path: Path) -> None:
    log = _log(tmp_path / "run")
    log.metrics({"kind": "train", "step": 1})
    with pytest.raises(UserError, match="another trainer is at work"):
        RunLog.reopen(tmp_path / "run")
    log.close()
    with pytest.raises(UserError, match="--resume-from"):
        RunLog.create(TrainConfig(output_dir=tmp_path / "run"))


def test_a_row_that_is_no_json_is_refused_before_it_is_written(tmp_path: Path) -> None:
    log = _log(tmp_path / "run")
    with pytest.raises(ValueError, match="JSON"):
        log.metrics({"loss": float("nan")})
    assert read_rows(log.folder / "metrics.jsonl") == []


def test_a_row_that_the_disk_took_half_of_is_taken_back_and_the_run_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _log(tmp_path / "run")
    log.metrics({"step": 1})
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(RunError, match=r"cannot write .*metrics.jsonl: No space left on device"):
            log.metrics({"step": 2})
    log.metrics({"step": 3})
    assert read_rows(log.folder / "metrics.jsonl") == [{"step": 1}, {"step": 3}]


def test_episodes_that_the_disk_does_not_take_leave_no_file_and_the_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _log(tmp_path / "run")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*step-0001.jsonl.zst: No space left on device"):
        log.episodes("step-0001", [_episode(0)])
    assert list((log.folder / "episodes").iterdir()) == []


def test_the_config_in_a_folder_holds_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREWORKS_API_KEY", "planted-key")
    log = _log(tmp_path / "run")
    log.write_config(TrainConfig().resolve())
    assert not [path for path in log.folder.rglob("*") if path.is_file() and b"planted-key" in path.read_bytes()]
