"""A run folder as a reader sees it, also while a trainer still writes to it.

In: a folder that `turngrad.runlog` made. Out: its settings, its rows, and its episode files in the order they were written.
Nothing is locked and nothing is repaired: a torn last line is left out here and left alone there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turngrad.errors import UserError
from turngrad.runlog import read_config

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class EpisodeFile:
    """One file of episodes: a training step's, or an evaluation's over one split after `step` steps.

    Sorted as they are played: the evaluation after step k comes after step k.
    """

    step: int
    kind: str
    """`""` for a training step, else the evaluation's split: `held_out` or `train`."""
    path: Path

    @property
    def name(self) -> str:
        return self.path.name.split(".")[0]

    @property
    def trains(self) -> bool:
        return not self.kind

    @property
    def title(self) -> str:
        if self.trains:
            return f"step {self.step}"
        return f"evaluation after step {self.step}, {self.kind.replace('_', '-')} tasks"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """What lies in a run folder. `steps` are the rows of training steps, `evaluations` those of evaluations."""

    path: Path
    config: Row
    environment: Row
    steps: tuple[Row, ...]
    evaluations: tuple[Row, ...]
    files: tuple[EpisodeFile, ...]
    finished: bool

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def file(self, name: str) -> EpisodeFile:
        """The episode file called `name`. Raises UserError, naming those that are there."""
        for file in self.files:
            if file.name == name:
                return file
        there = ", ".join(file.name for file in self.files) or "none"
        raise UserError(f"{self.path} has no episodes of {name}; there are: {there}")


def read_run(path: Path) -> RunFolder:
    """The run in `path`.

    Raises:
        UserError: no run folder.
    """
    config = read_config(path)
    rows = _rows(path / "metrics.jsonl")
    states = _rows(path / "checkpoints.jsonl")
    try:
        environment = json.loads((path / "environment.json").read_text())
    except (OSError, json.JSONDecodeError):
        environment = {}
    files = [_file(found) for found in (path / "episodes").glob("*.jsonl.zst")]
    return RunFolder(
        path,
        config,
        environment,
        tuple(row for row in rows if row["kind"] == "train"),
        tuple(row for row in rows if row["kind"] == "eval"),
        tuple(sorted(files)),
        # The last state is saved when the last evaluation is written, and not before.
        finished=bool(states) and states[-1]["step"] >= (config.get("steps") or 0),
    )


def _file(path: Path) -> EpisodeFile:
    kind, step, *split = path.name.split(".")[0].split("-")
    return EpisodeFile(int(step), "" if kind == "step" else "-".join(split), path)


def _rows(path: Path) -> list[Row]:
    """The rows of a file whose last line may be half written."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().split("\n")[:-1]:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
