"""BFCL multi-turn entries and function documents, read from the installed `bfcl_eval` package's files.

In: the package's JSON lines. Out: frozen entries in turn order, with the held-out functions of `miss_func` and the
official message that reveals them in place. The package's own loader is not used: importing it creates folders inside
site-packages (its `constants.eval_config`). Nothing here imports hud.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from synthetic import Difficulty, generate

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
REVEAL_MESSAGE = "I have updated some more functions you can choose from. What about now?"
"""What the official loop says when it reveals a held-out function (its `default_prompts`)."""
DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""The eight backends of the multi-turn categories and the files that document them."""
JSON_SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""The documents' own type names that are not JSON Schema's (official `GORILLA_TO_OPENAPI`)."""

_GENERATED = re.compile(r"synthetic_(?:(\d?)x(\d*)_)?(\d+)")

_LOADING = threading.Lock()
_PARSING = threading.Lock()
"""CPython 3.11 counts the depth of a syntax tree per process: two threads in `ast.parse` raise SystemError in one."""


@dataclass(frozen=True, slots=True)
class TruthCall:
    """One ground-truth call. BFCL's files write some arguments without their names."""

    name: str
    arguments: dict[str, Any]
    positional: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, written: str | Mapping[str, Any]) -> TruthCall:
        """From BFCL's source text, `cd(folder='document')`, parsed and never evaluated, or from name and arguments.

        Raises ValueError for text that is not one call with literal arguments.
        """
        if not isinstance(written, str):
            return cls(written["name"], dict(written["arguments"]))
        with _PARSING:
            call = ast.parse(written, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(f"ground truth must be a call of a function by name, found {written!r}")
        arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return cls(call.func.id, arguments, tuple(map(ast.literal_eval, call.args)))


@dataclass(frozen=True, slots=True)
class Entry:
    """One multi-turn entry.

    `turns[k]` are the messages of user turn k, `ground_truth[k]` its calls (none: nothing should be called), `revealed[k]`
    the functions that are held out before turn k. A function that the ground truth itself calls earlier is not held out
    (`tail` in multi_turn_miss_func_49 alone, which nobody could pass otherwise). `excluded_function` of the data is read by
    nothing in the official code, and by nothing here.
    """

    id: str
    turns: tuple[tuple[dict[str, Any], ...], ...]
    ground_truth: tuple[tuple[TruthCall, ...], ...]
    involved_classes: tuple[str, ...]
    initial_config: dict[str, Any]
    revealed: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def long_context(self) -> bool:
        """Whether the backends pad their texts, as the official executor decides it: by the entry's id."""
        return "long_context" in self.id or "composite" in self.id

    @classmethod
    def from_row(cls, row: Mapping[str, Any], written_truth: Sequence[Sequence[str | Mapping[str, Any]]]) -> Entry:
        """An entry from a row of the data's form. Raises ValueError where they do not match, or hold nothing to grade."""
        ground_truth = tuple(tuple(map(TruthCall.parse, calls)) for calls in written_truth)
        held_out = {int(turn): names for turn, names in row.get("missed_function", {}).items()}
        revealed = {
            turn: tuple(name for name in names if not _calls(name, ground_truth[:turn])) for turn, names in held_out.items()
        }
        turns = [
            ({"role": "user", "content": REVEAL_MESSAGE},) if turn in revealed else tuple(messages)
            for turn, messages in enumerate(row["question"])
        ]
        if len(turns) != len(ground_truth) or not any(ground_truth):
            raise ValueError(
                f"{row['id']}: {len(turns)} user turns and {len(ground_truth)} turns of ground truth with "
                f"{sum(map(len, ground_truth))} calls; expected as many turns, and one call at least"
            )
        return cls(
            id=row["id"],
            turns=tuple(turns),
            ground_truth=ground_truth,
            involved_classes=tuple(row["involved_classes"]),
            initial_config=row["initial_config"],
            revealed=revealed,
        )


def load_category(category: str) -> tuple[Entry, ...]:
    """The 200 entries of a category, by scenario index. Raises ValueError for an unknown category."""
    # Episodes start in threads: without the lock each of the first would read the files for itself.
    with _LOADING:
        return _load_category(category)


@cache
def _load_category(category: str) -> tuple[Entry, ...]:
    if category not in CATEGORIES:
        raise ValueError(f"unknown BFCL multi-turn category {category!r}; expected one of {', '.join(CATEGORIES)}")
    name = f"BFCL_v4_multi_turn_{category}.json"
    truths = {row["id"]: row["ground_truth"] for row in _json_lines(_data() / "possible_answer" / name)}
    return tuple(Entry.from_row(row, truths[row["id"]]) for row in _json_lines(_data() / name))


def load_entry(entry_id: str) -> Entry:
    """The entry of that id: `multi_turn_base_12`, or `synthetic_7` for the generated one of seed 7.

    `synthetic_2x3_7` has two user turns with at most three calls each; either number may be left out. Raises ValueError when
    there is no such entry.
    """
    if generated := _GENERATED.fullmatch(entry_id):
        turns, calls, seed = generated.groups()
        difficulty = Difficulty(int(turns) if turns else None, int(calls) if calls else Difficulty.calls)
        return _generated(entry_id, int(seed), difficulty)
    category, _, scenario = entry_id.removeprefix("multi_turn_").rpartition("_")
    entries = load_category(category) if category in CATEGORIES else ()
    if not scenario.isdecimal() or int(scenario) >= len(entries):
        raise ValueError(f"no BFCL multi-turn entry {entry_id!r}; ids look like multi_turn_base_12, 0 to 199")
    return entries[int(scenario)]


@lru_cache(maxsize=1024)
def _generated(entry_id: str, seed: int, difficulty: Difficulty) -> Entry:
    row = generate(seed, difficulty) | {"id": entry_id}
    return Entry.from_row(row, row["ground_truth"])


@cache
def function_documents(class_name: str) -> dict[str, dict[str, Any]]:
    """A backend's documented functions by name: `name`, `description` and `parameters` as JSON Schema.

    Defaults stay as documented. Where one reads "None", the official document holds that very string, not null: a model
    that copies it passes the text "None" (and `echo` then writes a file of that name), here as in the official run.
    """
    if class_name not in DOCUMENTS:
        raise ValueError(f"unknown backend {class_name!r}; expected one of {', '.join(DOCUMENTS)}")
    rows = _json_lines(_data() / "multi_turn_func_doc" / f"{DOCUMENTS[class_name]}.json")
    return {
        row["name"]: {"name": row["name"], "description": row["description"], "parameters": _json_schema(row["parameters"])}
        for row in rows
    }


def _calls(name: str, turns: Sequence[Sequence[TruthCall]]) -> bool:
    return any(call.name == name for turn in turns for call in turn)


def _json_schema(node: dict[str, Any]) -> dict[str, Any]:
    schema = dict(node)
    schema["type"] = JSON_SCHEMA_TYPES.get(node["type"], node["type"])
    if "properties" in node:
        schema["properties"] = {name: _json_schema(child) for name, child in node["properties"].items()}
    if "items" in node:
        schema["items"] = _json_schema(node["items"])
    return schema


def _data() -> Path:
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package bfcl_eval, which holds BFCL's data, is not installed")
    return Path(spec.origin).parent / "data"


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
