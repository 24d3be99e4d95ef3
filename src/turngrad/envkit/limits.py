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
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    thread = _Thread(function, args, outcome)
    try:
        done, _ = await asyncio.wait({outcome}, timeout=seconds)
        if not done:
            thread.stop()
            done, _ = await asyncio.wait({outcome}, timeout=STOP_GRACE)
    except asyncio.CancelledError:
        thread.stop()
        raise
    if not done:
        outcome.cancel()
        raise StuckError(f"still running {STOP_GRACE:g} s after it was told to stop at {seconds:g} s")
    return outcome.result()


class _Thread:
    """One call in a thread of its own, and the means to stop it once."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], outcome: asyncio.Future[Any]) -> None:
        self._function = function
        self._args = args
        self._outcome = outcome
        self._loop = outcome.get_loop()
        # Held to stop and to finish: a thread's number may be a new thread's a moment after it ended.
        self._ending = threading.Lock()
        self._can_stop = True
        self._thread = threading.Thread(target=self._body, name=getattr(function, "__name__", "call"), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._ending:
            if self._can_stop and self._thread.ident is not None:
                self._can_stop = False
                ident = ctypes.c_ulong(self._thread.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Stopped))

    def _body(self) -> None:
        result, error = None, None
        try:
            try:
                result = self._function(*self._args)
            except BaseException as raised:
                error = raised
            with self._ending:
                self._can_stop = False
        except Stopped as late:
            # Told to stop between the call's end and here.
            error = late
        # The loop may be closed by the time a stuck call returns: there is nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self._outcome.cancelled():
            return
        if error is None:
            self._outcome.set_result(result)
        elif isinstance(error, Stopped):
            self._outcome.set_exception(TimeoutError())
        elif isinstance(error, StopIteration):
            # A future cannot carry it.
            self._outcome.set_exception(RuntimeError("StopIteration"))
        else:
            self._outcome.set_exception(error)


def die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
