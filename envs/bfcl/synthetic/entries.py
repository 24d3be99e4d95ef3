"""BFCL's own entries, read for the warm start: the training scenarios as structured tasks.

In: the installed package's JSON files and the split of this repository. Out: entries whose ground truth is a list of calls
`{"name", "arguments"}` per turn. Held-out scenarios are never read into an entry.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from .world import data_folder, parameters

_SPLIT = Path(__file__).parents[1] / "split.json"
_CATEGORY = "BFCL_v4_multi_turn_base.json"

Call = dict[str, Any]


def held_out_indices() -> frozenset[int]:
    """Scenario indices that must never train, the same in every category."""
    return frozenset(json.loads(_SPLIT.read_text(encoding="utf-8"))["held_out"])


def training_entries() -> list[dict[str, Any]]:
    """The base entries of the training scenarios, in order, with `ground_truth` as structured calls."""
    held_out = held_out_indices()
    answers = {}
    for line in _lines(data_folder() / "possible_answer" / _CATEGORY):
        answer = json.loads(line)
        answers[answer["id"]] = answer["ground_truth"]
    entries = []
    for line in _lines(data_folder() / _CATEGORY):
        entry = json.loads(line)
        if scenario_index(entry["id"]) in held_out:
            continue
        entry["ground_truth"] = [[parse_call(call) for call in turn] for turn in answers[entry["id"]]]
        entries.append(entry)
    return entries


def scenario_index(entry_id: str) -> int:
    """`multi_turn_base_17` is scenario 17."""
    return int(entry_id.rsplit("_", 1)[1])


def parse_call(text: str) -> Call:
    """A ground-truth call string as name and arguments, in the order of the function's doc. Parsed, never evaluated."""
    node = ast.parse(text.strip(), mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"expected one call of a function by its name, found {text!r}")
    names = parameters(node.func.id)
    given = dict(zip(names, (ast.literal_eval(value) for value in node.args), strict=False))
    given.update({keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg})
    return {"name": node.func.id, "arguments": {name: given[name] for name in names if name in given}}


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
