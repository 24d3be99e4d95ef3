"""An MCP server that misbehaves on request: a real process, raw HTTP, so that it can break the protocol where it likes.

    python -m tests.hostile_server PORT_FILE LOG_FILE

Every tools/call is written to LOG_FILE before anything goes wrong, so that a test can count executions.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOLS = (
    "echo",
    "hang",
    "die",
    "reset",
    "big",
    "image",
    "fails",
    "structured",
    "events",
    "badjson",
    "crossed",
    "crossed_event",
    "html",
    "unavailable",
    "grow",
    "echo_twin",
)
state = {"grown": False}


def result(text: str = "", **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}] if text else [], **more}


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method = head.split(" ", 1)[0]
            length = next((int(h.split(":")[1]) for h in head.split("\r\n") if h.lower().startswith("content-length")), 0)
            body = await reader.readexactly(length)
            if method != "POST":
                await send(writer, b"", status="405 Method Not Allowed")
                continue
            message = json.loads(body)
            if "id" not in message:
                await send(writer, b"", status="202 Accepted")
                continue
            await answer(message, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        reply["result"] = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "0"},
        }
    elif message["method"] == "tools/list":
        names = [*TOOLS, *(["grown"] if state["grown"] else [])]
        reply["result"] = {"tools": [{"name": n, "description": n, "inputSchema": SCHEMA} for n in names]}
    elif message["method"] == "tools/call":
        name, arguments = message["params"]["name"], message["params"].get("arguments") or {}
        with open(sys.argv[2], "a") as log:
            log.write(json.dumps([name, arguments, message["params"].get("_meta")]) + "\n")
        if name == "hang":
            await asyncio.sleep(3600)
        if name == "die":
            os._exit(9)
        if name == "reset":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
            await writer.drain()
            writer.transport.abort()
            raise ConnectionError
        if name == "badjson":
            return await send(writer, b"{not json", kind="application/json")
        if name.startswith("crossed"):
            other = json.dumps({**reply, "id": 10**6, "result": result("another's")})
            if name == "crossed":
                return await send(writer, other.encode())
            return await send(writer, f"data: {other}\r\n\r\n".encode(), kind="text/event-stream")
        if name == "events":
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "working"}}
            reply["result"] = result("y" * 300_000)
            events = "".join(f"event: message\r\ndata: {json.dumps(part)}\r\n\r\n" for part in (note, reply))
            return await send(writer, events.encode(), kind="text/event-stream")
        if name == "html":
            return await send(writer, b"<html>Sign in</html>", kind="text/html")
        if name == "unavailable":
            return await send(writer, b"", status="503 Service Unavailable")
        if name == "grow":
            state["grown"] = True
        reply["result"] = {
            "echo": lambda: result(arguments.get("text", "")),
            "echo_twin": lambda: result(arguments.get("text", "")),
            "big": lambda: result("x" * 5_000_000),
            "image": lambda: {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]},
            "fails": lambda: result("disk on fire", isError=True, structuredContent={"code": 7}),
            "structured": lambda: result(structuredContent={"b": 1, "a": "ü"}),
            "grow": lambda: result("grown"),
            "grown": lambda: result("hello"),
        }[name]()
    await send(writer, json.dumps(reply).encode())


async def send(writer: asyncio.StreamWriter, body: bytes, *, status: str = "200 OK", kind: str = "application/json") -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


async def main() -> None:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    partial = Path(sys.argv[1] + ".partial")
    partial.write_text(str(server.sockets[0].getsockname()[1]))
    partial.replace(sys.argv[1])
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
