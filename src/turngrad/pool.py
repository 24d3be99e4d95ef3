"""A pool of environment server processes, each leased to many rollouts at once.

In: an env file. Out: a hud provider (call it with a task, get a `Runtime` for the length of a lease). Invariants: a server
serves at most `width` leases; a dead or hung one costs its own leases only and is replaced at once; no server outlives
this process, however it ends (C12); nothing a server prints reaches the terminal, its last words go into errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from hud.environment.server import PORT_ANNOUNCEMENT
from hud.eval import Task
from hud.eval.runtime import Runtime

from turngrad.envkit import quiet

LOGGER = logging.getLogger("turngrad.pool")

CHILD = Path(quiet.__file__).with_name("server_child.py")
LAST_WORDS = 30
"""Lines of a server's output kept for its obituary."""
START_ATTEMPTS = 3
"""Starts in a row that may fail before a slot is given up and, with no slot left, leases are refused."""
STEADY_SECONDS = 10.0
"""A server that dies sooner counts as a failed start."""
POLL_SECONDS = 0.2
PING_SECONDS = 5.0
TERM_SECONDS = 3.0


class PoolError(RuntimeError):
    """No server can be had; the message ends with the last words of the one that failed."""


class ServerPool:
    """`procs` servers of one env file, each leased to at most `width` rollouts; use it as an async context manager.

    `ready_seconds` bounds a start, `hang_seconds` a server's silence on its control channel. `memory_mb` and
    `cpu_seconds` cap a server's address space and its total processor time; `env_vars` are added to its environment.
    Importing hud costs 3 s of processor time a server, and one server carries 64 rollouts, so more than one pays only
    with cores to spare.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        env: str | None = None,
        procs: int = 1,
        width: int = 64,
        ready_seconds: float = 120.0,
        hang_seconds: float = 30.0,
        memory_mb: int | None = 4096,
        cpu_seconds: int | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> None:
        if procs < 1 or width < 1:
            raise ValueError(f"procs={procs}, width={width}: a pool needs at least one server and one lease on it")
        self.source = Path(source).resolve()
        if not self.source.exists():
            raise FileNotFoundError(f"no environment file at {self.source}")
        self.env = env
        self.procs = procs
        self.width = width
        self.ready_seconds = ready_seconds
        self.hang_seconds = hang_seconds
        self.memory_mb = memory_mb
        self.cpu_seconds = cpu_seconds
        self.env_vars = dict(env_vars or {})
        self.replaced = 0
        """Servers that died or hung and were replaced, so far."""
        self._live: list[_Server] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._error: PoolError | None = None

    async def __aenter__(self) -> Self:
        if self._supervisors:
            raise RuntimeError("this pool is already open")
        quiet.drop_stream_noise()
        self._error = None
        self._supervisors = [asyncio.create_task(self._supervise()) for _ in range(self.procs)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        supervisors, self._supervisors = self._supervisors, []
        for supervisor in supervisors:
            supervisor.cancel()
        # Each supervisor ends its own server on its way out.
        await asyncio.gather(*supervisors, return_exceptions=True)
        self._notify()

    async def warm(self) -> None:
        """Wait until every server serves. Raises PoolError when one cannot be started."""
        while len(self._live) < self.procs:
            if not self._supervisors or any(supervisor.done() for supervisor in self._supervisors):
                raise self._refusal()
            await self._changed.wait()

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[Runtime]:
        """Lease the least busy server, waiting for one when all are full. Raises PoolError when there is none to wait for."""
        if task.runtime_config is not None:
            raise ValueError("a server pool cannot honour a task's runtime_config; use the runtime the task was made for")
        while True:
            if (server := self._least_busy()) is None:
                if all(supervisor.done() for supervisor in self._supervisors):
                    raise self._refusal()
                await self._changed.wait()
                continue
            server.leases += 1
            try:
                if await server.accepts():
                    yield Runtime(f"tcp://127.0.0.1:{server.port}")
                    return
            finally:
                server.leases -= 1
                self._notify()

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers that serve now."""
        return [server.process.pid for server in self._live]

    def _least_busy(self) -> _Server | None:
        sound = (server for server in self._live if not server.refused)
        server = min(sound, key=lambda server: server.leases, default=None)
        return server if server is not None and server.leases < self.width else None

    def _refusal(self) -> PoolError:
        return self._error or PoolError("the pool is closed; lease inside `async with ServerPool(...)`")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _supervise(self) -> None:
        """Keep one server alive: start it, watch it, end it, start the next."""
        failures = 0
        while failures < START_ATTEMPTS:
            server = await _launch(self)
            served_from = None
            try:
                try:
                    await server.ready(self.ready_seconds)
                    served_from = time.monotonic()
                    self._live.append(server)
                    self._notify()
                    reason = await server.watch(self.hang_seconds)
                    self.replaced += 1
                except TimeoutError:
                    reason = f"did not serve within {self.ready_seconds:g} s"
                except EOFError:
                    reason = "ended before it served"
            finally:
                if server in self._live:
                    self._live.remove(server)
                await server.end()
            steady = served_from is not None and time.monotonic() - served_from > STEADY_SECONDS
            failures = 0 if steady else failures + 1
            self._error = PoolError(f"environment server of {self.source.name} {reason}; its last words:\n{server.last_words}")
            LOGGER.warning("%s", self._error)
        self._notify()


class _Server:
    """One server process: its port, its leases, its output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.port = 0
        self.leases = 0
        self.refused = False
        self._words: deque[str] = deque(maxlen=LAST_WORDS)
        self._port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._drain, args=(asyncio.get_running_loop(),), daemon=True).start()

    @property
    def last_words(self) -> str:
        return "\n".join(self._words) or "(none)"

    async def ready(self, seconds: float) -> None:
        """Wait for the port. Raises TimeoutError, or EOFError when the process ended first."""
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

    async def watch(self, hang_seconds: float) -> str:
        """Return, with the reason, when the process has ended or has not answered for `hang_seconds`."""
        last_ping = time.monotonic()
        while (status := self.process.poll()) is None:
            await asyncio.sleep(POLL_SECONDS)
            if self.refused and self.process.poll() is None:
                return "refused a connection"
            if time.monotonic() - last_ping > PING_SECONDS:
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
        if self.process.poll() is None:
            self.process.terminate()
            deadline = time.monotonic() + TERM_SECONDS
            while self.process.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

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
                else:
                    self._words.append(line[-1000:])
        _settle(loop, self._port, None)


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[int], port: int | None) -> None:
    def settle() -> None:
        if future.done():
            return
        if port is None:
            future.set_exception(EOFError())
        else:
            future.set_result(port)

    # The loop is closed when the pool was torn down with it.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


async def _launch(pool: ServerPool) -> _Server:
    limits = [str(os.getpid()), str(pool.memory_mb or 0), str(pool.cpu_seconds or 0)]
    command = [sys.executable, str(CHILD), *limits, str(pool.source), *([pool.env] if pool.env else [])]
    source_dir = pool.source if pool.source.is_dir() else pool.source.parent
    starting = _LAUNCHER.start(command, source_dir, pool.env_vars)
    try:
        return _Server(await asyncio.wrap_future(starting))
    except asyncio.CancelledError:
        # Too late to stop the start: the process ends as soon as there is one.
        starting.add_done_callback(_end)
        raise


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
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        # A Ctrl-C in the terminal is for the trainer, which then ends its servers in order.
                        start_new_session=True,
                    )
                )
            except BaseException as error:
                future.set_exception(error)


_LAUNCHER = _Launcher()
