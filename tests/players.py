"""A hud agent that plays a script over real MCP requests: the tests' stand-in for the turn loop."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from hud.agents.base import Agent
from hud.agents.types import AgentConfig
from hud.eval.run import Run


class McpError(Exception):
    """The server's JSON-RPC error; `status` is HTTP's."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status}: {error}")
        self.status = status
        self.code = error["code"]


class Mcp:
    """One episode's endpoint, spoken to in plain JSON-RPC."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        headers = {"Accept": "application/json, text/event-stream"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        # Making a client's default TLS context costs more than the whole episode.
        self.http = httpx.AsyncClient(headers=headers, verify=False, timeout=60)

    async def __aenter__(self) -> Mcp:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()

    async def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        # The standard library's JSON, unlike httpx's, can say NaN and lone surrogates.
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}})
        response = await self.http.post(self.url, content=body, headers={"Content-Type": "application/json"})
        answer = response.json()
        if "error" in answer:
            raise McpError(response.status_code, answer["error"])
        return answer["result"]

    async def tools(self) -> list[dict[str, Any]]:
        return (await self.request("tools/list"))["tools"]

    async def names(self) -> list[str]:
        return [tool["name"] for tool in await self.tools()]

    async def result(
        self, name: str, arguments: dict[str, Any] | None = None, *, step: int | None = None, call_id: str | None = None
    ) -> dict[str, Any]:
        meta: dict[str, Any] = {"turngrad/call-id": call_id or uuid.uuid4().hex}
        if step is not None:
            meta["turngrad/step"] = step
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}, "_meta": meta})

    async def call(self, name: str, arguments: dict[str, Any] | None = None, *, step: int | None = None) -> str:
        return (await self.result(name, arguments, step=step))["content"][0]["text"]

    async def next_turn(self) -> dict[str, Any]:
        return (await self.result("__next_turn__"))["structuredContent"]


class Player(Agent):
    """Plays `script(mcp, run)`; what it returns is the final answer."""

    def __init__(self, script: Callable[[Mcp, Run], Awaitable[str | None]]) -> None:
        super().__init__(AgentConfig())
        self.script = script

    async def __call__(self, run: Run) -> None:
        async with Mcp(run.client.binding("mcp").url, run.bindings["tools"]["auth_token"]) as mcp:
            run.trace.content = await self.script(mcp, run) or ""
