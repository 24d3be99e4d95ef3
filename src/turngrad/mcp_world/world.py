"""An episode on a plain MCP server: a kit world whose tools are the server's.

Invariants: names and schemas are listed as the server gives them, calls and answers pass unchanged; the server's process
belongs to the episode and ends with it; a task's text reaches the server as arguments and no shell.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from turngrad.envkit import Call, Grade, RawResult, Tool, World, WorldLost
from turngrad.envkit.world import Messages
from turngrad.mcp_world.connection import Connection, SharedConnection
from turngrad.mcp_world.graders import ask, grade
from turngrad.mcp_world.server import WORKDIR, McpServer
from turngrad.mcp_world.tasks import McpTask


class McpWorld(World):
    """A task of a tasks file, played with the tools of an MCP server."""

    server: ClassVar[McpServer]
    by_id: ClassVar[dict[str, McpTask]]
    shared: ClassVar[SharedConnection | None] = None

    def __init__(self, task: str) -> None:
        if task not in self.by_id:
            raise ValueError(f"no task {task!r} in the tasks file")
        self.task = self.by_id[task]
        self.transcript: list[dict[str, Any]] = []
        self._connection: Connection | None = None
        self._unanswered = False

    def tools(self) -> list[Tool]:
        return self._connection.tools if self._connection is not None else []

    async def turns(self) -> AsyncIterator[Messages]:
        self._connection = await (self.shared.get() if self.shared is not None else Connection.open(self.server))
        for call in self.task.setup:
            answer = await ask(self._call, call.name, call.arguments)
            if answer.is_error:
                raise RuntimeError(f"task {self.task.id!r}: the set-up call {call.name} failed: {answer.text[:500]}")
        for number, text in enumerate((self.task.prompt, *self.task.turns)):
            text = text.replace(WORKDIR, self._connection.workdir)
            self.transcript.append({"user": text})
            if number == 0 and self.task.system is not None:
                yield [{"role": "system", "content": self.task.system}, {"role": "user", "content": text}]
            else:
                yield text

    async def call(self, call: Call) -> RawResult:
        entry: dict[str, Any] = {"tool": call.name, "arguments": call.arguments}
        self.transcript.append(entry)
        assert self._connection is not None
        if self._unanswered and not await self._connection.answers():
            # A tool may hang on some arguments; a server that does not even answer a ping is no doing of the policy's.
            raise WorldLost(f"the MCP server {self.server.name} answers neither calls nor pings")
        try:
            result = await self._connection.call(call.name, call.arguments)
        except asyncio.CancelledError:
            self._unanswered = True
            raise
        self._unanswered = False
        entry |= {"content": result.content, "structured": result.structured, "is_error": result.is_error}
        return result

    async def grade(self, answer: str) -> Grade:
        return await grade(self.task.grader, answer, self.transcript, self._call)

    async def close(self) -> None:
        if self._connection is not None and self.shared is None:
            await self._connection.close()

    async def _call(self, name: str, arguments: dict[str, Any]) -> RawResult:
        """A call of the task's own, with the episode's folder filled in."""
        if self._connection is None:
            raise WorldLost("the MCP server was never started")
        return await self._connection.call(name, _filled(arguments, self._connection.workdir))


def _filled(node: Any, workdir: str) -> Any:
    if isinstance(node, str):
        return node.replace(WORKDIR, workdir)
    if isinstance(node, dict):
        return {key: _filled(value, workdir) for key, value in node.items()}
    return [_filled(item, workdir) for item in node] if isinstance(node, list) else node
