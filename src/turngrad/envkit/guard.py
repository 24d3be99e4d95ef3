"""Guard: calls whose cost the policy chooses run in a child process with limits on processor time and memory.

Some legal calls never end and hold the interpreter's lock inside C code (`9 ** 100_000_000`), so that neither a thread nor
an event loop can stop them. A guard keeps a few small child processes that load one function from one file; a child that
spends more than `cpu_seconds` on a call is killed by the kernel's own timer, and the next call gets a new child. Limits
are in processor time, so a busy machine does not change which calls pass.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

CHILD = Path(__file__).with_name("guard_child.py")


class GuardStopped(Exception):
    """The call was killed at its limit."""


class Guard:
    """Calls `function(*arguments)` of `source` (a Python file) in child processes; arguments and result are plain JSON.

    `wall_seconds` bounds what processor time cannot see (a sleep). Calls beyond `workers` at once wait for a free child.
    """

    def __init__(
        self,
        source: Path,
        function: str,
        *,
        cpu_seconds: float = 2.0,
        wall_seconds: float = 20.0,
        memory_mb: int = 1024,
        workers: int = 4,
    ) -> None:
        self.source = source
        self.function = function
        self.cpu_seconds = cpu_seconds
        self.wall_seconds = wall_seconds
        self.memory_mb = memory_mb
        self._slots = threading.BoundedSemaphore(workers)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def call(self, *arguments: Any) -> Any:
        """The function's result. Raises GuardStopped at the limit, RuntimeError with the child's words if it raised."""
        deadline = time.monotonic() + self.wall_seconds
        if not self._slots.acquire(timeout=self.wall_seconds):
            raise GuardStopped(f"no free process within {self.wall_seconds:g} s")
        try:
            with self._lock:
                child = self._idle.pop() if self._idle else self._start()
            try:
                reply = self._exchange(child, json.dumps(arguments).encode() + b"\n", deadline)
            except BaseException:
                child.kill()
                _reap(child)
                raise
            with self._lock:
                self._idle.append(child)
        finally:
            self._slots.release()
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["result"]

    def close(self) -> None:
        """End the idle children."""
        with self._lock:
            children, self._idle = self._idle, []
        for child in children:
            child.kill()
            _reap(child)

    def _start(self) -> subprocess.Popen[bytes]:
        limits = [str(self.cpu_seconds), str(self.memory_mb)]
        command = [sys.executable, str(CHILD), str(self.source), self.function, *limits]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _exchange(self, child: subprocess.Popen[bytes], request: bytes, deadline: float) -> dict[str, Any]:
        stdin, stdout = _pipes(child)
        readable = select.poll()
        readable.register(stdout, select.POLLIN)
        line = b""
        try:
            stdin.write(request)
            stdin.flush()
            while not line.endswith(b"\n"):
                ready = readable.poll(1000 * max(0.0, deadline - time.monotonic()))
                chunk = os.read(stdout.fileno(), 1 << 20) if ready else b""
                if not chunk:
                    break
                line += chunk
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            raise GuardStopped(f"stopped: more than {self.cpu_seconds:g} s of processor time, or {self.memory_mb} MB of memory")
        return json.loads(line)


def _pipes(child: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert child.stdin is not None
    assert child.stdout is not None
    return child.stdin, child.stdout


def _reap(child: subprocess.Popen[bytes]) -> None:
    for pipe in _pipes(child):
        try:
            pipe.close()
        except BrokenPipeError:
            continue
    child.wait()
