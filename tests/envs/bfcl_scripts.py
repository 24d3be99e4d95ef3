"""Ground truth as calls a policy could make, and scripts that play lists of calls."""

from __future__ import annotations

import copy
from typing import Any

from bfcl_data import Entry, TruthCall, function_documents
from hud.eval import Task, rollout
from hud.eval.run import Run

from tests.players import Mcp, Player
from turngrad.pool import ServerPool

Calls = list[list[tuple[str, dict[str, Any]]]]
"""Per turn, the calls: name and arguments."""


def truth(entry: Entry) -> Calls:
    """The ground truth by name; arguments without a name take the documented parameters in order."""
    documents = {name: document for owner in entry.involved_classes for name, document in function_documents(owner).items()}

    def named(call: TruthCall) -> tuple[str, dict[str, Any]]:
        in_order = zip(documents[call.name]["parameters"]["properties"], call.positional, strict=False)
        # The backends keep the lists they are given.
        return call.name, copy.deepcopy({**dict(in_order), **call.arguments})

    return [[named(call) for call in calls] for calls in entry.ground_truth]


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
