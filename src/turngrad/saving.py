"""The resumable states of one run: saved under names the service accepts, noted in checkpoints.jsonl, dropped when old.

In: a learner after a whole step. Out: rows of checkpoints.jsonl. Invariant: at every kill that file lists only states that are
there (C12). A new state is noted after it is saved; an old one is taken off the list before it is deleted, and remembered as
`dropping` until it is gone, so that a resumed run deletes what a killed one left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from turngrad.checkpoints import Checkpoint, best_snapshot, latest, state_name, to_drop
from turngrad.errors import RunError
from turngrad.runlog import RunLog

if TYPE_CHECKING:
    from turngrad.learner import Learner

_FILE = "checkpoints.jsonl"


class States:
    """`keep` is how many of the newest to keep, None for all; `delete(session, path)` deletes one, or raises RunError."""

    def __init__(
        self, log: RunLog, keep: int | None, delete: Callable[[str | None, str], Awaitable[None]], say: Callable[[str], None]
    ) -> None:
        self._log, self._keep, self._delete, self._say = log, keep, delete, say

    @property
    def latest(self) -> Checkpoint | None:
        """The newest state there is."""
        return latest(self._log.rows(_FILE))

    async def save(
        self, learner: Learner, step: int, *, snapshot: str | None, session: str | None, final: bool, timeout: float
    ) -> None:
        """Save weights and optimizer as they are after `step`, then let go of what `keep` leaves out. Raises LearnerError."""
        path = await learner.save_state(state_name(step, final=final), timeout=timeout)
        self._log.checkpoint({"step": step, "state": path, "snapshot": snapshot, "session": session})
        await self.drop_old()

    async def drop_old(self) -> None:
        """Delete what `keep` leaves out, and what an earlier process did not come to. A service that refuses is told of once."""
        if self._keep is None:
            return
        rows = self._log.rows(_FILE)
        if not rows:
            return
        old = to_drop(rows, self._keep, best_snapshot(self._log.rows("metrics.jsonl")))
        dropping = [
            *(item for row in rows for item in row.get("dropping", ())),
            *([row.get("session"), row["state"]] for row in old),
        ]
        if not dropping:
            return
        kept = [{key: value for key, value in row.items() if key != "dropping"} for row in rows if row not in old]
        self._log.set_checkpoints([*kept[:-1], {**kept[-1], "dropping": dropping}])
        try:
            for session, path in dropping:
                await self._delete(session, path)
        except RunError as error:
            self._say(f"--keep-states: {error}; old states stay where they are from here on")
            self._keep = None
            return
        self._log.set_checkpoints(kept)
