"""Limits on code that may not return: threads that can be stopped, processes that die with their parent.

`in_thread` runs a plain function in a thread of its own. A thread costs some 0.1 ms, never queues behind a stuck one, and
is a daemon, so that a stuck tool cannot hold up the process's exit. Python bytecode is stopped at the time-out by an
exception raised inside the thread; one long call into C cannot be stopped that way (see `guard` for those).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

STOP_GRACE = 1.0
"""Seconds a stopped thread gets to unwind before it is called stuck."""

_PR_SET_PDEATHSIG = 1


class Stopped(BaseException):
    """Raised inside a thread to stop it; no `except Exception` in the author's code may swallow it."""


class StuckError(TimeoutError):
    """The code neither returned nor could be stopped; it may still be running."""


async def in_thread(function: Callable[..., T], *args: Any, seconds: float) -> T:
    """Run `function(*args)` in its own thread and return its result, or raise what it raised.

    Raises TimeoutError when it was stopped after `seconds`, and StuckError when it could not be stopped.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is None:
            outcome.set_result(result)  # pyright: ignore[reportArgumentType]
        elif isinstance(error, Stopped | StopIteration):
            # A future cannot carry StopIteration, and Stopped says that the time ran out.
            outcome.set_exception(TimeoutError() if isinstance(error, Stopped) else RuntimeError("StopIteration"))
        else:
            outcome.set_exception(error)

    def body() -> None:
        result, error = None, None
        try:
            result = function(*args)
        except BaseException as raised:
            error = raised
        # The loop may be closed by the time a stuck call returns: there is nobody left to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=body, name=f"tool {getattr(function, '__name__', '')}", daemon=True)
    thread.start()
    try:
        done, _ = await asyncio.wait({outcome}, timeout=seconds)
        if not done:
            _raise_in(thread, Stopped)
            done, _ = await asyncio.wait({outcome}, timeout=STOP_GRACE)
    except asyncio.CancelledError:
        _raise_in(thread, Stopped)
        raise
    if not done:
        outcome.cancel()
        raise StuckError(f"still running {STOP_GRACE:g} s after it was told to stop at {seconds:g} s")
    return outcome.result()


def _raise_in(thread: threading.Thread, kind: type[BaseException]) -> None:
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


def die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
