"""Live episodes: every running world under its own token, and the rules that every call of it obeys.

In: a world to play and, over `endpoint`, the policy's calls. Out: answers in MCP's shape and, at the end, a grade.
Invariants: a token reaches its own world alone; a call id runs at most once, whatever the transport repeats (C8); one
call at a time per episode; a call that does not return is stopped; what the world holds is freed when the episode ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from turngrad.envkit.limits import StuckError, in_thread
from turngrad.envkit.resources import SHORTAGE
from turngrad.envkit.world import Call, Grade, Messages, RawResult, Tool, ToolError, World, WorldLost

NEXT_TURN = "__next_turn__"
"""The reserved tool by which the loop, not the model, asks for the user's next turn; never listed."""
MAX_ARGUMENT_BYTES = 256 * 1024
"""The largest arguments of one call; more is answered with an error."""
MAX_EPISODE_BYTES = 16 * 1024 * 1024
"""The most that the arguments and results of an episode's calls may come to."""
SETUP_SECONDS = 120.0
"""For the author's code outside of tool calls: construction, user turns, grading."""

LOGGER = logging.getLogger("turngrad.envkit")


class UnknownEpisode(LookupError):
    """The token belongs to no live episode: never did, ended, or idle for too long."""


class LiveEpisode:
    """One world being played. Create it with `Episodes.open`."""

    def __init__(self, world: World) -> None:
        self.token = secrets.token_urlsafe(18)
        self.world = world
        self.last_used = time.monotonic()
        self.prompt: Messages = ""
        self._source: Iterator[Messages] | AsyncIterator[Messages] = world.turns()
        self._turns_left = True
        self._one_at_a_time = asyncio.Lock()
        self._answers: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._broken: str | None = None
        self._bytes = 0
        self._closed = False

    async def begin(self) -> None:
        """Fetch the prompt, the first user turn."""
        prompt = await self._advance()
        if prompt is None:
            raise RuntimeError(f"{type(self.world).__name__}.turns() yielded nothing; its first yield is the prompt")
        self.prompt = prompt

    def tools(self) -> list[Tool]:
        self.last_used = time.monotonic()
        return list(self.world.tools())

    async def answer(self, call: Call) -> dict[str, Any]:
        """MCP's tools/call result for `call`; a repeated id gets the answer of the first, even while that one runs.

        The call goes on when the caller hangs up: the repeat that follows finds its answer.
        """
        self.last_used = time.monotonic()
        task = self._answers.get(call.id)
        if task is None:
            task = self._answers[call.id] = asyncio.create_task(self._answer(call))
        return await asyncio.shield(task)

    async def finish(self, answer: str) -> Grade:
        """End the turn in progress and grade. Raises what the author's code raises."""
        async with self._one_at_a_time:
            if self._turns_left:
                await self._advance()
            grade = await _run(self.world.grade, answer, seconds=SETUP_SECONDS)
        return grade if isinstance(grade, Grade) else Grade(float(grade))

    async def close(self) -> None:
        """Free the world; later calls find no episode."""
        if self._closed:
            return
        self._closed = True
        for task in self._answers.values():
            task.cancel()
        with contextlib.suppress(Exception):
            if isinstance(self._source, AsyncIterator):
                await self._source.aclose()  # pyright: ignore[reportAttributeAccessIssue]
            else:
                self._source.close()  # pyright: ignore[reportAttributeAccessIssue]
        try:
            if type(self.world).close is not World.close:
                await _run(self.world.close, seconds=SETUP_SECONDS)
        except Exception:
            LOGGER.exception("%s.close() raised", type(self.world).__name__)

    async def _answer(self, call: Call) -> dict[str, Any]:
        async with self._one_at_a_time:
            try:
                if call.name == NEXT_TURN:
                    return await self._next_turn()
                return await self._tool_result(call)
            finally:
                self.last_used = time.monotonic()

    async def _tool_result(self, call: Call) -> dict[str, Any]:
        tools = self.world.tools()
        if self._broken is not None:
            return _result(self._broken, True, self.world)
        try:
            if not any(tool.name == call.name for tool in tools):
                raise ToolError(self.world.unknown_tool(call))
            size = len(json.dumps(call.arguments))
            if size > MAX_ARGUMENT_BYTES:
                raise ToolError(f"the arguments are {size} bytes long; at most {MAX_ARGUMENT_BYTES} are accepted")
            self._bytes += size
            value = await _run(self.world.call, call, seconds=self.world.call_timeout)
        except ToolError as error:
            return _result(str(error), True, self.world)
        except StuckError:
            self._broken = f"{call.name} could not be stopped after {self.world.call_timeout:g} s; no tool answers any more"
            return _result(self._broken, True, self.world)
        except WorldLost:
            # The endpoint's error, not a tool's: the client must not take it for the policy's doing.
            raise
        except TimeoutError:
            return _result(self.world.stopped(call), True, self.world)
        except Exception as error:
            if (what := SHORTAGE.behind(error)) is not None:
                raise WorldLost(f"the environment's process is out of {what} ({call.name}: {type(error).__name__})") from error
            LOGGER.warning("%s raised", call.name, exc_info=True)
            return _result(f"{type(error).__name__}: {error}", True, self.world)
        result = _result(value, False, self.world, tools_changed=list(self.world.tools()) != list(tools))
        self._bytes += sum(len(block.get("text") or block.get("data") or "") for block in result["content"])
        if self._bytes > MAX_EPISODE_BYTES:
            self._broken = f"this episode has sent and received more than {MAX_EPISODE_BYTES} bytes; no tool answers any more"
        return result

    async def _next_turn(self) -> dict[str, Any]:
        tools = list(self.world.tools())
        messages = None
        if self._turns_left and self.world.user_turns and not self.world.over:
            messages = await self._advance()
        done = messages is None
        turn = {
            "done": done,
            "messages": [] if messages is None else as_messages(messages),
            "tools_changed": not done and list(self.world.tools()) != tools,
        }
        return {"content": [{"type": "text", "text": json.dumps(turn)}], "structuredContent": turn, "isError": False}

    async def _advance(self) -> Messages | None:
        """The next yield of `turns()`, or None at its end."""
        source = self._source
        if isinstance(source, AsyncIterator):
            async with asyncio.timeout(SETUP_SECONDS):
                messages = await anext(source, None)
        else:
            messages = await in_thread(lambda: next(source, None), seconds=SETUP_SECONDS)
        self._turns_left = messages is not None
        return messages


