"""The display ends when nobody reads it any more; the run does not."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest
from rich.console import Console

from turngrad.display import Display


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
            display.advance()
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
        display.advance()
        display.say("a line [bold]as it is[/bold]")
    assert "step 1" in stream.getvalue()
    assert "a line [bold]as it is[/bold]" in stream.getvalue()
