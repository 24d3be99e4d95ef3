"""What a person sees of a run: a progress bar and one line a step on a terminal, plain lines elsewhere.

In: phases, finished rollouts, metric rows. Out: text on standard output, first within seconds; a closed standard output
ends the display, never the run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_BARS = "▁▂▃▄▅▆▇█"


class _Console(Console):
    """Rich's own ends the process with status 1 when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        raise


class Display:
    """One run's display. `phase` is a context in which `advance` moves the bar."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _Console(highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: Any = None
        self._rewards: list[float] = []
        self._cost: float | None = None

    def say(self, text: str) -> None:
        """One line, as it is: markup in it is shown, not obeyed."""
        self._print(escape(text))

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None) -> Iterator[None]:
        """A progress bar while the block runs, on a terminal."""
        if not self.console.is_terminal:
            yield
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        progress = Progress(*columns, console=self.console, transient=True)
        with self._until_nobody_reads():
            progress.start()
            self._progress, self._task = progress, progress.add_task(name, total=total, note="")
        try:
            yield
        finally:
            self._progress = None
            with self._until_nobody_reads():
                progress.stop()

    def advance(self, in_flight: int) -> None:
        """One more rollout is done, `in_flight` are under way."""
        note = f"{in_flight} in flight"
        if self._progress is not None:
            with self._until_nobody_reads():
                self._progress.update(self._task, advance=1, note=note)

    def recall(self, rows: Sequence[dict[str, Any]]) -> None:
        """Take rewards and cost so far from the rows of metrics.jsonl, in place of what was seen."""
        self._rewards = [row["reward"] for row in rows if row["kind"] == "train" and row["reward"] is not None]
        self._cost = None
        for row in rows:
            self._spend(row)

    def step(self, row: dict[str, Any], steps: int) -> None:
        """The line of one step."""
        if row["reward"] is not None:
            self._rewards.append(row["reward"])
        self._spend(row)
        parts = [
            f"step {row['step']:>3}/{steps}",
            f"reward {_number(row['reward'])} {sparkline(self._rewards[-20:])}",
            f"spread {_number(row['reward_std_within_group'])}",
            f"kept {row['kept_groups']}/{row['groups']}",
            f"turns {_number(row['turns_per_episode'], 1)} calls {_number(row['tool_calls_per_episode'], 1)}",
            f"{row['sampled_tokens'] / max(row['seconds_rollout'], 1e-9):.0f} tok/s",
            f"rollout {row['seconds_rollout']:.1f} s update {row['seconds_update']:.1f} s",
        ]
        if self._cost is not None:
            parts.append(f"cost so far {self._cost:.2f}")
        if not row["updated"]:
            parts.append(f"no update: {row['why_not_updated']}")
        lost = row["rollouts"] - row["valid_rollouts"]
        if lost:
            parts.append(f"{lost} rollouts lost ({row['last_error']})")
        self.say("  ".join(parts))

    def evaluation(self, row: dict[str, Any]) -> None:
        """The line of one evaluation."""
        self._spend(row)
        passed = f"pass@1 {_number(row['pass_at_1'])}{_between(row['pass_at_1_ci95'])}"
        if row["k"] > 1:
            passed += f", pass^{row['k']} {_number(row['pass_hat_k'])}{_between(row['pass_hat_k_ci95'])}"
        strict = "" if row["strict"] is None else f", strict {row['strict']:.3f}"
        split = row["split"].replace("_", " ")
        self.say(
            f"evaluation after step {row['step']}, {split} tasks: reward {_number(row['reward'])}"
            f"{_between(row['reward_ci95'])}, {passed}{strict}; {row['tasks']} tasks, {row['samples']} samples"
            + ("" if self._cost is None else f"; cost so far {self._cost:.2f}")
        )

    def _spend(self, row: dict[str, Any]) -> None:
        if (cost := row.get("cost")) is not None:
            self._cost = (self._cost or 0.0) + cost

    def _print(self, text: str) -> None:
        with self._until_nobody_reads():
            self.console.print(text)

    @contextlib.contextmanager
    def _until_nobody_reads(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError):
            # A closed pipe, or a terminal that is gone: the run goes on, and Python's own flush at exit must not fail either.
            self.console = Console(quiet=True)
            with contextlib.suppress(Exception):
                sys.stdout = open("/dev/null", "w")  # noqa: SIM115


def sparkline(values: Sequence[float]) -> str:
    """The values as one character each, lowest to highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def _between(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f" (95 % {interval[0]:.3f} to {interval[1]:.3f})"


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
