"""What a run has saved: its resumable states, which of them to keep, and its best snapshot.

In: rows of checkpoints.jsonl and metrics.jsonl, or a path on the service. Out: where to go on from, what may be deleted, which
weights were best. Everything is a function of those rows, so that a resumed run decides as one that never stopped (C11).

    checkpoints.jsonl  {"step": 10, "state": path, "snapshot": path of the same weights for sampling, "session": name}
                       "origin": true    the state belongs to another run, which this one goes on from
                       "dropping": [[session, path], ...]  states off the list that may be there still
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

_STATE_PATH = re.compile(r"[a-z0-9-]+/run-[0-9a-f]{32}/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_FINAL = "final-state"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state: the step it follows, and the service's path of weights and optimizer."""

    step: int
    state: str

    @property
    def final(self) -> bool:
        """Whether a run came to its end with it."""
        return self.state.rpartition("/")[2] == _FINAL


@dataclass(frozen=True, slots=True)
class Best:
    """The snapshot with the highest mean reward: the step it follows, and where that reward was measured."""

    step: int
    snapshot: str
    reward: float
    where: str


def is_state_path(text: str) -> bool:
    """Whether `text` is a path of the service, account/run-<32 hex>/name."""
    return _STATE_PATH.fullmatch(text) is not None


def step_in_name(path: str) -> int | None:
    """The step that a state's name tells: 5 of account/run/state-0005; None of one without a number at its end."""
    found = re.search(r"-(\d+)$", path.rpartition("/")[2])
    return int(found[1]) if found else None


def state_name(step: int, *, final: bool) -> str:
    """The name to save a state under."""
    return _FINAL if final else f"state-{step:04d}"


def latest(rows: Sequence[Row]) -> Checkpoint | None:
    """The last saved state."""
    return Checkpoint(rows[-1]["step"], rows[-1]["state"]) if rows else None


def to_drop(rows: Sequence[Row], keep: int, best: Best | None) -> list[Row]:
    """The rows whose states may go: all but the newest `keep`, the final one, the best snapshot's, and those of other runs."""
    own = [row for row in rows if not row.get("origin")]
    final = own[-1:] if own and Checkpoint(own[-1]["step"], own[-1]["state"]).final else []
    spared = {row["state"] for row in [*final, *own[: len(own) - len(final)][-keep:]]}
    if best is not None:
        spared |= {row["state"] for row in own if row["step"] == best.step}
    return [row for row in own if row["state"] not in spared]


def best_snapshot(metrics: Sequence[Row]) -> Best | None:
    """The first snapshot with the highest reward: of the held-out evaluations, without any of the training pool's, and without
    those of the steps that sampled from it."""
    evaluations = [row for row in metrics if row["kind"] == "eval" and row["reward"] is not None]
    for split, where in (("held_out", "held-out tasks"), ("train", "tasks of the training pool")):
        if found := [row for row in evaluations if row["split"] == split]:
            row = max(found, key=lambda row: row["reward"])
            return Best(row["step"], row["snapshot"], row["reward"], where)
    # With lag a step's episodes may come from several snapshots, and the row names the newest.
    steps = [row for row in metrics if row["kind"] == "train" and row["reward"] is not None]
    if not steps:
        return None
    row = max(steps, key=lambda row: row["reward"])
    return Best(row["step"] - 1, row["snapshot"], row["reward"], "the tasks of one training step")
