"""Trackers: the same names everywhere, no secret, and a run that does not notice when one breaks."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from turngrad import trackers
from turngrad.config import TrainConfig
from turngrad.errors import UserError
from turngrad.trackers import Tracking, numbers, public_settings, require_tracker

STEP = {
    "kind": "train",
    "step": 7,
    "reward": 0.25,
    "updated": True,
    "kl": None,
    "snapshot": "a/run-1/policy-0006",
    "tasks": ["t1"],
    "failures": {"tool_server": 2},
    "gap/mean": 0.001,
    "gradient/largest_task": 0.5,
    "gradient/task/t1": 0.5,
}
EVALUATION = {"kind": "eval", "step": 7, "split": "held_out", "reward": 0.5, "reward_ci95": [0.25, 0.75], "strict": None}
NAMES = {
    "train/reward": 0.25,
    "train/updated": 1.0,
    "train/failures/tool_server": 2.0,
    "train/gap/mean": 0.001,
    "train/gradient/largest_task": 0.5,
    "eval/held_out/reward": 0.5,
    "eval/held_out/reward_ci95_low": 0.25,
    "eval/held_out/reward_ci95_high": 0.75,
}
SECRET = "planted-secret"


class Scripted:
    """A tracker that notes what it is given, and does `then` at its second row."""

    where = "nowhere"

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.then, self.given, self.closed = then, [], False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.given.append((step, dict(values)))
        if len(self.given) == 2:
            self.then()

    def close(self) -> None:
        self.closed = True


def give_up() -> None:
    raise OSError("the tracker's disk is full")


async def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, opener: Callable[..., Any]) -> tuple[Tracking, list[str]]:
    said: list[str] = []
    monkeypatch.setitem(trackers._OPENERS, "wandb", opener)
    return await Tracking.start("wandb", TrainConfig(), tmp_path, done=0, say=said.append), said


def test_a_rows_numbers_have_one_name_each_and_text_nulls_and_shares_by_task_stay_behind() -> None:
    assert numbers(STEP) | numbers(EVALUATION) == NAMES


def test_settings_leave_with_the_names_of_headers_and_variables_and_urls_without_credentials() -> None:
    settings = public_settings(
        TrainConfig(
            mcp=f"https://me:{SECRET}@example.org/mcp?key={SECRET}",
            tasks_file=Path("tasks.jsonl"),
            mcp_header=(f"Authorization: Bearer {SECRET}",),
            mcp_env=(f"TOKEN={SECRET}", "PASSED_ON"),
            steps=3,
        )
    )
    assert SECRET not in str(settings)
    assert settings["mcp_header"] == ["Authorization"]
    assert settings["mcp_env"] == ["TOKEN", "PASSED_ON"]
    assert settings["mcp"] == "https://example.org/mcp"
    assert (settings["steps"], settings["tasks_file"]) == (3, "tasks.jsonl")


def test_a_missing_package_is_one_sentence_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"--track trackio needs the package trackio.*--extra trackio.*turngrad\[trackio\]"
    ) as found:
        require_tracker("trackio")
    assert "\n" not in str(found.value)


async def test_rows_arrive_in_order_and_a_close_waits_for_the_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tracker = Scripted(lambda: time.sleep(0.2))
    tracking, said = await start(monkeypatch, tmp_path, lambda *_: tracker)
    for row in (STEP, EVALUATION, {**STEP, "step": 8}):
        tracking.row(row)
    await tracking.close()
    assert [step for step, _ in tracker.given] == [7, 7, 8]
    assert tracker.given[1][1]["eval/held_out/reward"] == 0.5
    assert tracker.closed
    assert said == ["curves in wandb: nowhere"]


async def test_a_tracker_that_fails_in_mid_run_is_off_with_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tracker = Scripted(give_up)
    tracking, said = await start(monkeypatch, tmp_path, lambda *_: tracker)
    for _ in range(5):
        tracking.row(STEP)
    await tracking.close()
    tracking.row(STEP)
    await tracking.close()
    assert len(tracker.given) == 2
    assert said[1:] == ["--track wandb failed and is off from here on (the tracker's disk is full); metrics.jsonl has every row"]


async def test_a_tracker_that_hangs_holds_up_neither_a_row_nor_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trackers, "_CLOSE_TIMEOUT", 0.2)
    tracking, said = await start(monkeypatch, tmp_path, lambda *_: Scripted(lambda: time.sleep(3)))
    started = time.monotonic()
    for _ in range(5):
        tracking.row(STEP)
    assert time.monotonic() - started < 0.1
    await tracking.close()
    assert time.monotonic() - started < 1.0
    assert "its last rows may be missing" in said[-1]


async def test_a_tracker_that_cannot_start_ends_the_run_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        # As wandb's own errors may: beyond Exception.
        raise SystemExit("no API key\nconfigured")

    def slow(*_: object) -> Scripted:
        time.sleep(1)
        return Scripted()

    with pytest.raises(UserError, match="--track wandb cannot start: no API key configured"):
        await start(monkeypatch, tmp_path, refuse)
    monkeypatch.setattr(trackers, "_OPEN_TIMEOUT", 0.2)
    with pytest.raises(UserError, match=r"did not answer within 0\.2 s"):
        await start(monkeypatch, tmp_path, slow)


async def test_tensorboard_reads_back_what_was_written_and_a_resumed_run_takes_the_place_of_what_it_repeats(
    tmp_path: Path,
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    async def track(done: int, rewards: dict[int, float]) -> None:
        tracking = await Tracking.start("tensorboard", TrainConfig(), tmp_path, done=done, say=lambda text: None)
        for step, reward in rewards.items():
            tracking.row({**STEP, "step": step, "reward": reward})
            tracking.row({**EVALUATION, "step": step})
        await tracking.close()

    await track(0, {1: 0.5, 2: 0.25, 3: 0.125})
    # TensorBoard orders files by the second of their making.
    await asyncio.sleep(1.1)
    await track(1, {2: 0.75, 3: 1.0})
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == set(NAMES)
    assert [(event.step, event.value) for event in found.Scalars("train/reward")] == [(1, 0.5), (2, 0.75), (3, 1.0)]
    assert [event.value for event in found.Scalars("eval/held_out/reward_ci95_high")] == [0.75] * 3


@pytest.mark.parametrize("name", ["wandb", "trackio"])
async def test_the_genuine_package_takes_the_rows_and_no_secret(
    name: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it is installed: `uv run --extra wandb --extra trackio pytest tests/test_trackers.py`."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    # Before the import, at which both decide where they write.
    home = tmp_path / "home"
    for variable, value in {
        "HOME": str(home),
        "TRACKIO_DIR": str(home / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_API_KEY": SECRET,
        "FIREWORKS_API_KEY": SECRET,
    }.items():
        monkeypatch.setenv(variable, value)
    said: list[str] = []
    config = TrainConfig(mcp_env=(f"TOKEN={SECRET}",))
    (tmp_path / "run").mkdir()
    for done in (0, 7):
        tracking = await Tracking.start(name, config, tmp_path / "run", done=done, say=said.append)
        tracking.row({**STEP, "step": done + 1})
        tracking.row({**EVALUATION, "step": done + 1})
        await tracking.close()
    assert len(said) == 2, said
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in written
    assert all(metric.encode() in written for metric in NAMES)
