"""One rollout's MCP tools: list, call, time-out, shape a result.

In: a hud run and the model's calls. Out: text for the model and facts for the record. Invariants: a call runs at most once,
whatever the transport does (C8: the transport sends it once, and it carries a unique id by which the environment kit would
answer a repeat from memory); only listed tools with valid arguments are sent (C9); every wait has an end.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import mcp.types as mcp_types
from mcp import ClientSession, McpError

from turngrad.arguments import ArgumentCheck
from turngrad.envkit.client import EpisodeClient
from turngrad.episodes import Failure
from turngrad.errors import RolloutError, RunError
from turngrad.loopback import loopback_id
from turngrad.mcp_http import streamable_http

if TYPE_CHECKING:
    from hud.eval.run import Run

CALL_ID_META = "turngrad/call-id"
STEP_META = "turngrad/step"
NEXT_TURN_TOOL = "__next_turn__"
DONE_META = "turngrad/done"
TOOLS_CHANGED_META = "turngrad/tools-changed"

_TIMEOUTS_BEFORE_GIVING_UP = 2
_REQUEST_TIMEOUT_CODE = 408
_REFUSED_CODES = (mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to: `text` for the model; `seconds` of the MCP call alone.

    `done` says that the environment has ended the episode with this call, `tools_changed` that its tools are others now.
    """

    text: str
    is_error: bool
    seconds: float
    done: bool = False
    tools_changed: bool = False


