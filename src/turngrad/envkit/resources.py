"""Whether a failure is the call's own or the process's: what a server has run out of is no doing of the policy's (C7)."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

_PROBE_BYTES = 32 * 2**20
"""A process that cannot have this much more serves nobody."""
ANNOUNCEMENT = "TURNGRAD_SHORT_OF "
"""Begins the line by which a pool's server says that it should get no more rollouts."""
_AFTERMATH_SECONDS = 5.0
"""Calls that ran into the same shortage report it a little later, when the one that caused it may have given all back."""


class Shortage:
    """What this process has run out of, as its calls' errors tell. One a process; `report` is told of every shortage."""

    def __init__(self) -> None:
        self.report: Callable[[str], None] = lambda what: None
        self._last_seen = -_AFTERMATH_SECONDS

    def behind(self, error: BaseException) -> str | None:
        """What the process is out of, where that explains `error`; None where the call alone asked for more than there is."""
        what = self._behind(error)
        if what is not None:
            self.report(what)
        return what

    def _behind(self, error: BaseException) -> str | None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return "file handles"
        if isinstance(error, MemoryError):
            if time.monotonic() - self._last_seen < _AFTERMATH_SECONDS:
                return "memory"
            try:
                bytearray(_PROBE_BYTES)
            except MemoryError:
                self._last_seen = time.monotonic()
                return "memory"
        elif (isinstance(error, OSError) and error.errno == errno.ENOMEM) or _is_thread_refusal(error):
            return "memory or threads"
        return None


def _is_thread_refusal(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


SHORTAGE = Shortage()
