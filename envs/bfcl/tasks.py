"""BFCL multi-turn task rows: what a trainer lists, without importing hud.

In: a category and the environment's options. Out: rows in scenario order, each with the id of its entry, its scenario
index and the arguments of the template. The same index is the same scenario in all four categories, so `split` divides by
index: a row's twin in another category stands on the row's own side (C10).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The siblings have names that no other environment uses.
sys.path.append(str(Path(__file__).parent))

from bfcl_data import CATEGORIES, load_category, load_entry

HERE = Path(__file__).parent
ENVIRONMENT = "bfcl"
TEMPLATE = "multi_turn"


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task: `id` is the entry's, `args` the template's arguments, `prompt` the first user turn's text.

    `skip` says why the entry's ground truth cannot be derived, or is None.
    """

    id: str
    scenario: int
    args: dict[str, Any]
    prompt: str
    skip: str | None = None


def load_tasks(
    category: str = "base",
    *,
    user_turns: str = "official",
    stop_at_failed_turn: bool = False,
    abstention: bool = False,
    max_calls_per_step: int = 64,
) -> list[TaskRow]:
    """The rows of one category, or of all four (`all`), 200 each. Raises ValueError for an unknown category."""
    options = {
        "user_turns": user_turns,
        "stop_at_failed_turn": stop_at_failed_turn,
        "abstention": abstention,
        "max_calls_per_step": max_calls_per_step,
    }
    reasons = skip_list()
    return [
        TaskRow(
            id=entry.id,
            scenario=scenario,
            args={"entry": entry.id, **options},
            prompt="\n".join(message["content"] for message in entry.turns[0]),
            skip=reasons.get(scenario),
        )
        for name in (CATEGORIES if category == "all" else (category,))
        for scenario, entry in enumerate(load_category(name))
    ]


def synthetic_task(seed: int, turns: int | None = None, calls: int | None = None, **options: Any) -> TaskRow:
    """The generated task of a seed, of so many user turns with at most so many calls; `options` as for `load_tasks`.

    Its scenario is the seed.
    """
    difficulty = f"{turns or ''}x{calls or ''}_" if turns or calls else ""
    entry = load_entry(f"synthetic_{difficulty}{seed}")
    prompt = "\n".join(message["content"] for message in entry.turns[0])
    return TaskRow(id=entry.id, scenario=seed, args={"entry": entry.id, **options}, prompt=prompt)


def split() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The canonical (training, held-out) scenario indices, 150 and 50, the same for every category."""
    held_out = json.loads((HERE / "split.json").read_text())["held_out"]
    return tuple(index for index in range(200) if index not in held_out), tuple(held_out)


def skip_list() -> dict[int, str]:
    """Scenarios whose ground truth cannot be derived, with the reason."""
    return {int(index): reason for index, reason in json.loads((HERE / "skip.json").read_text())["scenarios"].items()}
