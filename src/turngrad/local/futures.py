"""Operations in the order the client numbered them, and results that wait to be fetched.

In: operations of a model with their seq_id, in any order, perhaps twice. Out: each once, in order (`Sequencer`); and
long-polled results by request id (`Futures`). Invariant: a repeated (model, seq_id) is the same operation and gets the
same request id, so a client that retries a POST whose answer it lost changes nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 20.0
"""How long retrieve_future waits: below the client's 45 s, and long enough that it does not busy-loop."""
_KEPT_SECONDS = 300.0
"""How long a fetched result stays: a client that lost the answer asks again, several times and up to 30 s apart."""


class Futures:
    """Results by request id. Used from the event loop only; `finish_threadsafe` may be called from anywhere."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._futures: dict[str, asyncio.Future[bytes]] = {}
        self._fetched: OrderedDict[str, float] = OrderedDict()

    def create(self) -> str:
        """A new request id."""
        request_id = uuid.uuid4().hex
        self._futures[request_id] = self._loop.create_future()
        return request_id

    def finish(self, request_id: str, body: bytes) -> None:
        future = self._futures.get(request_id)
        if future is not None and not future.done():
            future.set_result(body)

    def finish_threadsafe(self, request_id: str, body: bytes) -> None:
        self._loop.call_soon_threadsafe(self.finish, request_id, body)

    async def wait(self, request_id: str) -> bytes | None:
        """The result, or None if it is not there within the poll. Raises KeyError for an id never handed out.

        A result that nobody has asked for again for some minutes is forgotten.
        """
        future = self._futures[request_id]
        done, _ = await asyncio.wait([future], timeout=POLL_SECONDS)
        if not done:
            return None
        now = self._loop.time()
        self._fetched[request_id] = now
        self._fetched.move_to_end(request_id)
        while now - next(iter(self._fetched.values())) > _KEPT_SECONDS:
            self._futures.pop(self._fetched.popitem(last=False)[0], None)
        return future.result()


class Sequencer:
    """The operations of one model. `seq_id` starts at 1; an operation without one runs when it arrives."""

    def __init__(self) -> None:
        self._next = 1
        self._early: dict[int, Callable[[], Any]] = {}
        self._known: dict[int, str] = {}

    def known(self, seq_id: int | None) -> str | None:
        """The request id of an operation that has been here before."""
        return self._known.get(seq_id) if seq_id is not None else None

    def add(self, seq_id: int | None, request_id: str, run: Callable[[], Any]) -> None:
        """Runs the operation now, or as soon as all earlier ones are here."""
        if seq_id is None:
            run()
            return
        self._known[seq_id] = request_id
        self._early[seq_id] = run
        self._advance()

    def skip(self, seq_id: int | None) -> None:
        """Counts a refused operation as done, so that later ones do not wait for it for ever."""
        if seq_id is not None and seq_id not in self._known:
            self._early[seq_id] = lambda: None
            self._advance()

    def abandoned(self) -> list[str]:
        """Request ids of operations still waiting for an earlier one, which will not come any more."""
        return [self._known[seq_id] for seq_id in sorted(self._early) if seq_id in self._known]

    def _advance(self) -> None:
        while self._next in self._early:
            run = self._early.pop(self._next)
            self._next += 1
            run()
