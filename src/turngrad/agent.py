"""The turn loop: a hud Agent that samples, records, calls tools, asks for the next user turn, and stops.

1. Open the conversation from the run's prompt and the MCP tool list.
2. Sample a turn within the room that is left; record it with its exact ids and logprobs.
3. Calls: run them in order and append their results; a bad call gets one error reply and the loop goes on.
4. No call: ask the environment what the user says next; stop when there is nothing more.
An environment without tools or user turns is the single-turn case of the same loop: one turn.

What the policy does wrong ends the episode with a `StopReason` and is graded; what fails around it raises `RolloutError`
with its class (C7). One agent instance drives any number of rollouts at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from hud.agents.base import Agent
from hud.agents.types import AgentStep, Sample, ToolStep, Usage
from hud.settings import settings as hud_settings
from hud.types import MCPToolCall, MCPToolResult, Step
from mcp.types import TextContent
from renderers.base import ParsedResponse, ParsedToolCall, ToolCallParseStatus

from turngrad.conversation import Conversation, History, ModelFamily, ToolUpdates
from turngrad.episodes import BadCall, Failure, StopReason
from turngrad.hud_run import EXTRA_KEY, failure_state
from turngrad.policy import Policy
from turngrad.tools import Outcome, ToolFilter, ToolSession, open_tools

if TYPE_CHECKING:
    from hud.eval.run import Run


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Limits of one episode: tokens, counts, and seconds."""

    max_tokens: int = 512
    """Per assistant turn."""
    max_seq_len: int = 8192
    """Prompt and answer together."""
    min_tokens: int = 16
    """A turn with less room than this is not sampled: the episode stops as `context_overflow`."""
    max_turns: int = 64
    max_tool_calls: int = 256
    max_bad_calls: int = 3
    """Bad calls in a row before the episode stops as `malformed`."""
    max_tool_tokens: int = 2048
    tool_timeout: float = 60.0
    episode_timeout: float = 900.0
    history: History = "keep"
    tool_updates: ToolUpdates = "append"
    parallel_tools: bool = False
    tools: ToolFilter = field(default_factory=ToolFilter)
    seed: int | None = None


class TurnLoopAgent(Agent):
    """Plays a hud run with one policy. See the module docstring for the loop."""

    def __init__(self, family: ModelFamily, policy: Policy, settings: LoopSettings) -> None:
        super().__init__()
        self.family = family
        self.policy = policy
        self.settings = settings

    async def __call__(self, run: Run) -> None:
        state: dict[str, Any] = {"snapshot": self.policy.snapshot}
        run.trace.extra[EXTRA_KEY] = state
        try:
            async with asyncio.timeout(self.settings.episode_timeout):
                async with open_tools(run, timeout=self.settings.tool_timeout, offer=self.settings.tools) as tools:
                    stop = await _Loop(self, run, tools).play()
        except TimeoutError:
            # Not raised further: hud then grades what there is, within a budget of its own.
            stop = StopReason.TIMEOUT
            state["failure"] = Failure.TIMEOUT.value
            state["error"] = f"the episode took longer than --episode-timeout {self.settings.episode_timeout:g} s"
        except Exception as error:
            state |= failure_state(error)
            state["stop_reason"] = StopReason.INFRASTRUCTURE.value
            raise
        state["stop_reason"] = stop.value
        run.trace.stop_reason = "timeout" if stop is StopReason.TIMEOUT else "done" if stop is StopReason.DONE else "max_steps"