@dataclass(frozen=True, slots=True)
class NextTurn:
    """The environment's answer when the model ended its turn."""

    done: bool
    messages: list[dict[str, Any]]
    tools_changed: bool


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Which tools the model is offered, by shell patterns of their names: all of `only` (none: all), less `exclude`."""

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def keeps(self, name: str) -> bool:
        return (not self.only or _matches(name, self.only)) and not _matches(name, self.exclude)


Session = ClientSession | EpisodeClient
"""An open MCP session: the SDK's, for any server, or the kit's own for its endpoints, at an eighth of the cost of a call."""


@dataclass(slots=True)
class _Tool:
    session: Session
    remote_name: str
    spec: dict[str, Any]
    check: ArgumentCheck


class ToolSession:
    """The MCP sessions of one rollout, opened, used and closed by the task that enters `open_tools`.

    `specs` is the current tool list in OpenAI's function format, key order and Unicode as the servers gave them.
    """

    def __init__(
        self,
        sessions: dict[str, Session],
        bindings: dict[str, dict[str, Any]],
        timeout: float,
        offer: ToolFilter = ToolFilter(),
    ) -> None:
        self.specs: list[dict[str, Any]] = []
        self.user_turns = any(binding.get("user_turns") for binding in bindings.values())
        self.parallel_safe = bool(bindings) and all(binding.get("parallel_safe") for binding in bindings.values())
        self._sessions = sessions
        self._bindings = bindings
        self._timeout = timeout
        self._offer = offer
        self._tools: dict[str, _Tool] = {}
        self._timeouts = 0

    async def refresh(self) -> None:
        """List the tools again. A name that two servers share is qualified as `server__tool` on both."""
        listed: list[tuple[str, Session, mcp_types.Tool]] = []
        withheld: list[str] = []
        for server, session in self._sessions.items():
            cursor = None
            while True:
                page = await self._request(session.list_tools(cursor), f"tools/list of {server!r}")
                listed += [(server, session, tool) for tool in page.tools if self._offer.keeps(tool.name)]
                withheld += [tool.name for tool in page.tools if not self._offer.keeps(tool.name)]
                cursor = page.nextCursor
                if not cursor:
                    break
        if withheld and not listed:
            raise RolloutError(Failure.PROVISION, f"--tools and --exclude-tools leave none of the tools {', '.join(withheld)}")
        counts: dict[str, int] = {}
        for _, _, tool in listed:
            counts[tool.name] = counts.get(tool.name, 0) + 1
        tools: dict[str, _Tool] = {}
        for server, session, tool in listed:
            name = tool.name if counts[tool.name] == 1 else f"{server}__{tool.name}"
            if name in tools:
                raise RolloutError(
                    Failure.PROVISION, f"two tools are called {name!r}; rename one of them or leave one out with --exclude-tools"
                )
            spec = {
                "type": "function",
                "function": {"name": name, "description": tool.description or "", "parameters": tool.inputSchema},
            }
            tools[name] = _Tool(session, tool.name, spec, ArgumentCheck(name, tool.inputSchema))
        self._tools = tools
        self.specs = [tool.spec for tool in tools.values()]

    def knows(self, name: str | None) -> bool:
        return name in self._tools

    def invalid_arguments(self, name: str, arguments: Any) -> str | None:
        """What is wrong with the arguments by the tool's schema, in words for the model, or None."""
        return self._tools[name].check.complaint(arguments)

    async def call(self, name: str, arguments: dict[str, Any], *, call_id: str, step: int) -> Outcome:
        """Run a listed tool once. Tool errors are outcomes; a broken server is a RolloutError (`tool_server`).

        A call that does not answer in time is told to the model; the second such call in an episode gives it up.
        """
        tool = self._tools[name]
        started = time.monotonic()
        try:
            result = await tool.session.call_tool(
                tool.remote_name,
                arguments,
                read_timeout_seconds=timedelta(seconds=self._timeout),
                meta={CALL_ID_META: call_id, STEP_META: step},
            )
        except McpError as error:
            if error.error.code == _REQUEST_TIMEOUT_CODE:
                self._timeouts += 1
                if self._timeouts < _TIMEOUTS_BEFORE_GIVING_UP:
                    text = f"Error: no answer within {self._timeout:g} s; the call may or may not have taken effect"
                    return Outcome(text, True, time.monotonic() - started)
                message = f"{self._timeouts} calls without an answer, the last to {name!r}"
                raise RolloutError(Failure.TOOL_SERVER, message) from error
            if error.error.code in _REFUSED_CODES:
                return Outcome(f"Error: {error.error.message}", True, time.monotonic() - started)
            raise RolloutError(Failure.TOOL_SERVER, f"call to {name!r}: {_reason(error)}") from error
        except Exception as error:
            raise RolloutError(Failure.TOOL_SERVER, f"call to {name!r}: {type(error).__name__}: {error}") from error
        meta = result.meta or {}
        return Outcome(
            result_text(result),
            bool(result.isError),
            time.monotonic() - started,
            done=bool(meta.get(DONE_META)),
            tools_changed=bool(meta.get(TOOLS_CHANGED_META)),
        )

    async def next_user_turn(self, *, step: int) -> NextTurn:
        """Ask the environment what the user says next; `done` where the environment has no user turns."""
        if not self.user_turns:
            return NextTurn(True, [], False)
        server = next(name for name, binding in self._bindings.items() if binding.get("user_turns"))
        result = await self._request(
            self._sessions[server].call_tool(
                NEXT_TURN_TOOL,
                {},
                read_timeout_seconds=timedelta(seconds=self._timeout),
                meta={CALL_ID_META: uuid.uuid4().hex, STEP_META: step},
            ),
            "the next user turn",
        )
        answer = result.structuredContent
        if result.isError or not isinstance(answer, dict) or "done" not in answer:
            found = result_text(result)[:200]
            raise RolloutError(Failure.TOOL_SERVER, f"{NEXT_TURN_TOOL} answered {found!r}, not done, messages, tools_changed")
        return NextTurn(bool(answer["done"]), list(answer.get("messages") or []), bool(answer.get("tools_changed")))

    async def _request(self, request: Any, what: str) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                return await request
        except RolloutError:
            raise
        except TimeoutError as error:
            raise RolloutError(Failure.TOOL_SERVER, f"{what}: no answer within --tool-timeout {self._timeout:g} s") from error
        except McpError as error:
            raise RolloutError(Failure.TOOL_SERVER, f"{what}: {_reason(error)}") from error
        except Exception as error:
            raise RolloutError(Failure.TOOL_SERVER, f"{what}: {type(error).__name__}: {error}") from error


