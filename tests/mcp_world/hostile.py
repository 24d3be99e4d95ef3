"""A stdio MCP server that misbehaves on demand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import anyio
import mcp.types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.lowlevel.server import request_ctx
from mcp.server.stdio import stdio_server

server: Server[Any, Any] = Server("hostile")
extra: list[str] = []
SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}


async def list_tools(request: types.ListToolsRequest) -> types.ServerResult:
    names = ["picture", "fail", "refuse", "die", "hang", "wrong_schema", "grow", "chatter", "where", "environment", "big", *extra]
    tools = [types.Tool(name=f"odd.{name}", description=f"does {name}", inputSchema=SCHEMA) for name in names]
    start = int(request.params.cursor or 0) if request.params else 0
    more = str(start + 5) if start + 5 < len(tools) else None
    return types.ServerResult(types.ListToolsResult(tools=tools[start : start + 5], nextCursor=more))


async def call_tool(request: types.CallToolRequest) -> types.ServerResult:
    def answer(text: str, **more: Any) -> types.ServerResult:
        return types.ServerResult(types.CallToolResult(content=[types.TextContent(type="text", text=text)], **more))

    name = request.params.name.removeprefix("odd.")
    if name == "picture":
        picture = types.ImageContent(type="image", data="aGk=", mimeType="image/png")
        return types.ServerResult(types.CallToolResult(content=[picture], structuredContent={"b": 1, "a": 2}))
    if name == "fail":
        return answer("it went wrong", isError=True)
    if name == "refuse":
        raise ValueError("I refuse")
    if name == "die":
        print("my last words", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "hang":
        await anyio.sleep(600)
    if name == "grow":
        extra.append(f"new{len(extra)}")
        await request_ctx.get().session.send_tool_list_changed()
        return answer("grown")
    if name == "chatter":
        print("not a message", flush=True)
        return answer("said")
    if name == "where":
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return answer(f"{os.getcwd()} {os.getpid()} {child.pid}")
    if name == "environment":
        return answer(" ".join(sorted(os.environ)))
    if name == "big":
        return answer("x" * 5_000_000)
    return answer("?")


async def main() -> None:
    server.request_handlers[types.ListToolsRequest] = list_tools  # type: ignore[assignment]
    server.request_handlers[types.CallToolRequest] = call_tool  # type: ignore[assignment]
    async with stdio_server() as (read, write):
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        await server.run(read, write, options)


if __name__ == "__main__":
    if "--slow" in sys.argv:
        time.sleep(600)
    if "--broken" in sys.argv:
        sys.exit("I cannot start")
    anyio.run(main)
