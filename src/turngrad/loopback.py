"""Whether two processes share a loopback interface, so that one can dial what the other serves on 127.0.0.1."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def loopback_id() -> str | None:
    """A name of this process's loopback interface, equal in two processes if and only if they share it.

    The kernel's boot id and the network namespace; None where there is no /proc to read them from.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return None
