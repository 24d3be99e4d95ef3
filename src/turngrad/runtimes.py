"""Where the environment of a taskset runs: a placement becomes a hud provider, for the length of a run.

In: a `Placement`. Out: a provider that `hud.eval.rollout` leases an environment from, one lease a rollout. Invariant: every
rollout meets an environment that no other can change: a copy of its own, or an episode of its own behind a token.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from turngrad.errors import UserError

if TYPE_CHECKING:
    from hud.eval import Task
    from hud.eval.runtime import Provider, Runtime

_HANDLES_PER_ROLLOUT, _OTHER_HANDLES = 4, 256
"""Three connections to the environment and one to the sampler; the rest of the program. Twice that is asked for."""

RuntimeKind = Literal["local", "pool", "subprocess", "url", "docker", "modal", "daytona", "hud"]


@dataclass(frozen=True, slots=True)
class Placement:
    """`kind` of runtime, and what it needs.

    local: `env_file` anew in this process for every rollout. pool: a few server processes of `env_file` shared by all, for
    environments that keep their episodes apart (`env` names one of several in the file, `env_vars` are added to theirs,
    `limit_memory` caps their address space). subprocess: one process a rollout. url: served already, at `url`. docker,
    modal, daytona: `image`, or what each task names. hud: on the HUD platform. `before` is run first, and may refuse.
    """

    kind: RuntimeKind
    env_file: Path | None = None
    env: str | None = None
    url: str | None = None
    image: str | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict)
    limit_memory: bool = True
    before: Callable[[], Awaitable[object]] | None = field(default=None, compare=False)


@asynccontextmanager
async def open_runtime(placement: Placement, *, first: Task | None = None, concurrent: int = 64) -> AsyncIterator[Provider]:
    """Serve the environment to `concurrent` rollouts at once. `first` is a task to try a lease with where a lease is remote.

    Raises:
        UserError: an environment that does not start, an extra or a program that is missing, a platform that refuses, more
            rollouts than this system allows file handles for.
    """
    _allow_handles(concurrent)
    if placement.before is not None:
        await placement.before()
    if placement.kind == "pool":
        from turngrad.pool import PoolError, ServerPool

        assert placement.env_file is not None
        memory: dict[str, Any] = {} if placement.limit_memory else {"memory_mb": None}
        procs = pool_processes(concurrent)
        width = -(-concurrent // procs)
        pool = ServerPool(placement.env_file, env=placement.env, procs=procs, width=width, env_vars=placement.env_vars, **memory)
        async with pool:
            try:
                await pool.warm()
            except PoolError as error:
                raise UserError(str(error)) from error
            yield pool
    elif placement.kind == "hud":
        provider = _Platform()
        if first is not None:
            await provider.attempt(first)
        yield provider
    else:
        yield _provider(placement)


def _allow_handles(concurrent: int) -> None:
    """Raise this process's own limit on file handles, often 1024 or 256, to what `concurrent` rollouts take."""
    needed = _HANDLES_PER_ROLLOUT * concurrent + _OTHER_HANDLES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"--max-concurrent {concurrent} takes about {needed} file handles, and this system allows a process {hard}; "
            "lower it, or raise the hard limit of `ulimit -n`"
        )
    wanted = 2 * needed if hard == resource.RLIM_INFINITY else min(2 * needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def pool_processes(concurrent: int) -> int:
    """How many servers share `concurrent` rollouts: one to 64 of them, on at most half of the processors.

    One costs three seconds of processor time to start, and a second pays only where a processor is left for it.
    """
    return max(1, min((os.cpu_count() or 1) // 2, -(-concurrent // 64)))


def _provider(placement: Placement) -> Provider:
    from hud.eval import runtime

    if placement.kind in ("modal", "daytona") and importlib.util.find_spec(placement.kind) is None:
        raise UserError(f"--runtime {placement.kind} needs hud's extra of that name: pip install 'hud[{placement.kind}]'")
    if placement.kind == "docker" and shutil.which("docker") is None:
        raise UserError("--runtime docker needs the docker command; there is none on the PATH")
    if placement.kind == "daytona" and not os.environ.get("DAYTONA_API_KEY"):
        raise UserError("--runtime daytona needs DAYTONA_API_KEY in the environment")
    if placement.kind == "url":
        return runtime.Runtime(placement.url or "")
    if placement.kind == "docker":
        return runtime.DockerRuntime(placement.image)
    if placement.kind == "modal":
        return runtime.ModalRuntime(placement.image)
    if placement.kind == "daytona":
        return runtime.DaytonaRuntime(image=placement.image)
    assert placement.env_file is not None
    if placement.kind == "subprocess":
        return runtime.SubprocessRuntime(placement.env_file)
    _quiet_servers()
    return runtime.LocalRuntime(placement.env_file)


def _quiet_servers() -> None:
    """Servers that a user's file starts in this process would print a banner and look for updates, once a rollout."""
    import fastmcp

    fastmcp.settings.show_server_banner = False
    fastmcp.settings.check_for_updates = "off"
    fastmcp.settings.log_level = "WARNING"


class _Platform:
    """hud's platform runtime, with failures to lease said in a sentence."""

    def __init__(self) -> None:
        from hud.eval.runtime import HUDRuntime
        from hud.settings import settings

        self._inner = HUDRuntime()
        self._url = settings.hud_runtime_url

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[Runtime]:
        async with AsyncExitStack() as stack:
            try:
                runtime = await stack.enter_async_context(self._inner(task))
            except Exception as error:
                raise RuntimeError(self._explain(task, error)) from error
            yield runtime

    async def attempt(self, task: Task) -> None:
        """Lease an environment once and give it back. Raises UserError."""
        try:
            async with self(task):
                pass
        except RuntimeError as error:
            raise UserError(str(error)) from error

    def _explain(self, task: Task, error: Exception) -> str:
        from turngrad.task_files import explain_platform

        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == 404:
            return f"the HUD platform has no deployed environment {task.env!r} for this key; deploy it with `hud deploy`"
        if status is not None and status >= 500:
            return f"the environment {task.env!r} is not ready on the HUD platform ({self._url}: HTTP {status}); try again later"
        return explain_platform(error, self._url)
