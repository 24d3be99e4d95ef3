"""One environment server: a child process that serves hud's control channel, watched until it ends.

In: what to serve and within which limits. Out: a port, and the reason when the server is no longer to be used. Invariants: the
process and all it started are gone after `end`, and when this process dies however it dies (C12); nothing a server prints
reaches the terminal, its last words are kept for errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hud.environment.server import PORT_ANNOUNCEMENT

from turngrad.envkit import quiet
from turngrad.envkit.resources import ANNOUNCEMENT

CHILD = Path(quiet.__file__).with_name("server_child.py")
LAST_WORDS = 30
"""Lines of a server's output kept for its obituary."""
POLL_SECONDS = 0.2
PING_SECONDS = 5.0
TERM_SECONDS = 3.0
WORN_SHARE = 0.85
"""Of its address space or its file handles in use, a server takes no further rollouts."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What a server serves: a file, and the environment in it where it holds several; its limits; variables of its own.

    `memory_mb` caps the address space, `cpu_seconds` the total processor time; None is no limit.
    """

    source: Path
    env: str | None = None
    memory_mb: int | None = None
    cpu_seconds: int | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict)


class ServerProcess:
    """A server from its launch on. Between `launch` and `serve` it has imported hud, three seconds of work, and waits."""

    def __init__(self, spec: ServerSpec, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.port = 0
        self.leases = 0
        self.served = 0
        """Leases that have ended while it lived."""
        self.refused = False
        self.worn: str | None = None
        """What is nearly used up: it should get no more leases."""
        self._spec = spec
        self._words: deque[str] = deque(maxlen=LAST_WORDS)
        self._port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._drain, args=(asyncio.get_running_loop(),), daemon=True).start()

    @classmethod
    async def launch(cls, spec: ServerSpec) -> Self:
        """Start the process. Cancelled, it leaves none behind."""
        limits = [str(os.getpid()), str(spec.memory_mb or 0), str(spec.cpu_seconds or 0)]
        command = [sys.executable, str(CHILD), *limits, str(spec.source), *([spec.env] if spec.env else [])]
        starting = _LAUNCHER.start(command, spec.source if spec.source.is_dir() else spec.source.parent, spec.env_vars)
        try:
            return cls(spec, await asyncio.wrap_future(starting))
        except asyncio.CancelledError:
            # Too late to stop the start: the process ends as soon as there is one.
            starting.add_done_callback(_end)
            raise

    @property
    def last_words(self) -> str:
        return "\n".join(self._words) or "(none)"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    async def serve(self, seconds: float) -> None:
        """Let it load its environment and wait for the port. Raises TimeoutError, or EOFError when the process ended first."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        async with asyncio.timeout(seconds):
            self.port = await self._port

    async def accepts(self) -> bool:
        """Whether the server takes connections at this moment. hud's client would try a dead one's port for minutes."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            self.refused = True
            return False
        writer.close()
        return True

    async def watch(self, hang_seconds: float, *, until_worn: bool = True) -> str:
        """Return, with the reason, when the process has ended, has not answered for `hang_seconds`, or is `worn`."""
        last_ping = time.monotonic()
        short: str | None = None
        while (status := self.process.poll()) is None:
            await asyncio.sleep(POLL_SECONDS)
            if self.refused and self.alive:
                return "refused a connection"
            if until_worn and self.worn is not None:
                return f"is worn out: {self.worn}"
            if time.monotonic() - last_ping > PING_SECONDS:
                # Before the ping, which a server without a free file handle would not answer.
                short, before = self._nearly_used_up(), short
                if short and before:
                    # Found two times in a row: one call may take much and give it back.
                    self.worn = self.worn or short
                try:
                    async with asyncio.timeout(hang_seconds):
                        await self._ping()
                except TimeoutError:
                    # It would not hear a SIGTERM either.
                    self.process.kill()
                    return f"did not answer for {hang_seconds:g} s"
                except OSError:
                    # Refused or reset: the next poll tells how it ended.
                    continue
                last_ping = time.monotonic()
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"

    async def end(self) -> None:
        """SIGTERM, then SIGKILL to whatever is left of the server's process group."""
        if self.alive:
            self.process.terminate()
            deadline = time.monotonic() + TERM_SECONDS
            while self.alive and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def _nearly_used_up(self) -> str | None:
        """What there is too little left of for further rollouts; None where there is enough, or no /proc to tell."""
        folder = Path(f"/proc/{self.process.pid}")
        try:
            pages = int((folder / "statm").read_text().split()[0])
            handles = len(os.listdir(folder / "fd"))
            limit, _ = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        except (OSError, AttributeError):
            return None
        megabytes = pages * os.sysconf("SC_PAGE_SIZE") // 2**20
        if self._spec.memory_mb is not None and megabytes > WORN_SHARE * self._spec.memory_mb:
            return f"{megabytes} of {self._spec.memory_mb} MB of address space in use"
        if 0 < limit < handles / WORN_SHARE:
            return f"{handles} of {limit} file handles in use"
        return None

    async def _ping(self) -> None:
        """One `hello` on the control channel, as hud's client sends it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for method in ("hello", "bye"):
                writer.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}).encode() + b"\n")
                await writer.drain()
                await reader.readline()
        finally:
            writer.close()

    def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the output to its end in a thread: the port once, the last lines always."""
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for raw in output:
                line = raw.decode("utf-8", "replace").rstrip()
                if line.startswith(PORT_ANNOUNCEMENT):
                    _settle(loop, self._port, int(line.removeprefix(PORT_ANNOUNCEMENT)))
                elif line.startswith(ANNOUNCEMENT):
                    self.worn = self.worn or f"short of {line.removeprefix(ANNOUNCEMENT)}"
                else:
                    self._words.append(line[-1000:])
        _settle(loop, self._port, None)


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[int], port: int | None) -> None:
    def settle() -> None:
        if future.done():
            return
        if port is None:
            future.set_exception(EOFError())
            # A spare that nobody asked for its port has nobody to tell.
            future.exception()
        else:
            future.set_result(port)

    # The loop is closed when the pool was torn down with it.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


def _end(starting: Future[subprocess.Popen[bytes]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()
        starting.result().wait()


class _Launcher:
    """Starts processes from one thread that lives as long as this process.

    Linux kills a child tied to its parent when the *thread* that started it ends. Servers started from the thread of an
    event loop would die with that thread, long before the program.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[list[str], Path, Mapping[str, str], Future[subprocess.Popen[bytes]]]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self, command: list[str], directory: Path, env_vars: Mapping[str, str]) -> Future[subprocess.Popen[bytes]]:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="launcher", daemon=True)
                self._thread.start()
        future: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((command, directory, env_vars, future))
        return future

    def _serve(self) -> None:
        while True:
            command, directory, env_vars, future = self._requests.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(
                    subprocess.Popen(
                        command,
                        cwd=directory,
                        # A heap per thread would reserve address space by the gigabyte, against the limit on it.
                        env={**os.environ, **env_vars, "MALLOC_ARENA_MAX": "2"},
                        # Its end is the word to serve.
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        # A Ctrl-C in the terminal is for the trainer, which then ends its servers in order.
                        start_new_session=True,
                    )
                )
            except BaseException as error:
                future.set_exception(error)


_LAUNCHER = _Launcher()
