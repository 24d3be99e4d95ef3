"""One episode of ours played by one of hud's own agents: the tools, user turns and limits that our turn loop gives a policy.

hud's tool agents open an environment's MCP servers without the episode's token, list the tools once and end where the model
stops calling. `playing` makes a subclass of one that plays through our tool session instead: the same offered tools, texts,
time-outs and classes of failure as for a policy (C7, C8), tools that appear in mid-episode, and, where the environment has a
user who speaks, its next turn when the model ends one. What the provider's model says, and how it is asked, stays hud's.
The tokens are the provider's: turns are recorded without any, which can be evaluated and never trains (C1).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mcp.types as mcp_types
from hud.agents.tool_agent import TRUNCATION_FINISH_REASONS, RunState, ToolAgent
from hud.agents.tools.base import AgentTool
from hud.agents.tools.mcp import MCPTool
from hud.agents.types import AgentStep, Sample, ToolStep
from hud.capabilities import MCPClient
from hud.types import MCPToolCall, MCPToolResult

from turngrad.agent import LoopSettings
from turngrad.episodes import BadCall, Failure, StopReason
from turngrad.errors import RolloutError, RunError
from turngrad.hud_run import EXTRA_KEY, failure_state
from turngrad.tools import ToolSession, open_tools

if TYPE_CHECKING:
    from hud.eval.run import Run

CONNECTION = "tools"
_STOPS = {"length": StopReason.MAX_TOKENS, "malformed_tool_call": StopReason.MALFORMED}


class ContextOverflow(Exception):
    """The conversation is longer than the model's context: the model's own doing, graded as it stands."""


@dataclass(frozen=True, slots=True)
class Play:
    """`name` stands for the weights in records; `fault` says what an exception of the provider's client means, and `answered`
    is told of each of its answers."""

    name: str
    loop: LoopSettings
    fault: Callable[[Exception], RolloutError | RunError | ContextOverflow]
    answered: Callable[[AgentStep], None]


def playing(agent: type[ToolAgent[Any, Any]], config: Any, play: Play) -> ToolAgent[Any, Any]:
    """An instance of `agent`, one of hud's, for one episode."""
    player = type(f"Playing{agent.__name__}", (_Player, agent), {})(config)
    player.play = play
    return player


class _Player(ToolAgent[Any, Any]):
    """Stands before a class of hud's in the method order; one instance plays one episode."""

    play: Play

    async def __call__(self, run: Run) -> None:
        loop = self.play.loop
        state: dict[str, Any] = {"snapshot": self.play.name}
        run.trace.extra[EXTRA_KEY] = state
        try:
            async with asyncio.timeout(loop.episode_timeout):
                async with open_tools(run, timeout=loop.tool_timeout, offer=loop.tools) as tools:
                    stop = await self._play(run, tools)
        except TimeoutError:
            stop = StopReason.TIMEOUT
            state["failure"] = Failure.TIMEOUT.value
            state["error"] = f"the episode took longer than --episode-timeout {loop.episode_timeout:g} s"
        except Exception as error:
            state |= failure_state(error)
            stop = StopReason.INFRASTRUCTURE
        state["stop_reason"] = stop.value

    async def _play(self, run: Run, tools: ToolSession) -> StopReason:
        self._run, self._episode = run, _Episode(tools, self.play.loop)
        self._connections: dict[str, Any] = {CONNECTION: self._episode}
        state = await self._initialize_state(prompt=run.prompt_messages)
        state.tools, state.params = await self._build_tools(self._connections)
        await self._loop(run, state)
        for step, facts in zip((s for s in run.trace.steps if isinstance(s, ToolStep)), self._episode.facts, strict=False):
            step.extra[EXTRA_KEY] = facts
        if self._episode.fault is not None:
            raise self._episode.fault
        if self._episode.stop is not None:
            # What hud calls an error of the run is here the model's doing, and the run goes on to be graded.
            run.trace.status = "completed"
            return self._episode.stop
        stop = _STOPS.get(run.trace.stop_reason or "", StopReason.DONE)
        if run.trace.status == "error" and stop is not StopReason.MALFORMED:
            raise RolloutError(Failure.SAMPLER, run.trace.error or "hud's agent ended with an error and no reason")
        run.trace.status = "completed"
        return stop

    async def get_response(self, state: RunState[Any], **options: Any) -> AgentStep:
        """The model's next message with calls, or its last one; user turns in between are asked for and answered here.

        Never raises for the provider: hud's loop would write a traceback for each.
        """
        episode = self._episode
        while True:
            if episode.over:
                return AgentStep(content=episode.said, done=True)
            if episode.steps >= self.play.loop.max_turns:
                episode.stop = StopReason.MAX_TURNS
                return AgentStep(content=episode.said, done=True)
            try:
                if episode.tools_changed:
                    await episode.refresh()
                    state.tools, state.params = await self._build_tools(self._connections)
                step = await self._ask(state, options)
                if step.tool_calls or not step.done or step.finish_reason in TRUNCATION_FINISH_REASONS:
                    return step
                turn = await episode.tools.next_user_turn(step=episode.steps)
            except (RolloutError, RunError) as error:
                episode.fault = error
                return AgentStep(done=True, error=str(error))
            except ContextOverflow as error:
                episode.stop = StopReason.CONTEXT_OVERFLOW
                return AgentStep(content=episode.said, done=True, error=str(error))
            if turn.done:
                return step
            self._run.record(step)
            episode.tools_changed = episode.tools_changed or turn.tools_changed
            state.messages += [self._format_user_text(message["content"]) for message in turn.messages]
            episode.user_turn += 1

    async def _ask(self, state: RunState[Any], options: dict[str, Any]) -> AgentStep:
        """One request of the provider, through hud's own class."""
        started = time.monotonic()
        try:
            step = await super().get_response(state, **options)  # pyright: ignore[reportAbstractUsage]
        except Exception as error:
            raise self.play.fault(error) from error
        self.play.answered(step)
        step.sample = Sample()
        step.extra[EXTRA_KEY] = {"user_turn": self._episode.user_turn, "seconds": time.monotonic() - started}
        self._episode.steps += 1
        self._episode.said = step.content
        return step

    async def _dispatch_call(self, call: MCPToolCall, state: RunState[Any]) -> MCPToolResult:
        """hud's own dispatch, with the facts that a policy's calls leave and the limit on bad ones in a row."""
        started = time.monotonic()
        bad = None
        if isinstance(call.arguments, str):
            bad = BadCall.UNPARSABLE
        elif call.name not in state.tools:
            bad = BadCall.UNKNOWN_TOOL
        elif self._episode.invalid_arguments(state.tools[call.name], call.arguments or {}):
            bad = BadCall.INVALID_ARGUMENTS
        result = await super()._dispatch_call(call, state)
        self._episode.note(bad, time.monotonic() - started)
        return result


