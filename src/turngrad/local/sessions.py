"""Open sessions and the models they own.

In: create, heartbeat, delete. Out: which session is open, which models are loaded, each with its `Sequencer`. A session that
shows no sign of life (a heartbeat, or an operation of one of its models) is closed, and closing one unloads its models.
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
"""A session silent for this long is closed; the SDK sends a heartbeat every 10 s."""


class Sessions:
    """Used from the event loop only.

    `unload` is told the model ids that a closed session leaves behind; `abandon` the request ids of operations that were
    waiting for an earlier one of a model that is gone.
    """

    def __init__(
        self, unload: Callable[[str], Any], abandon: Callable[[str, str], Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._unload, self._abandon, self._clock = unload, abandon, clock
        self._seen: dict[str, float] = {}
        self._runs: dict[str, list[str]] = {}
        self._owner: dict[str, str] = {}
        self._sequencers: dict[str, Sequencer] = {}

    def create(self) -> str:
        """A new session id."""
        session = f"ts-{uuid.uuid4().hex}"
        self._seen[session] = self._clock()
        self._runs[session] = []
        return session

    def expire(self) -> None:
        """Closes the sessions that went silent. To be called now and then, whatever else happens."""
        now = self._clock()
        for session in [s for s, seen in self._seen.items() if now - seen > EXPIRY_SECONDS]:
            log.warning("session %s gave no sign of life for %.0f s: closed, its models unloaded", session, EXPIRY_SECONDS)
            self.close(session)

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
        del self._seen[session], self._runs[session]
        for model_id in [m for m, owner in self._owner.items() if owner == session]:
            self.forget(model_id)
            self._unload(model_id)

    def own(self, session: str, model_id: str) -> None:
        """Records a model that `session` created."""
        self._owner[model_id] = session
        self._sequencers[model_id] = Sequencer()
        self._runs[session].append(model_id.partition(":")[0])

    def forget(self, model_id: str) -> None:
        """Records that a model is gone."""
        self._owner.pop(model_id, None)
        sequencer = self._sequencers.pop(model_id, None)
        for request_id in sequencer.abandoned() if sequencer is not None else ():
            self._abandon(request_id, f"{model_id} was unloaded before an earlier operation arrived")

    def runs(self, session: str) -> list[str]:
        """Run ids an open session created, those of unloaded models included."""
        return self._runs[session]

    def sequencer(self, model_id: str) -> Sequencer:
        """The operation order of a loaded model, whose session thereby shows life. ApiError 404 for any other."""
        sequencer = self._sequencers.get(model_id)
        if sequencer is None:
            raise ApiError(404, f"model {model_id!r} is not loaded; it was unloaded, or the engine restarted: create it again")
        self._seen[self._owner[model_id]] = self._clock()
        return sequencer
