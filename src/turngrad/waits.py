"""Waits that end: every call to the training service has a time limit, blocks no event loop and fails in one sentence.

In: an await or a blocking call of the SDK's, a limit in seconds, and what it is for. Out: its result or a `LearnerError`. The SDK
itself retries some failures without end, so nothing of it is awaited outside of here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar, cast

from turngrad.errors import RunError
from turngrad.faults import LearnerTimeout, explain

T = TypeVar("T")

FIRST_WORD_SECONDS = 30.0
"""A wait that lasts so long is spoken of, and again each time it has become twice as long."""
_listeners: list[Callable[[str], None]] = []


@contextlib.contextmanager
def told(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, `say` hears of every wait of this process that becomes long."""
    _listeners.append(say)
    try:
        yield
    finally:
        _listeners.remove(say)


async def _speak_of(doing: str) -> None:
    waited, until = 0.0, FIRST_WORD_SECONDS
    while True:
        await asyncio.sleep(until - waited)
        for say in _listeners:
            say(f"{doing}: waiting for the service, {until:g} s by now")
        waited, until = until, 2 * until


@contextlib.asynccontextmanager
async def bounded(timeout: float, doing: str) -> AsyncIterator[None]:
    """Whatever goes wrong inside, or takes longer than `timeout` seconds, as a LearnerError that says what was going on."""
    limit = asyncio.timeout(timeout)
    speaking = asyncio.create_task(_speak_of(doing))
    try:
        async with limit:
            yield
    except Exception as error:
        if limit.expired():
            raise LearnerTimeout(f"{doing} took longer than {timeout:g} s; what the service made of it is unknown") from error
        raise explain(error, doing) from error
    finally:
        speaking.cancel()


@contextlib.asynccontextmanager
async def in_time(timeout: float, sentence: str) -> AsyncIterator[None]:
    """A RunError of this sentence when the block takes longer than `timeout` seconds; what else it raises passes."""
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise RunError(sentence) from error


async def in_thread(call: Callable[[], T], timeout: float, doing: str) -> T:
    """A blocking call of the SDK's, on a daemon thread: one that never returns holds up neither the loop nor the exit."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(cast(T, result))

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as caught:
            error = caught
        # A loop that has closed meanwhile has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=doing, daemon=True).start()
    async with bounded(timeout, doing):
        return await outcome