class _Episode(MCPClient):
    """Our tool session in the shape of hud's MCP client. `steps` counts the model's messages, of which calls carry the number."""

    def __init__(self, tools: ToolSession, loop: LoopSettings) -> None:
        self.tools = tools
        self.steps = 0
        self.user_turn = 0
        self.said: str | None = None
        self.facts: list[dict[str, Any]] = []
        self.tools_changed = False
        self.over = False
        self.fault: RolloutError | RunError | None = None
        self.stop: StopReason | None = None
        self._key = uuid.uuid4().hex
        self._calls = 0
        self._bad_in_a_row = 0
        self._loop = loop

    async def refresh(self) -> None:
        await self.tools.refresh()
        self.tools_changed = False

    async def list_tools(self) -> list[mcp_types.Tool]:
        functions = [spec["function"] for spec in self.tools.specs]
        return [mcp_types.Tool(name=f["name"], description=f["description"], inputSchema=f["parameters"]) for f in functions]

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> MCPToolResult:
        """One call, checked and sent as a policy's; a broken server ends the episode at the model's next message."""
        if self.over:
            return _result("Error: the conversation is over; nothing was executed", True)
        wrong = self.tools.invalid_arguments(name, arguments)
        if wrong is not None:
            return _result(f"Error: {wrong}", True)
        self._calls += 1
        if self._calls > self._loop.max_tool_calls:
            self._end(StopReason.MAX_TOOL_CALLS)
            return _result(f"Error: more than --max-tool-calls {self._loop.max_tool_calls}; nothing was executed", True)
        try:
            outcome = await self.tools.call(name, arguments, call_id=f"{self._key}-{self._calls}", step=self.steps)
        except RolloutError as error:
            self.fault, self.over = error, True
            return _result(str(error), True)
        self.over = self.over or outcome.done
        self.tools_changed = self.tools_changed or outcome.tools_changed
        return _result(outcome.text, outcome.is_error)

    def invalid_arguments(self, tool: AgentTool[Any], arguments: dict[str, Any]) -> str | None:
        return self.tools.invalid_arguments(tool.mcp_tool.name, arguments) if isinstance(tool, MCPTool) else None

    def note(self, bad: BadCall | None, seconds: float) -> None:
        """Facts of one call, which hud's record has no field for."""
        self.facts.append({"bad": bad.value if bad else None, "seconds": seconds})
        self._bad_in_a_row = 0 if bad is None else self._bad_in_a_row + 1
        if self._bad_in_a_row >= self._loop.max_bad_calls:
            self._end(StopReason.MALFORMED)

    async def close(self) -> None:
        """Nothing: `open_tools` closes what it opened."""

    def _end(self, stop: StopReason) -> None:
        self.stop, self.over = stop, True


def _result(text: str, is_error: bool) -> MCPToolResult:
    return MCPToolResult(content=[mcp_types.TextContent(type="text", text=text)], isError=is_error)
