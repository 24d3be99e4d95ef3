"""One MCP endpoint for all episodes: streamable HTTP, stateless, JSON answers, on loopback.

In: HTTP requests whose bearer token names the episode. Out: JSON-RPC answers. The five methods a tool server needs are
answered here directly; the SDK's session machinery would cost each call more than all the rest (it starts a session, two
streams and a task per request), and hud patches it process-wide. Anything malformed is a JSON-RPC error, never a crash.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from mcp.shared.version import SUPPORTED_PROTOCOL_VERSIONS
from mcp.types import LATEST_PROTOCOL_VERSION

from turngrad.envkit.live import Episodes, LiveEpisode, UnknownEpisode
from turngrad.envkit.world import Call

CALL_ID = "turngrad/call-id"
STEP = "turngrad/step"
MAX_BODY_BYTES = 16 * 1024 * 1024

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
UNKNOWN_EPISODE = -32001

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class RpcError(Exception):
    """A JSON-RPC error and the HTTP status that carries it."""

    def __init__(self, code: int, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class Endpoint:
    """Serves `episodes` at `url` between `start` and `stop`, on the running event loop."""

    def __init__(self, episodes: Episodes, name: str) -> None:
        self.episodes = episodes
        self.name = name
        self._server: uvicorn.Server | None = None

    async def start(self) -> str:
        """Bind a free loopback port and serve; returns the URL."""
        # A socket made without naming TCP is not recognised by asyncio as one and keeps Nagle's delay: 40 ms a call.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            self.app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            date_header=False,
            server_header=False,
            # The policy may think for long between two calls on one connection.
            timeout_keep_alive=24 * 3600,
            timeout_graceful_shutdown=1,
        )
        config.load()
        self._server = uvicorn.Server(config)
        # uvicorn's own serve() owns signals and, cancelled, leaks the listener; its two halves are enough here.
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[listener])
        return f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.shutdown()
            self._server = None

    async def app(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return
        if scope["method"] != "POST":
            await _respond(send, 405, _error(None, INVALID_REQUEST, "this endpoint answers POST alone: no stream, no session"))
            return
        request_id: str | int | None = None
        try:
            body = await _read(receive)
            message = _parse(body)
            request_id = message.get("id")
            episode = self.episodes.find(_bearer(scope))
            if request_id is None:
                # A notification: nothing to do and, by JSON-RPC, nothing to say.
                await _respond(send, 202, None)
                return
            result = await self._dispatch(episode, message)
            await _respond(send, 200, {"jsonrpc": "2.0", "id": request_id, "result": result})
        except RpcError as error:
            await _respond(send, error.status, _error(request_id, error.code, str(error)))
        except UnknownEpisode as error:
            await _respond(send, 401, _error(request_id, UNKNOWN_EPISODE, str(error)))
        except asyncio.CancelledError:
            # The episode was closed under a call that still ran; the client is waiting for a word.
            await _respond(send, 401, _error(request_id, UNKNOWN_EPISODE, "the episode ended during the call"))
        except Exception as error:
            await _respond(send, 200, _error(request_id, INTERNAL_ERROR, f"{type(error).__name__}: {error}"))

    async def _dispatch(self, episode: LiveEpisode, message: dict[str, Any]) -> dict[str, Any]:
        method = message["method"]
        params = message.get("params") or {}
        if not isinstance(params, dict):
            raise RpcError(INVALID_PARAMS, "params must be an object")
        if method == "tools/call":
            return await episode.answer(_call(params))
        if method == "tools/list":
            return {"tools": [tool.to_mcp() for tool in episode.tools()]}
        if method == "initialize":
            wanted = params.get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in SUPPORTED_PROTOCOL_VERSIONS else LATEST_PROTOCOL_VERSION,
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": self.name, "version": "1"},
            }
        if method == "ping":
            return {}
        raise RpcError(METHOD_NOT_FOUND, f"method not found: {method}")


def _call(params: dict[str, Any]) -> Call:
    name = params.get("name")
    arguments = params.get("arguments")
    meta = params.get("_meta")
    if not isinstance(name, str):
        raise RpcError(INVALID_PARAMS, "tools/call: 'name' must be a string")
    if not isinstance(arguments, dict | None):
        raise RpcError(INVALID_PARAMS, "tools/call: 'arguments' must be an object")
    meta = meta if isinstance(meta, dict) else {}
    call_id, step = meta.get(CALL_ID), meta.get(STEP)
    if not isinstance(call_id, str):
        # A client that names no id retries at its own risk: each request is a call of its own.
        call_id = uuid.uuid4().hex
    return Call(call_id, name, arguments or {}, step if isinstance(step, int) else None)


async def _read(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise RpcError(INVALID_REQUEST, "the client hung up", 400)
        chunk = event.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise RpcError(INVALID_REQUEST, f"a request may be {MAX_BODY_BYTES} bytes long", 413)
        chunks.append(chunk)
        if not event.get("more_body"):
            return b"".join(chunks)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except RecursionError:
        raise RpcError(PARSE_ERROR, "parse error: nested too deeply", 400) from None
    except ValueError as error:
        raise RpcError(PARSE_ERROR, f"parse error: {error}", 400) from None
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "one JSON-RPC request object at a time", 400)
    if not isinstance(message.get("id"), str | int | None):
        raise RpcError(INVALID_REQUEST, "'id' must be a string or an integer", 400)
    if not isinstance(message.get("method"), str):
        # A client's answer to a request of ours, of which there are none.
        raise RpcError(INVALID_REQUEST, "'method' must be a string", 400)
    return message


def _bearer(scope: dict[str, Any]) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            if kind.lower() == "bearer":
                return token.strip()
    raise UnknownEpisode("no bearer token: send the auth_token of the episode's bindings")


def _error(request_id: str | int | None, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def _finite(node: Any) -> Any:
    """Strict JSON has no NaN and no infinities; a tool that returns one shows it as text."""
    if isinstance(node, float) and not math.isfinite(node):
        return str(node)
    if isinstance(node, dict):
        return {key: _finite(value) for key, value in node.items()}
    return [_finite(item) for item in node] if isinstance(node, list) else node


async def _respond(send: Send, status: int, payload: dict[str, Any] | None) -> None:
    body = b""
    if payload is not None:
        try:
            body = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
        except ValueError:
            body = json.dumps(_finite(payload), separators=(",", ":")).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
