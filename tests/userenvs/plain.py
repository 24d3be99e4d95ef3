"""A hud environment as users write them: module state, MCP servers of its own, system messages, subscores."""

import asyncio
import socket
from typing import Any

import uvicorn
from hud.capabilities import Capability
from hud.environment import Environment
from hud.graders.results import EvaluationResult, SubScore
from mcp.server.fastmcp import FastMCP

env = Environment(name="plain")
played = {"count": 0}
shelf: list[str] = []
servers: list[uvicorn.Server] = []


def _server(name: str) -> FastMCP:
    server = FastMCP(name, stateless_http=True, json_response=True)

    @server.tool()
    def put(item: str) -> str:
        """Put an item on the shelf."""
        shelf.append(f"{name}:{item}")
        return f"{len(shelf)} items"

    return server


@env.initialize
async def start() -> None:
    for name in ("left", "right"):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(_server(name).streamable_http_app(), log_level="error"))
        servers.append(server)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not server.started:
            await asyncio.sleep(0.01)
        env.add_capability(Capability.mcp(name=name, url=f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"))


@env.shutdown
async def stop() -> None:
    for server in servers:
        server.should_exit = True
    await asyncio.sleep(0.2)


@env.template(id="fill")
async def fill(items: int) -> Any:
    played["count"] += 1
    answer = yield [
        {"role": "system", "content": "You keep a shelf."},
        {"role": "user", "content": f"Put {items} items on it."},
    ]
    share = min(len(shelf) / items, 1.0)
    yield EvaluationResult(
        reward=share,
        info={"answer": answer, "played": played["count"], "shelf": list(shelf)},
        subscores=[SubScore(name="filled", value=share, weight=1.0)],
    )
