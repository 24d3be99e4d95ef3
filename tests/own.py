"""Rollouts of a user's own environment with a scripted policy: flags in, episodes out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.families import family
from tests.scripted import Line, ScriptedPolicy
from turngrad.agent import LoopSettings
from turngrad.cli import parse_flags
from turngrad.config import TrainConfig
from turngrad.episodes import Episode
from turngrad.rollout import Rollouts, RolloutSettings, hud_task
from turngrad.runtimes import open_runtime
from turngrad.tasksets import Taskset, load_taskset
from turngrad.tools import ToolFilter

MODEL = family("qwen3")


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def resolved(*flags: str) -> TrainConfig:
    return parse_flags(TrainConfig, ["--backend", "local", *flags]).resolve()


def load(*flags: str) -> Taskset:
    return load_taskset(resolved(*flags))


async def play(
    config: TrainConfig,
    script: Sequence[Line] | Callable[[str], Sequence[Line]],
    *,
    attempts: int = 1,
    tasks: Sequence[str] | None = None,
    concurrent: int = 64,
) -> dict[str, list[Episode]]:
    """Every task (or those named) `attempts` times; `script` may depend on the task's id. Episodes by task id."""
    taskset = load_taskset(config)
    rows = [row for row in (*taskset.train, *taskset.held_out) if tasks is None or row.id in tasks]
    offer = ToolFilter(config.tools, config.exclude_tools)
    settings = LoopSettings(max_tokens=300, max_seq_len=32768, tool_timeout=config.tool_timeout, tools=offer)
    episodes = {}
    async with open_runtime(taskset.placement, first=hud_task(rows[0])) as provider:
        hosted = taskset.placement.kind == "hud"
        rollouts = Rollouts(MODEL, provider, settings, RolloutSettings(concurrent, retries=0), hosted=hosted)
        for row in rows:
            policy = ScriptedPolicy(MODEL, script(row.id) if callable(script) else script)
            groups = rollouts.groups([row], attempts, policy, seed="0")  # type: ignore[arg-type]
            episodes[row.id] = [episode async for group in groups for episode in group.episodes]
    return episodes