class Episodes:
    """The live episodes of one environment, by token; idle ones end after `idle_seconds`."""

    def __init__(self, idle_seconds: float) -> None:
        self.idle_seconds = idle_seconds
        self._by_token: dict[str, LiveEpisode] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._by_token)

    def find(self, token: str) -> LiveEpisode:
        """Raises UnknownEpisode."""
        episode = self._by_token.get(token)
        if episode is None:
            raise UnknownEpisode("no live episode has this token: it ended, sat idle for too long, or never was")
        return episode

    async def open(self, world: Callable[..., World], arguments: dict[str, Any]) -> LiveEpisode:
        """Build the world and fetch its prompt; nothing stays behind when that raises."""
        episode = None
        try:
            episode = LiveEpisode(await in_thread(lambda: world(**arguments), seconds=SETUP_SECONDS))
            await episode.begin()
        except BaseException as error:
            SHORTAGE.behind(error)
            if episode is not None:
                await episode.close()
            raise
        self._by_token[episode.token] = episode
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep())
        return episode

    async def close(self, episode: LiveEpisode) -> None:
        self._by_token.pop(episode.token, None)
        await episode.close()

    async def close_all(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for episode in list(self._by_token.values()):
            await self.close(episode)

    async def _sweep(self) -> None:
        """A client that vanishes leaves its task parked in hud's server for good; its world must not stay with it."""
        while self._by_token:
            await asyncio.sleep(min(30.0, self.idle_seconds / 2))
            limit = time.monotonic() - self.idle_seconds
            for episode in [episode for episode in self._by_token.values() if episode.last_used < limit]:
                await self.close(episode)


def as_messages(messages: Messages) -> list[dict[str, Any]]:
    """A user turn as a list of messages."""
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


async def _run(function: Callable[..., Any], *args: Any, seconds: float) -> Any:
    """The author's method: `async` ones on the loop, plain ones in a thread that is stopped at the time-out."""
    if inspect.iscoroutinefunction(function):
        async with asyncio.timeout(seconds):
            return await function(*args)
    value = await in_thread(function, *args, seconds=seconds)
    if inspect.isawaitable(value):
        async with asyncio.timeout(seconds):
            return await value
    return value


def _result(value: Any, is_error: bool, world: World, tools_changed: bool = False) -> dict[str, Any]:
    """A tools/call result whose text is valid Unicode whatever the policy wrote; `_meta` speaks to the loop alone."""
    if isinstance(value, RawResult):
        result: dict[str, Any] = {"content": value.content, "isError": value.is_error}
        if value.structured is not None:
            result["structuredContent"] = value.structured
    else:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        result = {"content": [{"type": "text", "text": _valid(text)}], "isError": is_error}
        if isinstance(value, dict) and not is_error:
            result["structuredContent"] = json.loads(json.dumps(value, default=str))
    meta = {"turngrad/done": world.over, "turngrad/tools-changed": tools_changed}
    if any(meta.values()):
        result["_meta"] = meta
    return result


def _valid(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
