"""One MCP session: tools listed and called, the answers as the server gave them.

Invariants: one task opens and closes a session, whoever uses it; a call is sent once (C8); a server that is gone raises
`WorldLost`, which is no doing of the policy's (C7). Requests of the server's own (sampling, roots, elicitation) are answered
by the SDK with "not supported".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import mcp.types as mcp_types
from mcp import ClientSession, McpError

from turngrad.envkit.world import RawResult, Tool, ToolError, WorldLost
from turngrad.mcp_http import BROKEN, streamable_http
from turngrad.mcp_world.server import McpServer
from turngrad.mcp_world.stdio import Process, stdio

START_SECONDS = 100.0
PING_SECONDS = 5.0
_LOST = (mcp_types.CONNECTION_CLOSED, BROKEN)
_STARTS_AT_ONCE = 2 * (os.cpu_count() or 1)
"""Interpreters that start all at once take as long as one after the other, and then the first takes as long as the last."""
_starting: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class Connection:
    """A live session. Make one with `Connection.open`; `tools` is the current list."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.tools: list[Tool] = []
        self.process: Process | None = None
        self.lost = False
        self._session: ClientSession | None = None
        self._stop = asyncio.Event()
        self._stale = False
        self._owner: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, server: McpServer) -> Connection:
        """Start or reach the server, initialize, list its tools.

        Raises:
            WorldLost: saying how the server failed, with its last words.
        """
        self = cls(server)
        loop = asyncio.get_running_loop()
        async with _starting.setdefault(loop, asyncio.Semaphore(_STARTS_AT_ONCE)):
            ready: asyncio.Future[None] = loop.create_future()
            self._owner = asyncio.create_task(self._own(ready))
            try:
                async with asyncio.timeout(START_SECONDS):
                    await ready
            except TimeoutError:
                await self.close()
                raise WorldLost(f"the MCP server {server.name} did not answer within {START_SECONDS:g} s of its start") from None
            except BaseException:
                await self.close()
                raise
        return self

    @property
    def workdir(self) -> str:
        """The folder the server started in; empty for a URL."""
        return self.process.workdir if self.process is not None else ""

    async def call(self, name: str, arguments: dict[str, Any]) -> RawResult:
        """One call. Raises ToolError for the server's own refusal, WorldLost where there is no server to answer."""
        if self._session is None or self.lost:
            raise WorldLost(f"the MCP server {self.server.name} is gone")
        params = mcp_types.CallToolRequestParams(name=name, arguments=arguments)
        request = mcp_types.ClientRequest(mcp_types.CallToolRequest(params=params))
        try:
            # Below the SDK's call_tool, which refuses answers that break their own output schema: the model may see those.
            result = await self._session.send_request(request, mcp_types.CallToolResult)
        except McpError as error:
            if error.error.code in _LOST:
                raise await self._gone(_said(error)) from error
            raise ToolError(error.error.message) from error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise await self._gone("the connection is closed") from error
        if self._stale:
            await self._list()
        answer = result.model_dump(by_alias=True, exclude_none=True, mode="json")
        return RawResult(answer["content"], answer.get("structuredContent"), bool(result.isError))

    async def answers(self) -> bool:
        """Whether the server answers a ping, in less time than a call may take."""
        if self._session is None or self.lost:
            return False
        try:
            async with asyncio.timeout(min(PING_SECONDS, self.server.call_timeout / 2)):
                await self._session.send_ping()
        except (TimeoutError, McpError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return False
        return True

    async def close(self) -> None:
        """End the session, its process and all that process started."""
        self.lost = True
        self._stop.set()
        if self._owner is not None:
            await asyncio.wait([self._owner])

    async def _own(self, ready: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                if self.server.url is None:
                    streams, self.process = await stack.enter_async_context(stdio(self.server))
                else:
                    limit = self.server.call_timeout + 5
                    streams = await stack.enter_async_context(
                        streamable_http(self.server.url, headers=self.server.request_headers(), timeout=limit)
                    )
                session = await stack.enter_async_context(ClientSession(*streams, message_handler=self._hear))
                stopping = asyncio.create_task(self._stop.wait())
                starting = asyncio.create_task(self._start(session))
                try:
                    await asyncio.wait({stopping, starting}, return_when=asyncio.FIRST_COMPLETED)
                    if starting.done():
                        starting.result()
                        ready.set_result(None)
                        await stopping
                finally:
                    for task in (stopping, starting):
                        task.cancel()
                    await asyncio.gather(stopping, starting, return_exceptions=True)
        except Exception as error:
            self.lost = True
            if not ready.done():
                ready.set_exception(await self._gone(_said(_root(error)), "did not open"))
        finally:
            if not ready.done():
                ready.cancel()

    async def _start(self, session: ClientSession) -> None:
        await session.initialize()
        self._session = session
        await self._list()

    async def _list(self) -> None:
        """List the tools anew, page by page."""
        assert self._session is not None
        self._stale = False
        tools: list[Tool] = []
        capabilities = self._session.get_server_capabilities()
        cursor = None
        while capabilities is not None and capabilities.tools is not None:
            limit = timedelta(seconds=self.server.call_timeout)
            page = await self._session.send_request(
                mcp_types.ClientRequest(mcp_types.ListToolsRequest(params=mcp_types.PaginatedRequestParams(cursor=cursor))),
                mcp_types.ListToolsResult,
                request_read_timeout_seconds=limit,
            )
            tools += [Tool(tool.name, tool.description or "", tool.inputSchema) for tool in page.tools]
            if not (cursor := page.nextCursor):
                break
        self.tools = tools

    async def _hear(self, message: Any) -> None:
        if isinstance(message, mcp_types.ServerNotification):
            self._stale |= isinstance(message.root, mcp_types.ToolListChangedNotification)

    async def _gone(self, reason: str, what: str = "is gone") -> WorldLost:
        self.lost = True
        detail = f"; it {await self.process.obituary()}" if self.process is not None else ""
        return WorldLost(f"the MCP server {self.server.name} {what} ({reason}){detail}")


class SharedConnection:
    """The one connection of a server that keeps no state: opened by the first episode, opened again when it was lost."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None

    async def get(self) -> Connection:
        async with self._lock:
            if self._connection is None or self._connection.lost:
                if self._connection is not None:
                    await self._connection.close()
                self._connection = await Connection.open(self.server)
            return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                await self._connection.close()


def _said(error: BaseException) -> str:
    if isinstance(error, McpError):
        data = error.error.data
        return f"{error.error.message}: {data['detail']}" if isinstance(data, dict) and "detail" in data else error.error.message
    return str(error) or type(error).__name__


def _root(error: BaseException) -> BaseException:
    """The first error inside anyio's groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