class _Loop:
    """One episode in progress."""

    def __init__(self, agent: TurnLoopAgent, run: Run, tools: ToolSession) -> None:
        self.settings = agent.settings
        self.policy = agent.policy
        self.family = agent.family
        self.run = run
        self.tools = tools
        self.episode_key = uuid.uuid4().hex
        self.steps = 0
        self.calls = 0
        self.bad_in_a_row = 0
        self.user_turn = 0
        self.done = False
        self.tools_changed = False

    async def play(self) -> StopReason:
        settings = self.settings
        conversation = Conversation(
            self.family,
            opening_messages(self.run),
            self.tools.specs,
            history=settings.history,
            tool_updates=settings.tool_updates,
        )
        await conversation.open()
        while True:
            if self.steps >= settings.max_turns:
                return StopReason.MAX_TURNS
            room = settings.max_seq_len - len(conversation.prompt_ids)
            if room < min(settings.min_tokens, settings.max_tokens):
                return StopReason.CONTEXT_OVERFLOW
            parsed, cut = await self._sample(conversation, min(settings.max_tokens, room))
            self.run.trace.content = parsed.content
            if cut:
                # Nothing of a cut turn is executed: a call may be whole only by chance.
                return StopReason.MAX_TOKENS if room >= settings.max_tokens else StopReason.CONTEXT_OVERFLOW
            if not parsed.tool_calls:
                turn = await self.tools.next_user_turn(step=self.steps)
                if turn.done:
                    return StopReason.DONE
                if turn.tools_changed:
                    await self.tools.refresh()
                await conversation.extend(turn.messages, tools=self.tools.specs)
                self.user_turn += 1
                continue
            replies, stop = await self._run_calls(parsed.tool_calls)
            if stop is not None:
                return stop
            if self.tools_changed:
                await self.tools.refresh()
                self.tools_changed = False
            await conversation.extend(replies, tools=self.tools.specs)

    async def _sample(self, conversation: Conversation, max_tokens: int) -> tuple[ParsedResponse, bool]:
        sample = await self.policy.sample(
            conversation.prompt_ids, max_tokens, cache_key=self.episode_key, seed=self._seed(conversation)
        )
        cut = sample.finish_reason == "length"
        prompt_ids, segment_break = conversation.prompt_ids, conversation.segment_break
        parsed = await conversation.answer(sample.output_ids)
        self.steps += 1
        _record(
            self.run,
            AgentStep(
                content=parsed.content,
                reasoning=parsed.reasoning_content,
                tool_calls=[] if cut else [_mcp_call(call, f"call-{self.steps}-{i}") for i, call in enumerate(parsed.tool_calls)],
                done=not parsed.tool_calls or cut,
                finish_reason=sample.finish_reason,
                model=self.policy.snapshot,
                usage=Usage(
                    prompt_tokens=len(prompt_ids), completion_tokens=len(sample.output_ids), cached_tokens=sample.cached_tokens
                ),
                # Checked by the policy already; pydantic would look at every token of the episode once a turn.
                sample=Sample.model_construct(
                    prompt_token_ids=prompt_ids, output_token_ids=sample.output_ids, output_logprobs=sample.logprobs
                ),
                extra={
                    EXTRA_KEY: {
                        "segment_break": segment_break.value if segment_break else None,
                        "user_turn": self.user_turn,
                        "seconds": sample.seconds,
                    }
                },
            ),
        )
        return parsed, cut

    async def _run_calls(self, calls: list[ParsedToolCall]) -> tuple[list[dict[str, Any]], StopReason | None]:
        """Answer every call of one message, in order. A stop reason ends the episode before its next sample."""
        checked = [(call, *self._check(call)) for call in calls]
        room = self.settings.max_tool_calls - self.calls
        good = [entry for entry in checked if entry[1] is None]
        if len(good) > room:
            return [], StopReason.MAX_TOOL_CALLS
        self.calls += len(good)
        if self.settings.parallel_tools and self.tools.parallel_safe:
            replies = list(await asyncio.gather(*(self._answer(i, *entry) for i, entry in enumerate(checked))))
        else:
            replies = [await self._answer(i, *entry) for i, entry in enumerate(checked)]
        if self.done:
            return replies, StopReason.DONE
        for _, bad, _ in checked:
            self.bad_in_a_row = 0 if bad is None else self.bad_in_a_row + 1
            if self.bad_in_a_row >= self.settings.max_bad_calls:
                return replies, StopReason.MALFORMED
        return replies, None

    def _check(self, call: ParsedToolCall) -> tuple[BadCall | None, str]:
        if call.status not in (ToolCallParseStatus.OK, ToolCallParseStatus.UNKNOWN_TOOL):
            return BadCall.UNPARSABLE, f"Error: this tool call could not be parsed ({call.status.value.replace('_', ' ')})"
        if call.name is None or not self.tools.knows(call.name):
            return BadCall.UNKNOWN_TOOL, f"Error: there is no tool called {(call.name or '')[:80]!r}"
        wrong = self.tools.invalid_arguments(call.name, call.arguments)
        if wrong is not None:
            return BadCall.INVALID_ARGUMENTS, f"Error: {wrong}"
        return None, ""

    async def _answer(self, index: int, call: ParsedToolCall, bad: BadCall | None, complaint: str) -> dict[str, Any]:
        call_id = f"call-{self.steps}-{index}"
        if bad is None:
            outcome = await self.tools.call(
                cast("str", call.name),
                cast("dict[str, Any]", call.arguments),
                call_id=f"{self.episode_key}-{call_id}",
                step=self.steps,
            )
            self.done = self.done or outcome.done
            self.tools_changed = self.tools_changed or outcome.tools_changed
        else:
            outcome = Outcome(complaint, False, 0.0)
        text = await self.family.cap_text(outcome.text, self.settings.max_tool_tokens)
        _record(
            self.run,
            ToolStep(
                call=_mcp_call(call, call_id),
                result=MCPToolResult(
                    content=[TextContent(type="text", text=text)], isError=outcome.is_error or bad is not None, call_id=call_id
                ),
                extra={EXTRA_KEY: {"bad": bad.value if bad else None, "raw": call.raw, "seconds": outcome.seconds}},
            ),
        )
        return {"role": "tool", "tool_call_id": call_id, "name": call.name or "unknown", "content": text}

    def _seed(self, conversation: Conversation) -> int | None:
        """A seed for this sample from the episode's own: an engine that honours seeds repeats the episode."""
        if self.settings.seed is None:
            return None
        text = f"{self.settings.seed}:{self.steps}:{len(conversation.prompt_ids)}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def _record(run: Run, step: Step) -> None:
    """Record a step on the trace; without a key, spare hud the two serialisations for an exporter that drops them."""
    if hud_settings.api_key:
        run.record(step)
    else:
        step.step_id = len(run.trace.steps) + 1
        run.trace.steps.append(step)


def opening_messages(run: Run) -> list[dict[str, Any]]:
    """The run's prompt as chat messages; system messages and chat-style lists pass as they are."""
    if isinstance(run.prompt, list) and all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in run.prompt):
        return [{"role": m["role"], "content": m["content"]} for m in run.prompt]
    return [{"role": str(m.role), "content": m.content.text} for m in run.prompt_messages if isinstance(m.content, TextContent)]


def _mcp_call(call: ParsedToolCall, call_id: str) -> MCPToolCall:
    arguments = call.arguments if isinstance(call.arguments, dict) else call.raw
    return MCPToolCall(id=call_id, name=call.name or "", arguments=arguments)
