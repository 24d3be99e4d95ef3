"""One episode played by a plan instead of a model, and what was seen in it.

In: a task, a provider and a plan of calls. Out: a `Sight`. The environment meets exactly what it meets in training: hud's
rollout, the turn loop's own tool session, user turns asked for one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hud.agents.base import Agent
from hud.eval import Task, rollout

from turngrad.agent import opening_messages
from turngrad.tools import ToolFilter, ToolSession, open_tools

if TYPE_CHECKING:
    from hud.eval.run import Run
    from hud.eval.runtime import Provider

_MOST_TURNS = 50

Plan = Callable[[list[dict[str, Any]]], Sequence[tuple[str, dict[str, Any]]]]
"""From the tools on offer (OpenAI's function format), the calls to make in the first user turn."""


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One call and its answer; `seconds` of the call alone."""

    name: str
    arguments: dict[str, Any]
    text: str
    is_error: bool
    seconds: float


@dataclass(slots=True)
class Sight:
    """What an episode showed. `error` says why it has no reward; `opened` is the seconds until the tools were listed."""

    task_id: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    calls: list[SeenCall] = field(default_factory=list)
    user_turns: int = 1
    other_capabilities: list[str] = field(default_factory=list)
    reward: float | None = None
    error: str | None = None
    opened: float = 0.0


def nothing(tools: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The plan of a policy that calls no tool."""
    return []


async def look(task: Task, provider: Provider, plan: Plan, *, timeout: float, offer: ToolFilter) -> Sight:
    """Play one episode. `timeout` is in seconds, per request; never raises for what the environment does."""
    sight = Sight(task.slug)
    agent = _Prober(sight, plan, timeout, offer)
    run = await rollout(task, agent, runtime=provider, rollout_timeout=timeout * 10 + 120)
    if run.trace.status != "completed" or run.grade.is_error:
        sight.error = run.trace.error or run.grade.content or "the run failed and gave no reason"
    else:
        sight.reward = run.grade.reward
    return sight


class _Prober(Agent):
    def __init__(self, sight: Sight, plan: Plan, timeout: float, offer: ToolFilter) -> None:
        super().__init__()
        self.sight = sight
        self.plan = plan
        self.timeout = timeout
        self.offer = offer
        self.created = time.monotonic()

    async def __call__(self, run: Run) -> None:
        sight = self.sight
        sight.messages = opening_messages(run)
        manifest = run.client.manifest
        if manifest is not None:
            sight.other_capabilities = [c.protocol for c in manifest.bindings if not c.protocol.startswith("mcp")]
        async with open_tools(run, timeout=self.timeout, offer=self.offer) as tools:
            sight.opened = time.monotonic() - self.created
            sight.tools = tools.specs
            for number, (name, arguments) in enumerate(self.plan(tools.specs)):
                await self._call(tools, number, name, arguments)
            while not (turn := await tools.next_user_turn(step=sight.user_turns)).done:
                sight.user_turns += 1
                if sight.user_turns >= _MOST_TURNS:
                    break
                if turn.tools_changed:
                    await tools.refresh()
        run.trace.content = ""

    async def _call(self, tools: ToolSession, number: int, name: str, arguments: dict[str, Any]) -> None:
        if not tools.knows(name) or tools.invalid_arguments(name, arguments) is not None:
            return
        outcome = await tools.call(name, arguments, call_id=f"{id(self)}-{number}", step=1)
        self.sight.calls.append(SeenCall(name, arguments, outcome.text, outcome.is_error, outcome.seconds))
