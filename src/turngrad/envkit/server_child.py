"""A pool's server process: `server_child.py PARENT_PID MEMORY_MB CPU_SECONDS ENV_FILE [ENV_NAME]`, 0 for no limit.

Started as a plain file, so that it ties itself to its parent and takes its limits before the 3 s that importing hud costs.
Then it waits for the end of its standard input, and from there on it is hud's own server.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, memory_mb, cpu_seconds, source, *names = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        # The parent was gone before the line above could tie us to it.
        sys.exit(1)
    _limit(resource.RLIMIT_AS, int(memory_mb) * 2**20)
    _limit(resource.RLIMIT_CPU, int(cpu_seconds))
    # This folder holds modules of the kit that must not be importable by their bare names.
    sys.path[0] = str(Path(source).parent)
    # Only now, for the same 3 s.
    from hud.environment import server

    from turngrad.envkit import resources
    from turngrad.envkit.quiet import drop_stream_noise

    drop_stream_noise()
    resources.SHORTAGE.report = lambda what: print(resources.ANNOUNCEMENT + what, flush=True)
    while os.read(0, 1):
        pass
    if os.getppid() != int(parent):
        # What ended the input was the parent's own end.
        sys.exit(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.argv = ["hud.environment.server", source, *(part for name in names for part in ("--env", name))]
    server.main()


def _limit(what: int, value: int) -> None:
    if value:
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (value, hard))


if __name__ == "__main__":
    main()
