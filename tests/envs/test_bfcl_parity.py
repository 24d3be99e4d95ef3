"""Our verdict, turn by turn and without evaluating anything, is the official checker's."""

import copy
import json
import random
import re
import uuid
from functools import cache
from pathlib import Path
from typing import Any

import bfcl_eval
import pytest
from bfcl_data import CATEGORIES, Entry, function_documents, load_category
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

from envs.bfcl.env import MultiTurn
from tests.envs.bfcl_scripts import Calls, truth
from turngrad.envkit import Call, ToolError

ROUNDS_IN_FULL = 4


def official(entry: Entry, calls: Calls) -> int:
    """How many leading turns the official checker passes, each call a step of its own."""
    row = {"id": entry.id, "initial_config": entry.initial_config, "involved_classes": list(entry.involved_classes)}
    steps = [[[source(call)] for call in turn] for turn in calls]
    truths = written_truth(entry.id.removeprefix("multi_turn_").rsplit("_", 1)[0])[entry.id]
    verdict = multi_turn_checker(steps, truths, row, entry.id.rsplit("_", 1)[0], f"m{uuid.uuid4().hex}")
    if verdict["valid"]:
        return len(truths)
    named = re.search(r"for turn (\d+)", verdict["error_message"])
    return int(named.group(1)) if named else len(verdict["execution_result"]) - 1


@cache
def written_truth(category: str) -> dict[str, list[list[str]]]:
    """The data's own source texts by entry id."""
    path = Path(bfcl_eval.__file__).parent / "data" / "possible_answer" / f"BFCL_v4_multi_turn_{category}.json"
    return {row["id"]: row["ground_truth"] for row in map(json.loads, path.read_text().splitlines())}


def source(call: tuple[str, dict[str, Any]]) -> str:
    name, arguments = call
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


async def ours(entry: Entry, calls: Calls) -> tuple[int, list[str]]:
    """How many leading turns pass here, and every text the calls got."""
    world = MultiTurn(entry.id)
    texts = []
    turns = world.turns()
    for turn in calls:
        await anext(turns)
        for name, arguments in turn:
            call = Call(uuid.uuid4().hex, name, copy.deepcopy(arguments), step=world.turn)
            try:
                listed = any(tool.name == name for tool in world.tools())
                texts.append(world.call(call) if listed else world.unknown_tool(call))
            except ToolError as error:
                texts.append(str(error))
    await anext(turns, None)
    return world.passed_turns, texts


def corrupted(entry: Entry, rng: random.Random) -> Calls:
    """The ground truth with one to four random faults. A held-out function never moves before its reveal."""
    calls = truth(entry)
    for _ in range(rng.randint(1, 4)):
        turn = rng.randrange(len(calls))
        fault = rng.choice(["drop", "reorder", "alter", "extra", "unknown", "repeat", "later", "rename"])
        if fault == "extra":
            names = [tool for owner in entry.involved_classes for tool in function_documents(owner)]
            held_out = {name for at, revealed in entry.revealed.items() if at > turn for name in revealed}
            calls[turn].insert(0, (rng.choice([name for name in names if name not in held_out]), {}))
        elif fault == "unknown":
            calls[turn].append((rng.choice(["no_such_function", "lss", "move_file"]), {"value": 1}))
        elif calls[turn]:
            place = rng.randrange(len(calls[turn]))
            name, arguments = calls[turn][place]
            if fault == "drop":
                del calls[turn][place]
            elif fault == "reorder":
                rng.shuffle(calls[turn])
            elif fault == "repeat":
                calls[turn].insert(place, (name, dict(arguments)))
            elif fault == "later" and turn + 1 < len(calls):
                calls[turn + 1].insert(0, calls[turn].pop(place))
            elif fault == "rename":
                calls[turn][place] = (name, {f"{key}_": value for key, value in arguments.items()})
            elif fault == "alter" and arguments:
                key = rng.choice(sorted(arguments))
                calls[turn][place] = (name, {**arguments, key: altered(arguments[key], rng)})
    return calls


def altered(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice([value + 1, -value, str(value), float(value)])
    if isinstance(value, str):
        return rng.choice([value + ".", value.upper(), "", 7, [value]])
    return rng.choice([None, [], {}, "None"])


async def check(category: str, scenarios: range, seed: str) -> int:
    imperfect = 0
    for scenario in scenarios:
        entry = load_category(category)[scenario]
        calls = corrupted(entry, random.Random(f"{seed}/{entry.id}"))
        passed, _ = await ours(entry, calls)
        assert passed == official(entry, calls), (entry.id, calls)
        imperfect += passed < len(entry.turns)
    return imperfect


@pytest.mark.parametrize("category", CATEGORIES)
async def test_corrupted_replays_pass_as_many_leading_turns_as_officially_on_a_sample(category: str) -> None:
    assert await check(category, range(0, 200, 5), "sample") > 10


@pytest.mark.full
@pytest.mark.parametrize("category", CATEGORIES)
async def test_corrupted_replays_pass_as_many_leading_turns_as_officially_on_all_entries(category: str) -> None:
    for seed in range(ROUNDS_IN_FULL):
        assert await check(category, range(200), f"full {seed}") > 50


@pytest.mark.parametrize("category", CATEGORIES)
async def test_every_text_is_the_official_executors_byte_for_byte(category: str) -> None:
    for scenario in range(1, 200, 9):
        entry = load_category(category)[scenario]
        calls = corrupted(entry, random.Random(f"texts/{entry.id}"))
        _, texts = await ours(entry, calls)
        expected, _ = execute_multi_turn_func_call(
            [source(call) for turn in calls for call in turn],
            entry.initial_config,
            list(entry.involved_classes),
            f"m{uuid.uuid4().hex}",
            entry.id,
            long_context=category == "long_context",
        )
        assert texts == expected
