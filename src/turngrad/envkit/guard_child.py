"""The child of a Guard: `guard_child.py SOURCE FUNCTION CPU_SECONDS MEMORY_MB`, one JSON request and reply a line.

Started as a plain file, so that it imports neither turngrad nor hud: it costs some 10 MB and starts in 50 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import runpy
import signal
import sys
from pathlib import Path


def main() -> None:
    source, name, cpu_seconds, memory_mb = sys.argv[1:]
    memory = int(memory_mb) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path[0] = str(Path(source).parent)
    function = runpy.run_path(source)[name]
    # Requests arrive on the real stdin and replies leave on the real stdout; the guarded code gets neither.
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    for line in requests:
        # SIGPROF's default action ends the process, from the kernel, whoever holds the interpreter's lock.
        signal.setitimer(signal.ITIMER_PROF, float(cpu_seconds))
        try:
            reply = {"result": function(*json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    # The parent's end of stdin closes when the parent goes, however it goes: the loop ends.
    with contextlib.suppress(BrokenPipeError):
        main()
