"""A pool's server process: `server_child.py PARENT_PID MEMORY_MB CPU_SECONDS ENV_FILE [ENV_NAME]`, 0 for no limit.

Started as a plain file, so that it ties itself to its parent and takes its limits before the 3 s that importing hud costs.
From there on it is hud's own server.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from limits import die_with_parent, limit_memory
from quiet import drop_stream_cancellations


def main() -> None:
    parent, memory_mb, cpu_seconds, source, *names = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):
        # The parent was gone before the line above could tie us to it.
        sys.exit(1)
    if int(memory_mb):
        limit_memory(int(memory_mb))
    if int(cpu_seconds):
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds), hard))
    drop_stream_cancellations()
    # This folder holds modules of the kit that must not be importable by their bare names.
    sys.path[0] = str(Path(source).parent)
    from hud.environment import server

    sys.argv = ["hud.environment.server", source, *(part for name in names for part in ("--env", name))]
    server.main()


if __name__ == "__main__":
    main()
