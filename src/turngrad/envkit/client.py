"""The client's half of `endpoint`: one connection, one JSON answer per request, nothing sent twice.

In: an endpoint's URL and an episode's token. Out: `mcp.types` results. A general MCP client spends 1.5 ms of processor time
on a call (session, streams, event parsing), six times what the call itself costs; the kit's endpoint needs none of that. A
request whose fate is unknown raises; it is never sent again (C8).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from datetime import timedelta
from typing import Any, Self
from urllib.parse import urlsplit

import mcp.types as mcp_types
from mcp import McpError

_COMPACT = json.JSONEncoder(separators=(",", ":"))

REQUEST_TIMEOUT = 408
"""The code of the McpError for a request that was not answered in time, as the SDK's session has it."""


class EpisodeClient:
    """One episode's tools; an async context manager, with the names and results of the SDK's `ClientSession`.

    `timeout` is in seconds, for connecting and for requests that name none.
    """

    def __init__(self, url: str, token: str, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(f"{url!r} is no endpoint of the environment kit; expected http://host:port/path")
        self._host, self._port = parts.hostname, parts.port
        self._head = (
            f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.hostname}:{parts.port}\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nContent-Length: "
        )
        self._timeout = timeout
        # Unlike any other client's: an answer to another episode's request is not taken for one to ours.
        self._name = secrets.token_hex(8)
        self._requests = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._drop()

    async def list_tools(self, cursor: str | None = None) -> mcp_types.ListToolsResult:
        """All tools, on one page. Raises McpError for the endpoint's error, ConnectionError when the connection broke."""
        return mcp_types.ListToolsResult.model_validate(await self._request("tools/list", {}, self._timeout))

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        read_timeout_seconds: timedelta | None = None,
        *,
        meta: dict[str, Any] | None = None,
    ) -> mcp_types.CallToolResult:
        """One call. Raises McpError, with code `REQUEST_TIMEOUT` when it took too long, or ConnectionError."""
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if meta is not None:
            params["_meta"] = meta
        seconds = self._timeout if read_timeout_seconds is None else read_timeout_seconds.total_seconds()
        return mcp_types.CallToolResult.model_validate(await self._request("tools/call", params, seconds))

    async def _request(self, method: str, params: dict[str, Any], seconds: float) -> dict[str, Any]:
        async with self._one_at_a_time:
            self._requests += 1
            request_id = f"{self._name}-{self._requests}"
            message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
            body = _COMPACT.encode(message).encode()
            try:
                async with asyncio.timeout(seconds):
                    answer = _answer_to(request_id, await self._exchange(body))
            except BaseException as error:
                # The answer to this request may still arrive: nothing else may be read from this connection.
                await self._drop()
                if isinstance(error, TimeoutError):
                    said = f"no answer to {method} within {seconds:g} s"
                    raise McpError(mcp_types.ErrorData(code=REQUEST_TIMEOUT, message=said)) from None
                if isinstance(error, OSError | asyncio.IncompleteReadError | ValueError):
                    raise ConnectionError(f"{method}: {type(error).__name__}: {error}") from error
                raise
        if "error" in answer:
            raise McpError(mcp_types.ErrorData.model_validate(answer["error"]))
        return answer["result"]

    async def _exchange(self, body: bytes) -> bytes:
        """Send one request and read the body of its answer. Raises ValueError for what is no answer with a length."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        reader, writer = self._streams
        writer.write(f"{self._head}{len(body)}\r\n\r\n".encode("latin-1") + body)
        await writer.drain()
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        lengths = [header.partition(":")[2] for header in headers if header.lower().startswith("content-length:")]
        if not status.startswith("HTTP/1.1 ") or len(lengths) != 1:
            raise ValueError(f"not an answer of the environment kit: {status!r} without one Content-Length")
        return await reader.readexactly(int(lengths[0]))

    async def _drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()


def _answer_to(request_id: str, body: bytes) -> dict[str, Any]:
    """The JSON-RPC answer in `body`. Raises ValueError for one to another request; an error may name none."""
    answer = json.loads(body)
    if not isinstance(answer, dict) or not ("result" in answer or "error" in answer):
        raise ValueError(f"not a JSON-RPC answer: {body[:100]!r}")
    if answer.get("id") != request_id and ("result" in answer or answer.get("id") is not None):
        raise ValueError(f"an answer to request {answer.get('id')!r} came for request {request_id!r}")
    return answer
