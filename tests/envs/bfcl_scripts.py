"""Ground truth as calls a policy could make, and scripts that play lists of calls."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

from bfcl_data import Entry
from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING
from hud.eval import Task, rollout
from hud.eval.run import Run

from tests.players import Mcp, Player
from turngrad.pool import ServerPool

Calls = list[list[tuple[str, dict[str, Any]]]]
"""Per turn, the calls: name and arguments."""


def truth(entry: Entry) -> Calls:
    return [[named(entry, source) for source in turn] for turn in entry.ground_truth]


def named(entry: Entry, source: str) -> tuple[str, dict[str, Any]]:
    """`sort('a.txt')` as ("sort", {"file_name": "a.txt"})."""
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    name = call.func.id
    owners = [getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[owner]), owner) for owner in entry.involved_classes]
    method = next(getattr(owner, name) for owner in owners if hasattr(owner, name))
    parameters = list(inspect.signature(method).parameters)[1:]
    arguments = {
        **dict(zip(parameters, map(ast.literal_eval, call.args), strict=False)),
        **{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords},
    }
    return name, arguments


async def play(pool: ServerPool, entry: Entry | str | dict[str, Any], calls: Calls | Any, **options: Any) -> Run:
    """One rollout of an entry: a list of calls per turn, all of a turn in one step, or a script of its own."""
    script = calls if callable(calls) else lambda mcp, run: play_turns(mcp, calls)
    task = Task(env="bfcl", id="multi_turn", args={"entry": entry.id if isinstance(entry, Entry) else entry, **options})
    return await rollout(task, Player(script), runtime=pool)


async def play_turns(mcp: Mcp, turns: Calls) -> str:
    for step, turn in enumerate(turns):
        for name, arguments in turn:
            await mcp.result(name, arguments, step=step)
        if (await mcp.next_turn())["done"]:
            break
    return "done"
