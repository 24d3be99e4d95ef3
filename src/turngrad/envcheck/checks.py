"""The checks: an environment is played alone, again, and among noisy neighbours, and what differs is told.

1. Do nothing in every task: does it start, are tools and schemas valid, is the grade finite, what does idleness earn?
2. One plan of made-up calls, alone, twice: does an episode start where the last one started?
3. The same plan among episodes that make other calls, all at once: does any of them show in another?
What a check cannot prove it does not claim: a verdict without faults means that none was seen.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hud.eval import Task
from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import validator_for

from turngrad.envcheck.made_up import made_up
from turngrad.envcheck.probe import Plan, Sight, look, nothing
from turngrad.tools import ToolFilter

if TYPE_CHECKING:
    from hud.eval.runtime import Provider

CHARACTERS_PER_TOKEN = 4
_SLOW_CALL = 5.0
_LONG_PROMPT = 6000
_LONG_RESULT = 2048
_IDLE_TASKS = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """`fault`: training would go wrong; `remark`: look at it; `fine`: seen to hold. `mend` says what to change."""

    kind: Literal["fine", "remark", "fault"]
    what: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """`episodes` at once, `calls` an episode (0: no tool is called), seconds a request may take."""

    episodes: int = 16
    calls: int = 6
    timeout: float = 60.0
    seed: int = 0
    offer: ToolFilter = field(default_factory=ToolFilter)


async def check(tasks: Sequence[Task], provider: Provider, settings: CheckSettings) -> list[Finding]:
    """Play the tasks as the module docstring says; findings in the order of the checks."""

    async def see(task: Task, plan: Plan) -> Sight:
        return await look(task, provider, plan, timeout=settings.timeout, offer=settings.offer)

    idle = [await see(tasks[0], nothing)]
    if idle[0].error is not None:
        return [
            Finding("fault", f"task {tasks[0].slug!r} does not run: {idle[0].error}", "mend this first; the rest waits for it")
        ]
    idle += await asyncio.gather(*(see(task, nothing) for task in tasks[1:_IDLE_TASKS]))
    findings = [*_starts(idle), *_tools(idle), *_prompts(idle)]
    plan = planned(settings.seed, settings.calls)
    first, second = await see(tasks[0], plan), await see(tasks[0], plan)
    noise = [planned(settings.seed + 1 + n, settings.calls) for n in range(settings.episodes // 2)]
    crowd = await asyncio.gather(
        *(see(tasks[0], plan) for _ in range(settings.episodes - len(noise))),
        *(see(tasks[(n + 1) % len(tasks)], other) for n, other in enumerate(noise)),
    )
    watchers, neighbours = crowd[: settings.episodes - len(noise)], crowd[settings.episodes - len(noise) :]
    findings += _fresh(first, second)
    findings += _apart(first, second, watchers)
    played = [*idle, first, second, *crowd]
    findings += [*_failed([first, second, *watchers, *neighbours]), *_rewards(idle, played), *_answers(played)]
    return findings


def planned(seed: int, calls: int) -> Plan:
    """Calls with made-up arguments, the same for the same seed and tools; every tool once before one comes twice."""

    def plan(tools: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        rng = random.Random(seed)
        names = [tool["function"]["name"] for tool in tools]
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        order: list[str] = []
        while names and len(order) < calls:
            order += rng.sample(names, len(names))
        return [(name, made_up(schemas[name], rng) or {}) for name in order[:calls]]

    return plan


def _starts(idle: Sequence[Sight]) -> list[Finding]:
    broken = [sight for sight in idle if sight.error is not None]
    if broken:
        names = ", ".join(sight.task_id for sight in broken[:3])
        return [Finding("fault", f"{len(broken)} of {len(idle)} tasks do not run ({names}): {broken[0].error}", "see the error")]
    slowest = max(sight.opened for sight in idle)
    turns = sorted({sight.user_turns for sight in idle})
    found = [
        Finding("fine", f"{len(idle)} tasks start and are graded, with {_span(turns)} user turns; ready after {slowest:.1f} s")
    ]
    other = sorted({protocol for sight in idle for protocol in sight.other_capabilities})
    if other:
        found.append(
            Finding("remark", f"capabilities that are not MCP: {', '.join(other)}", "the turn loop uses MCP tools alone")
        )
    return found


def _tools(idle: Sequence[Sight]) -> list[Finding]:
    found: list[Finding] = []
    tools = {tool["function"]["name"]: tool["function"] for sight in idle for tool in sight.tools}
    if not tools:
        return [Finding("remark", "no tools are listed", "fine for a single-turn environment, else look at its MCP capability")]
    for name, function in tools.items():
        schema = function["parameters"]
        try:
            validator_for(schema, default=Draft202012Validator).check_schema(schema)
        except SchemaError as error:
            found.append(
                Finding("fault", f"tool {name!r}: its input schema is no JSON Schema: {error.message}", "mend the schema")
            )
        if schema.get("type") != "object":
            found.append(
                Finding("fault", f"tool {name!r}: its input schema is not of type object", "wrap the argument in an object")
            )
        if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name):
            found.append(Finding("remark", f"tool {name!r}: many chat templates take letters, digits, _ and - only", "rename it"))
        if not function["description"].strip():
            found.append(Finding("remark", f"tool {name!r} has no description", "say what it does: the model reads nothing else"))
    size = max(_tokens(json.dumps(sight.tools)) for sight in idle)
    if not any(finding.kind == "fault" for finding in found):
        found.append(Finding("fine", f"{len(tools)} tools with valid schemas, about {size} tokens of every prompt"))
    return found


def _prompts(idle: Sequence[Sight]) -> list[Finding]:
    lengths = [_tokens(json.dumps(sight.tools) + json.dumps(sight.messages, ensure_ascii=False)) for sight in idle]
    found = [Finding("fine", f"prompts with tools are about {_span(sorted(lengths))} tokens long")]
    if max(lengths) > _LONG_PROMPT:
        mend = f"leave tools out with --exclude-tools, or see that --max-seq-len is well above {max(lengths)}"
        found = [Finding("remark", f"a prompt with its tools is about {max(lengths)} tokens long", mend)]
    empty = [sight.task_id for sight in idle if not any(message["content"].strip() for message in sight.messages)]
    if empty:
        found.append(Finding("fault", f"the prompt of {empty[0]!r} is empty", "yield what the user says first"))
    return found


def _fresh(first: Sight, second: Sight) -> list[Finding]:
    """Two lone episodes with the same calls, one after the other."""
    if first.error or second.error:
        return []
    for a, b in zip(first.calls, second.calls, strict=False):
        if a.is_error != b.is_error:
            what = f"the same call fared differently in two lone episodes: {a.name} said {_cut(a.text)}, then {_cut(b.text)}"
            return [Finding("fault", what, "an episode must start afresh: build its state in it, not in the module")]
        if a.text != b.text:
            what = f"{a.name} answered {_cut(a.text)} in one lone episode and {_cut(b.text)} in the next"
            mend = "fine for clocks and random numbers; else an episode does not start afresh"
            return [Finding("remark", what, mend)]
    if first.reward != second.reward:
        what = f"the same calls earned {first.reward} and then {second.reward}"
        return [Finding("fault", what, "the grade depends on more than the episode: its state, or chance, must not outlive it")]
    return [Finding("fine", f"an episode starts where the last one started ({len(first.calls)} calls answered alike)")]


def _apart(first: Sight, second: Sight, watchers: Sequence[Sight]) -> list[Finding]:
    """The same episode among neighbours; only what two lone ones agreed on is compared."""
    alike = [i for i, (a, b) in enumerate(zip(first.calls, second.calls, strict=False)) if a.text == b.text]
    for sight in watchers:
        for i in alike:
            if i < len(sight.calls) and sight.calls[i].text != first.calls[i].text:
                name, seen = first.calls[i].name, sight.calls[i].text
                what = f"among {len(watchers)} others {name} answered {_cut(seen)}, alone {_cut(first.calls[i].text)}"
                return [Finding("fault", what, "one episode shows in another: keep state per episode, as turngrad.envkit does")]
        if sight.error is None and first.reward == second.reward and sight.reward != first.reward:
            what = f"among others the same calls earned {sight.reward}, alone {first.reward}"
            return [Finding("fault", what, "one episode shows in another's grade: keep state per episode")]
    return [Finding("fine", f"{len(watchers)} episodes among as many noisy ones answered as they do alone")]


def _failed(sights: Sequence[Sight]) -> list[Finding]:
    broken = [sight for sight in sights if sight.error is not None]
    if not broken:
        return []
    what = f"{len(broken)} of {len(sights)} episodes with tool calls broke: {broken[0].error}"
    return [Finding("fault", what, "a bad call must be answered with an error; it may not take the episode down")]


def _rewards(idle: Sequence[Sight], played: Sequence[Sight]) -> list[Finding]:
    rewards = [sight.reward for sight in played if sight.reward is not None]
    if not all(map(math.isfinite, rewards)):
        return [Finding("fault", "a reward is not a finite number", "return a float; raise where grading is impossible")]
    earned = [sight.reward for sight in idle if sight.reward is not None]
    if not earned:
        return []
    mean = sum(earned) / len(earned)
    if max(earned) > 0 and len(set(rewards)) == 1:
        return [
            Finding("fault", f"every episode earns {rewards[0]:g}, whatever it does", "let the grade depend on what was done")
        ]
    if mean >= 0.5:
        return [
            Finding(
                "remark", f"doing nothing earns {mean:.2f} on average", "a policy may learn to do nothing: grade what was asked"
            )
        ]
    if len(set(rewards)) == 1:
        said = f"doing nothing, and made-up calls, earn {rewards[0]:g}: only a policy can tell whether the grade ever differs"
        return [Finding("fine", f"{said}; --calibrate does")]
    return [Finding("fine", f"doing nothing earns {mean:.2f} on average; rewards seen from {min(rewards):g} to {max(rewards):g}")]


def _answers(played: Sequence[Sight]) -> list[Finding]:
    calls = [call for sight in played for call in sight.calls]
    if not calls:
        return []
    slow, long = max(calls, key=lambda call: call.seconds), max(calls, key=lambda call: len(call.text))
    found = []
    if slow.seconds > _SLOW_CALL:
        found.append(Finding("remark", f"{slow.name} took {slow.seconds:.1f} s", "bound it, or raise --tool-timeout above it"))
    if _tokens(long.text) > _LONG_RESULT:
        mend = "let it answer less; --max-tool-tokens keeps head and tail only"
        found.append(Finding("remark", f"{long.name} answered about {_tokens(long.text)} tokens", mend))
    errors = sum(call.is_error for call in calls) / len(calls)
    summary = f"{len(calls)} calls: {errors:.0%} errors, slowest {slow.seconds:.2f} s, longest about {_tokens(long.text)} tokens"
    return [*found, Finding("fine", summary)]


def _tokens(text: str) -> int:
    return len(text) // CHARACTERS_PER_TOKEN


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _cut(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
