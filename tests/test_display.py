"""What a person sees of a run; and the display ends when nobody reads it any more, the run does not."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
from typing import Any

import pytest
from rich.console import Console

from turngrad.display import Display

STEP: dict[str, Any] = {
    "kind": "train",
    "step": 3,
    "reward": 0.75,
    "reward_std_within_group": 0.25,
    "kept_groups": 5,
    "groups": 8,
    "turns_per_episode": 4.0,
    "tool_calls_per_episode": 6.5,
    "sampled_tokens": 3000,
    "seconds_rollout": 12.0,
    "seconds_update": 3.5,
    "updated": True,
    "rollouts": 64,
    "valid_rollouts": 64,
    "cost": 0.25,
}
EVALUATION: dict[str, Any] = {
    "kind": "eval",
    "step": 3,
    "split": "held_out",
    "reward": 0.5,
    "reward_ci95": [0.4, 0.6],
    "pass_at_1": 0.25,
    "pass_at_1_ci95": [0.125, 0.5],
    "k": 4,
    "pass_hat_k": 0.125,
    "pass_hat_k_ci95": [0.0625, 0.25],
    "strict": None,
    "tasks": 16,
    "samples": 64,
    "cost": 1.0,
}


class Gone(io.StringIO):
    """A terminal that was closed after `written` writes."""

    def __init__(self, written: int) -> None:
        super().__init__()
        self.left = written

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")
        return super().write(text)


def _display(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Display:
    # The display puts something harmless in the place of a standard output that is gone.
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    return Display(Console(file=stream, force_terminal=True, width=80, highlight=False))


@pytest.mark.parametrize("written", [0, 1, 3])
def test_a_terminal_that_goes_during_a_phase_does_not_touch_what_the_phase_does(
    written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    display = _display(Gone(written), monkeypatch)
    done = []
    with display.phase("step 1", 3):
        for number in range(3):
            display.advance(1)
            display.say("a line")
            done.append(number)
    assert done == [0, 1, 2]


async def test_a_stop_during_a_phase_stays_a_stop_where_the_terminal_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the terminal's in its place would keep the trainer from saving."""
    display = _display(Gone(2), monkeypatch)

    async def phase() -> None:
        with display.phase("step 1", 3):
            await asyncio.sleep(60)

    task = asyncio.create_task(phase())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_terminal_shows_the_bar_and_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Gone(10_000)
    display = _display(stream, monkeypatch)
    with display.phase("step 1", 2):
        display.advance(1)
        display.say("a line [bold]as it is[/bold]")
    assert "step 1" in stream.getvalue()
    assert "a line [bold]as it is[/bold]" in stream.getvalue()


def lines(*, terminal: bool = False) -> tuple[Display, io.StringIO]:
    output = io.StringIO()
    return Display(Console(file=output, width=400, highlight=False, soft_wrap=True, force_terminal=terminal)), output


def test_a_steps_line_has_reward_speed_times_and_the_cost_so_far() -> None:
    shown, output = lines()
    shown.recall([{**STEP, "step": 1, "reward": 0.0}, {**EVALUATION, "step": 1}, {**STEP, "step": 2, "reward": 0.5}])
    shown.step(STEP, 30)
    [line] = output.getvalue().splitlines()
    for part in ("step   3/30", "reward 0.750 ▁▆█", "kept 5/8", "250 tok/s", "rollout 12.0 s update 3.5 s", "cost so far 1.75"):
        assert part in line


def test_without_prices_no_cost_is_shown() -> None:
    shown, output = lines()
    shown.step({**STEP, "cost": None}, 30)
    shown.evaluation({**EVALUATION, "cost": None})
    assert "cost" not in output.getvalue()


def test_an_evaluations_line_has_both_shares_with_their_intervals_and_one_attempt_has_no_second() -> None:
    shown, output = lines()
    shown.evaluation(EVALUATION)
    assert "pass@1 0.250 (95 % 0.125 to 0.500), pass^4 0.125 (95 % 0.062 to 0.250)" in output.getvalue()
    shown.evaluation({**EVALUATION, "k": 1})
    assert "pass^" not in output.getvalue().splitlines()[1]


def test_on_a_terminal_a_bar_shows_rollouts_done_and_in_flight_and_elsewhere_lines_are_plain() -> None:
    shown, output = lines(terminal=True)
    with shown.phase("step 3", 8):
        shown.advance(5)
        shown.advance(4)
    assert "step 3" in output.getvalue()
    assert "2/8" in output.getvalue()
    assert "4 in flight" in output.getvalue()
    shown, output = lines()
    with shown.phase("step 3", 8):
        shown.advance(5)
        shown.step(STEP, 30)
    assert len(output.getvalue().splitlines()) == 1
    assert "\x1b" not in output.getvalue()


def test_a_reader_that_leaves_ends_the_display_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rich's own console the process would end here, status 1."""
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        display = Display()
        for line in range(3):
            display.say(f"line {line}")
        assert display.console.quiet
        assert sys.stdout is not pipe
