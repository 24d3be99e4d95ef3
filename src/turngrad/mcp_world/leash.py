"""Run a command that must not outlive its owner: `leash.py LIFELINE_FD FOLDER COMMAND...`.

Started as a plain file. When the command ends, or the other end of the lifeline closes because the owner closed it or died,
everything the command started is killed and FOLDER removed. A pipe works where a signal does not: uvx and npx run the
server as a child of a child, and an owner that is killed can send nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ENDING = threading.Lock()


def main() -> None:
    lifeline, folder, *command = sys.argv[1:]
    os.set_inheritable(int(lifeline), False)
    if sys.platform == "linux":
        # What the command detaches from itself becomes a child of this process, to be found at the end.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setpgroup=0, setsigdef=[signal.SIGPIPE])
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        end(None, folder, 127)
        return
    # The command alone holds the pipes of its protocol: its end must be seen at the other side.
    os.close(0)
    os.close(1)
    threading.Thread(target=watch, args=(int(lifeline), child, folder), daemon=True).start()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    end(child, folder, code if code >= 0 else 128 - code)


def watch(lifeline: int, child: int, folder: str) -> None:
    while os.read(lifeline, 1):
        pass
    end(child, folder, 0)


def end(child: int | None, folder: str, code: int) -> None:
    """Kill what is left, remove the folder, exit; once, whichever thread comes first."""
    with _ENDING:
        if child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)


def descendants(root: int) -> list[int]:
    """Every process below `root`, by Linux's /proc; none elsewhere."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found, pending = [], [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


if __name__ == "__main__":
    main()
