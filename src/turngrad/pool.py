"""A pool of environment server processes, each leased to many rollouts at once.

In: an env file. Out: a hud provider (call it with a task, get a `Runtime` for the length of a lease). Invariants: a server
serves at most `width` leases; a dead or hung one costs its own leases only and is replaced at once, a worn one (its memory or
file handles nearly used up) costs none: its rollouts end on it while the next serves; no server outlives this process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from hud.eval import Task
from hud.eval.runtime import Runtime

from turngrad.envkit import quiet
from turngrad.server_process import POLL_SECONDS, ServerProcess, ServerSpec

LOGGER = logging.getLogger("turngrad.pool")

START_ATTEMPTS = 3
"""Starts in a row that may fail before a slot is given up and, with no slot left, leases are refused."""
_REFUSED_SECONDS = 1.0
"""How long hud's client tries a port that it was given and that takes no connection; its own limit is four minutes."""
STEADY_SECONDS = 10.0
"""A server that dies sooner, and before a rollout has ended on it, counts as a failed start."""


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
        self.spec = ServerSpec(self.source, env, memory_mb, cpu_seconds, dict(env_vars or {}))
        self.procs = procs
        self.width = width
        self.ready_seconds = ready_seconds
        self.hang_seconds = hang_seconds
        self.replaced = 0
        """Servers that died, hung or were worn and were replaced, so far."""
        self._live: list[ServerProcess] = []
        self._spare: ServerProcess | None = None
        self._stocking = asyncio.Lock()
        self._supervisors: list[asyncio.Task[None]] = []
        self._retiring: set[asyncio.Task[None]] = set()
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
        owners, self._supervisors = [*self._supervisors, *self._retiring], []
        for owner in owners:
            owner.cancel()
        # Each ends its own server on its way out.
        await asyncio.gather(*owners, return_exceptions=True)
        if self._spare is not None:
            spare, self._spare = self._spare, None
            await spare.end()
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
                    # For a server that is gone a moment later; one that serves may take its time to answer.
                    try:
                        yield Runtime(f"tcp://127.0.0.1:{server.port}", {"ready_timeout": _REFUSED_SECONDS})
                    finally:
                        server.served += server.alive
                    return
            finally:
                server.leases -= 1
                self._notify()

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers that serve now."""
        return [server.process.pid for server in self._live]

    def _least_busy(self) -> ServerProcess | None:
        sound = (server for server in self._live if not server.refused and server.worn is None)
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
            server = await self._next_server()
            served_from = None
            try:
                try:
                    await server.serve(self.ready_seconds)
                    served_from = time.monotonic()
                    self._live.append(server)
                    self._notify()
                    if self.replaced:
                        await self._stock_spare()
                    reason = await server.watch(self.hang_seconds)
                    self.replaced += 1
                except TimeoutError:
                    reason = f"did not serve within {self.ready_seconds:g} s"
                except EOFError:
                    reason = "ended before it served"
            finally:
                if server in self._live:
                    self._live.remove(server)
                if server.worn is not None and server.alive:
                    self._retire(server)
                else:
                    await server.end()
            lived = 0.0 if served_from is None else time.monotonic() - served_from
            steady = lived > STEADY_SECONDS or server.served > 0
            failures = 0 if steady else failures + 1
            self._error = PoolError(f"environment server of {self.source.name} {reason}; its last words:\n{server.last_words}")
            LOGGER.warning("%s", self._error)
        self._notify()

    async def _next_server(self) -> ServerProcess:
        """The spare, or a new one."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.alive:
            return spare
        if spare is not None:
            await spare.end()
        return await ServerProcess.launch(self.spec)

    async def _stock_spare(self) -> None:
        """Where a server died others will: from then on one more waits, its imports done."""
        async with self._stocking:
            if self._spare is None:
                self._spare = await ServerProcess.launch(self.spec)

    def _retire(self, server: ServerProcess) -> None:
        task = asyncio.create_task(self._end_after_leases(server))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _end_after_leases(self, server: ServerProcess) -> None:
        watching = asyncio.create_task(server.watch(self.hang_seconds, until_worn=False))
        try:
            while server.leases and not watching.done():
                await asyncio.sleep(POLL_SECONDS)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await server.end()