@asynccontextmanager
async def open_tools(run: Run, *, timeout: float, offer: ToolFilter = ToolFilter()) -> AsyncIterator[ToolSession]:
    """Open every MCP capability of the run's environment with the episode's own bearer token, and list the tools to `offer`.

    An environment without MCP capabilities gives a session without tools. `timeout` is in seconds, per request.

    Raises:
        RolloutError: a server that does not answer or breaks the protocol (class `tool_server`).
    """
    try:
        manifest = run.client.manifest
        capabilities = [c for c in manifest.bindings if c.protocol.split("/", 1)[0] == "mcp"] if manifest is not None else []
        async with AsyncExitStack() as stack:
            sessions: dict[str, Session] = {}
            bindings = {c.name: dict(run.bindings.get(c.name, {})) for c in capabilities}
            for capability in capabilities:
                shared = bindings[capability.name].get("loopback")
                # hud's tunnel reaches any environment; one on our own loopback is dialled directly, for half the cost of a call.
                direct = shared is not None and shared == loopback_id()
                address = capability if direct else run.client.binding(capability.name)
                token = bindings[capability.name].get("auth_token") or capability.params.get("auth_token")
                try:
                    async with asyncio.timeout(timeout):
                        plain = bool(token and bindings[capability.name].get("plain_json"))
                        sessions[capability.name] = await _connect(stack, address.url, token, timeout, plain)
                except Exception as error:
                    raise RolloutError(
                        Failure.TOOL_SERVER, f"MCP server {capability.name!r} did not open: {type(error).__name__}: {error}"
                    ) from error
            tools = ToolSession(sessions, bindings, timeout, offer)
            await tools.refresh()
            yield tools
    except BaseExceptionGroup as group:
        # anyio's task groups wrap whatever happens inside them, ours included.
        raise _root_cause(group) from group


async def _connect(stack: AsyncExitStack, url: str, token: str | None, timeout: float, plain: bool) -> Session:
    if token and plain:
        return await stack.enter_async_context(EpisodeClient(url, token, timeout))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # The session's own time-out ends a call; the transport's is only a net below it.
    read, write = await stack.enter_async_context(streamable_http(url, headers=headers, timeout=timeout + 5))
    session = await stack.enter_async_context(ClientSession(read, write))
    await session.initialize()
    return session


def result_text(result: mcp_types.CallToolResult) -> str:
    """A tool result as text for the model.

    Text parts joined by newlines; structured content as JSON where there is no text; images and other binaries as a note
    with type and size; an error said in words.
    """
    parts: list[str] = []
    for block in result.content:
        if isinstance(block, mcp_types.TextContent):
            parts.append(block.text)
        elif isinstance(block, mcp_types.ImageContent | mcp_types.AudioContent):
            parts.append(f"[{block.type} omitted: {block.mimeType}, {len(block.data) * 3 // 4} bytes]")
        elif isinstance(block, mcp_types.EmbeddedResource):
            resource = block.resource
            if isinstance(resource, mcp_types.TextResourceContents):
                parts.append(resource.text)
            else:
                parts.append(f"[resource omitted: {resource.mimeType}, {len(resource.blob) * 3 // 4} bytes]")
        else:
            parts.append(f"[resource: {block.uri}]")
    text = "\n".join(parts)
    if result.structuredContent is not None and (not text or result.isError):
        structured = json.dumps(result.structuredContent, ensure_ascii=False)
        text = f"{text}\n{structured}" if text and structured not in text else text or structured
    if result.isError and not text.lower().startswith("error"):
        text = f"Error: {text}" if text else "Error: the tool failed and gave no reason"
    return text


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _root_cause(error: BaseException) -> BaseException:
    """The error that counts inside the groups that anyio's task groups wrap around it."""
    while isinstance(error, BaseExceptionGroup):
        ours = error.split((RolloutError, RunError))[0]
        error = (ours or error).exceptions[0]
    return error


def _reason(error: McpError) -> str:
    data = error.error.data
    detail = data.get("detail") if isinstance(data, dict) else None
    return f"{error.error.message}{f' ({detail})' if detail else ''}"
