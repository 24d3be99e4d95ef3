"""Open sessions and the models they own.

In: create, heartbeat, delete. Out: which session is open, which models are loaded, each with its `Sequencer`. A session
whose heartbeats stop is closed, and closing one unloads its models.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from turngrad.local.futures import Sequencer
from turngrad.local.wire import ApiError

log = logging.getLogger("turngrad.local")
EXPIRY_SECONDS = 600.0
"""A session without a heartbeat for this long is closed; the SDK sends one every 10 s."""


class Sessions:
    """Used from the event loop only. `unload` is told the model ids that a closed session leaves behind."""

    def __init__(self, unload: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._unload, self._clock = unload, clock
        self._seen: dict[str, float] = {}
        self._owner: dict[str, str] = {}
        self._sequencers: dict[str, Sequencer] = {}

    def create(self) -> str:
        """A new session id; sessions that went silent are closed first."""
        now = self._clock()
        for session in [s for s, seen in self._seen.items() if now - seen > EXPIRY_SECONDS]:
            log.warning("session %s sent no heartbeat for %.0f s: closed", session, EXPIRY_SECONDS)
            self.close(session)
        session = f"ts-{uuid.uuid4().hex}"
        self._seen[session] = now
        return session

    def beat(self, session: str) -> None:
        """Notes a sign of life. ApiError 404 for a session that is not open."""
        self.check(session)
        self._seen[session] = self._clock()

    def check(self, session: str) -> None:
        """ApiError 404 for a session that is not open."""
        if session not in self._seen:
            raise ApiError(404, f"session {session!r} is not open; it was deleted, expired, or the engine restarted")

    def close(self, session: str) -> None:
        """Closes an open session and unloads its models."""
        self.check(session)
        del self._seen[session]
        for model_id in [m for m, owner in self._owner.items() if owner == session]:
            self.forget(model_id)
            self._unload(model_id)

    def own(self, session: str, model_id: str) -> None:
        """Records a model that `session` created."""
        self._owner[model_id] = session
        self._sequencers[model_id] = Sequencer()

    def forget(self, model_id: str) -> None:
        """Records that a model is gone."""
        self._owner.pop(model_id, None)
        self._sequencers.pop(model_id, None)

    def runs(self, session: str) -> list[str]:
        """Run ids of a session's models."""
        return [model_id.partition(":")[0] for model_id, owner in self._owner.items() if owner == session]

    def sequencer(self, model_id: str) -> Sequencer:
        """The operation order of a loaded model. ApiError 404 for any other."""
        sequencer = self._sequencers.get(model_id)
        if sequencer is None:
            raise ApiError(404, f"model {model_id!r} is not loaded; it was unloaded, or the engine restarted: create it again")
        return sequencer
