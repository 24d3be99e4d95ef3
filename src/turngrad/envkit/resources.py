"""Whether a failure is the call's own or the process's: what a server has run out of is no doing of the policy's (C7)."""

from __future__ import annotations

import errno
import os
import traceback

_MEMORY_PROBE_BYTES = 32 * 2**20
"""A process that cannot have this much more serves nobody."""


def exhausted(error: BaseException) -> str | None:
    """What this process is out of, where that explains `error`; None where the call alone asked for too much.

    A tool that allocates without end fails alone: once it has unwound, the memory is there again for the others.
    """
    if isinstance(error, MemoryError):
        # The failed call's own variables live on in its frames.
        traceback.clear_frames(error.__traceback__)
        try:
            bytearray(_MEMORY_PROBE_BYTES)
        except MemoryError:
            return "memory"
    elif isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return "file handles"
    elif (isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN)) or _is_thread_refusal(error):
        return "memory or threads"
    return None


def _is_thread_refusal(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"
