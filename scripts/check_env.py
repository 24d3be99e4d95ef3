#!/usr/bin/env python3
"""Check an environment before training on it: `uv run scripts/check_env.py --env-path env.py --tasks-file tasks.jsonl`."""

from __future__ import annotations

import sys
from typing import Any

from pydantic import Field, create_model

from turngrad.cli import parse_flags, run_script
from turngrad.config import ENVIRONMENT_SETTINGS, TrainConfig, config_from
from turngrad.display import Display
from turngrad.run import supervised
from turngrad.tasksets import load_taskset

DOCUMENTATION = """Play an environment as training will, without a model, and say what to mend.

Its tools are called with made-up arguments, as an untrained policy would call them; --calls 0 calls none.
"""
_FIELDS: dict[str, Any] = {
    name: (field.annotation, Field(field.default, description=field.description))
    for name, field in TrainConfig.model_fields.items()
    if name in (*ENVIRONMENT_SETTINGS, "taskset", "tool_timeout")
}
CheckConfig = create_model(
    "CheckConfig",
    __doc__=DOCUMENTATION,
    **_FIELDS,
    episodes=(int, Field(16, ge=2, description="Episodes at once in the test of isolation.")),
    calls=(int, Field(6, ge=0, description="Made-up tool calls of an episode.")),
    seed=(int, Field(0, description="Seed of the made-up calls.")),
)


def check_env(arguments: list[str]) -> int:
    """Print the findings and a verdict; status 1 when something has to be mended."""
    given = parse_flags(CheckConfig, arguments).model_dump()
    settings = {name: given.pop(name) for name in ("episodes", "calls", "seed")}
    config = config_from({**given, "backend": "local", "calibrate": True, "tasks_per_step": 1, "eval_tasks": 0}).resolve()
    faults: list[str] = []
    status = supervised(_check(config, settings, faults, Display()))
    return status or int(bool(faults))


async def _check(config: TrainConfig, settings: dict[str, Any], faults: list[str], display: Display) -> None:
    taskset = load_taskset(config)
    # Here, not at the top: hud takes seconds that --help should not.
    from turngrad.envcheck.checks import CheckSettings, check
    from turngrad.rollout import hud_task, quiet_rollouts
    from turngrad.runtimes import open_runtime
    from turngrad.tools import ToolFilter

    quiet_rollouts()
    rows = [hud_task(row) for row in (*taskset.train, *taskset.held_out)]
    display.say(f"checking {taskset.name}: {len(rows)} tasks, served by {taskset.placement.kind}")
    offer = ToolFilter(config.tools, config.exclude_tools)
    async with open_runtime(taskset.placement, first=rows[0]) as provider:
        findings = await check(rows, provider, CheckSettings(timeout=config.tool_timeout, offer=offer, **settings))
    for finding in findings:
        display.say(f"  {finding.kind:<7} {finding.what}")
        if finding.mend:
            display.say(f"          mend: {finding.mend}")
    faults += [finding.what for finding in findings if finding.kind == "fault"]
    remarks = sum(finding.kind == "remark" for finding in findings)
    if faults:
        display.say(f"verdict: not ready, {len(faults)} to mend")
    else:
        display.say(
            f"verdict: ready to train{f', {remarks} to look at' if remarks else ''}; next: scripts/train.py with --calibrate"
        )


if __name__ == "__main__":
    sys.exit(run_script(check_env))
