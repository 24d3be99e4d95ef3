"""`environment`: world classes in, a hud `Environment` out, each class a template of it.

The result is an ordinary env file's `env`: hud's LocalRuntime, SubprocessRuntime, a served URL and `turngrad.pool` all
run it. Its MCP capability is named "tools"; an episode's token arrives in the start frame's `bindings`.
"""

from __future__ import annotations

import inspect
import os
import stat
import sys
from collections.abc import AsyncGenerator
from typing import Any

from hud.capabilities import Capability
from hud.environment import Environment
from hud.graders.results import EvaluationResult

from turngrad.envkit.endpoint import Endpoint
from turngrad.envkit.limits import die_with_parent
from turngrad.envkit.live import Episodes
from turngrad.envkit.world import World
from turngrad.loopback import loopback_id

CAPABILITY = "tools"


def environment(name: str, *, idle_seconds: float = 3600.0, **worlds: type[World]) -> Environment:
    """A hud environment whose templates are `worlds`, by keyword.

    An episode ends when hud ends its task, and at most `idle_seconds` after its last call.
    """
    if not worlds:
        raise TypeError(f"environment({name!r}) needs at least one world: environment({name!r}, play=MyWorld)")
    env = Environment(name=name)
    episodes = Episodes(idle_seconds)
    endpoint = Endpoint(episodes, name)

    @env.initialize
    async def _start() -> None:
        if _is_child_server():
            die_with_parent()
        env.add_capability(Capability.mcp(name=CAPABILITY, url=await endpoint.start()))

    @env.shutdown
    async def _stop() -> None:
        await episodes.close_all()
        await endpoint.stop()

    for template_id, world in worlds.items():
        env.template(id=template_id, description=inspect.getdoc(world) or "")(_template(template_id, world, episodes))
    return env


def _template(template_id: str, world: type[World], episodes: Episodes) -> Any:
    async def play(**arguments: Any) -> AsyncGenerator[Any, Any]:
        episode = await episodes.open(world, arguments)
        try:
            binding = {
                "auth_token": episode.token,
                "user_turns": episode.world.user_turns,
                "parallel_safe": False,
                # Says that `turngrad.envkit.client` can speak to this endpoint.
                "plain_json": True,
                # A client on the same loopback dials the endpoint itself, spared two hops through hud's tunnel.
                "loopback": loopback_id(),
            }
            answer = yield {"prompt": episode.prompt, "bindings": {CAPABILITY: binding}}
            grade = await episode.finish(answer if isinstance(answer, str) else "")
            yield EvaluationResult(reward=grade.reward, info=grade.info)
        finally:
            await episodes.close(episode)

    play.__name__ = template_id
    play.__doc__ = inspect.getdoc(world)
    # hud reads the template's signature: it checks the task's arguments and publishes their schema.
    play.__signature__ = inspect.signature(world, eval_str=True)  # pyright: ignore[reportFunctionMemberAccess]
    return play


def _is_child_server() -> bool:
    """Whether this process is hud's server started by a program that reads its port from a pipe, as SubprocessRuntime does.

    A server in the trainer's own process must not tie that process to its parent, nor one started from a terminal.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != "hud.environment.server":
        return False
    try:
        return stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:
        return False
