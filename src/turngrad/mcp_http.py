"""The streamable-http transport of MCP under `mcp.ClientSession`, at most once per message.

In: a URL and a token. Out: the pair of streams that a `ClientSession` speaks over. Invariant: a message is sent once, and a
request whose answer does not come is answered with an error; nothing here repeats a POST (C8). The transport of the `mcp`
package is not used because `import hud` replaces its POST loop, for the whole process, by one that sends a request again on
connection errors, read errors, time-outs and 502 to 504, for up to ten minutes: a tool that had run would run twice.
Protocol: MCP 2025-06-18, "Streamable HTTP"; server messages outside of an answer (the GET stream) are not listened to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest
from pydantic import ValidationError

BROKEN = -32000
"""Error code of a request whose fate is unknown: the connection broke, or the answer was no MCP."""

_ACCEPT = "application/json, text/event-stream"
_SESSION, _PROTOCOL = "mcp-session-id", "mcp-protocol-version"

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def streamable_http(url: str, *, headers: dict[str, str], timeout: float) -> AsyncIterator[Streams]:
    """Open the transport. `timeout` is in seconds, for one exchange: a net below the session's own time-outs."""
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](64)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    limits = aiohttp.ClientTimeout(total=timeout, connect=min(timeout, 10.0))
    async with (
        incoming,
        read,
        write,
        outgoing,
        aiohttp.ClientSession(headers={"accept": _ACCEPT, **headers}, timeout=limits) as client,
    ):
        exchange = _Exchange(client, url, incoming)
        async with anyio.create_task_group() as group:

            async def pump() -> None:
                async for message in outgoing:
                    root = message.message.root
                    if isinstance(root, JSONRPCRequest):
                        group.start_soon(exchange.request, root)
                    else:
                        # A notification goes out before what follows it.
                        await exchange.notify(message.message)

            group.start_soon(pump)
            try:
                yield read, write
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await exchange.end()


class _Exchange:
    """One connection's POSTs, and the session the server may have opened for it."""

    def __init__(self, client: aiohttp.ClientSession, url: str, incoming: Incoming) -> None:
        self._client = client
        self._url = url
        self._incoming = incoming
        self._headers = {"content-type": "application/json"}

    async def request(self, request: JSONRPCRequest) -> None:
        """Send a request and pass on its answer, or an error in its place."""
        try:
            answer = await self._post(request)
        except (aiohttp.ClientError, TimeoutError, ValidationError, _NoMcp) as error:
            detail = " ".join(str(error).split())[:300] or type(error).__name__
            data = ErrorData(code=BROKEN, message=f"Transport error: {type(error).__name__}", data={"detail": detail})
            answer = JSONRPCMessage(JSONRPCError(jsonrpc="2.0", id=request.id, error=data))
        await self._incoming.send(SessionMessage(answer))

    async def notify(self, message: JSONRPCMessage) -> None:
        """Send what has no answer. One that is lost is lost: the next request shows whether the server lives."""
        try:
            async with self._client.post(self._url, data=_dump(message), headers=self._headers):
                pass
        except (aiohttp.ClientError, TimeoutError):
            return

    async def end(self) -> None:
        """Tell a server that keeps sessions that this one is over."""
        if _SESSION in self._headers:
            with anyio.move_on_after(2.0):
                try:
                    async with self._client.delete(self._url, headers=self._headers):
                        pass
                except (aiohttp.ClientError, TimeoutError):
                    return

    async def _post(self, request: JSONRPCRequest) -> JSONRPCMessage:
        async with self._client.post(self._url, data=_dump(JSONRPCMessage(request)), headers=self._headers) as response:
            if response.status != 200:
                raise _NoMcp(f"HTTP {response.status}")
            if _SESSION in response.headers:
                self._headers[_SESSION] = response.headers[_SESSION]
            if response.content_type == "application/json":
                answer = JSONRPCMessage.model_validate_json(await response.read())
                if getattr(answer.root, "id", None) != request.id:
                    # The session would drop it and wait; whose it is, or what ours was, nobody can tell.
                    raise _NoMcp(f"an answer to request {getattr(answer.root, 'id', None)!r} came for request {request.id!r}")
            elif response.content_type == "text/event-stream":
                answer = await self._from_events(response, request)
            else:
                raise _NoMcp(f"an answer of type {response.content_type}, not MCP")
        if request.method == "initialize":
            result = getattr(answer.root, "result", None)
            if isinstance(result, dict) and isinstance(result.get("protocolVersion"), str):
                self._headers[_PROTOCOL] = result["protocolVersion"]
        return answer

    async def _from_events(self, response: aiohttp.ClientResponse, request: JSONRPCRequest) -> JSONRPCMessage:
        """The answer among a stream's events; what comes before it (progress, log lines) goes to the session as it is."""
        data: list[bytes] = []
        async for line in _lines(response):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                message = JSONRPCMessage.model_validate_json(b"\n".join(data))
                data = []
                if not isinstance(message.root, JSONRPCRequest | JSONRPCNotification) and message.root.id == request.id:
                    return message
                await self._incoming.send(SessionMessage(message))
        raise _NoMcp("the event stream ended without the answer")


class _NoMcp(Exception):
    """The server said something that is not the protocol."""


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of a response, however long: aiohttp's own line reader gives up at 64 kB."""
    pending: list[bytes] = []
    async for chunk in response.content.iter_any():
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            yield b"".join([*pending, piece]).removesuffix(b"\r")
            pending = []
        pending.append(rest)


def _dump(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_none=True).encode()
