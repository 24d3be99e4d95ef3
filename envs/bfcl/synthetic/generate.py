"""Generated tasks: `generate(seed)` is a multi-turn task in BFCL's own shape, and the same one every time.

In: a seed and, if wanted, a number of turns and of calls. Out: an entry as BFCL's files have them (id, question,
initial_config, involved_classes, path) with its ground truth as calls `{"name", "arguments"}` per turn. The texts are this
package's own; nothing is taken from BFCL's entries.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from random import Random
from types import ModuleType
from typing import Any

from . import files, maths, messages, posting, tickets, trading, travel, vehicle
from .scene import Broken, Impossible, Intent, Scene
from .speech import Wording, utter
from .world import BACKENDS, function_docs

_DOMAINS: dict[str, ModuleType] = {
    module.CLASS: module for module in (files, maths, messages, posting, tickets, trading, travel, vehicle)
}
_MAIN = ("GorillaFileSystem", "TradingBot", "TravelAPI", "VehicleControlAPI")
_SIDE = ("MathAPI", "MessageAPI", "TicketAPI", "TwitterAPI")
_TURNS = (1, 2, 3, 4, 5, 6)
_TURN_WEIGHTS = (2, 20, 25, 25, 21, 7)


@dataclass(frozen=True)
class Difficulty:
    """How long a task is. `turns` user turns (1 to 8; None: as BFCL has them); at most `calls` calls a turn (at least 1)."""

    turns: int | None = None
    calls: int = 6

    def __post_init__(self) -> None:
        if self.turns is not None and not 1 <= self.turns <= 8:
            raise ValueError(f"turns should be 1 to 8, found {self.turns}")
        if self.calls < 1:
            raise ValueError(f"calls should be at least 1, found {self.calls}")


def generate(seed: int, difficulty: Difficulty = Difficulty()) -> dict[str, Any]:
    """Task number `seed` at `difficulty`. Deterministic; every ground-truth call runs without an error."""
    for attempt in range(100):
        rng = Random(f"bfcl-synthetic/{seed}/{difficulty.turns}/{difficulty.calls}/{attempt}")
        try:
            return _compose(seed, rng, difficulty)
        except Broken:
            continue
    raise ValueError(f"no task could be made from seed {seed} with {difficulty}; allow more calls a turn")


def call_strings(entry: dict[str, Any]) -> list[list[str]]:
    """The ground truth of a task as BFCL's files write it: per turn, calls as source text with named literals."""
    return [
        [f"{call['name']}({', '.join(f'{name}={value!r}' for name, value in call['arguments'].items())})" for call in calls]
        for calls in entry["ground_truth"]
    ]


def _compose(seed: int, rng: Random, difficulty: Difficulty) -> dict[str, Any]:
    classes = _classes(rng)
    config: dict[str, Any] = {}
    for class_name in classes:
        state = _DOMAINS[class_name].config(rng)
        if state is not None:
            config[class_name] = state
    scene = Scene(rng, classes, copy.deepcopy(config))
    turns = difficulty.turns or rng.choices(_TURNS, _TURN_WEIGHTS)[0]
    question, truth = [], []
    for _ in range(turns):
        scene, text = _turn(scene, difficulty.calls)
        question.append([{"role": "user", "content": text}])
        truth.append(scene.calls)
    return {
        "id": f"synthetic_{seed}",
        "question": question,
        "initial_config": config,
        "path": [f"{_class_of(call['name'], classes)}.{call['name']}" for calls in truth for call in calls],
        "involved_classes": classes,
        "ground_truth": truth,
    }


def _classes(rng: Random) -> list[str]:
    main = rng.choice(_MAIN)
    if rng.random() < 0.3:
        return [main]
    side = rng.choice(_SIDE)
    return [main, side] if side == "MathAPI" or rng.random() < 0.3 else [side, main]


def _turn(scene: Scene, most_calls: int) -> tuple[Scene, str]:
    """One user turn: one to three intents of the task's backends, said in one message; the scene after it."""
    scene.calls = []
    wordings: list[Wording] = []
    played: set[Intent] = set()
    context: tuple[str, ...] = ()
    wanted = scene.rng.choices((1, 2, 3), (70, 24, 6))[0]
    for _ in range(60):
        if len(wordings) == wanted:
            break
        domain = _DOMAINS[_pick_class(scene)]
        weights, intents = zip(*domain.INTENTS, strict=True)
        intent = scene.rng.choices(intents, weights)[0]
        if intent in played:
            continue
        # Tried on a copy: what cannot be played here, fails, or takes too many calls leaves no trace.
        trial = copy.deepcopy(scene)
        try:
            wording = intent(trial)
        except (Impossible, Broken):
            continue
        if len(trial.calls) > most_calls:
            continue
        scene = trial
        wordings.append(wording)
        played.add(intent)
        context = context or domain.CONTEXT
    if not wordings:
        raise Broken("no intent of these backends can be played now")
    return scene, utter(scene.rng, wordings, context)


def _pick_class(scene: Scene) -> str:
    """The main backend more often than its companion."""
    if len(scene.classes) == 1:
        return scene.classes[0]
    main = next(name for name in scene.classes if name in _MAIN)
    side = next(name for name in scene.classes if name != main)
    return main if scene.rng.random() < 0.62 else side


def _class_of(name: str, classes: list[str]) -> str:
    return next(class_name for class_name in classes if any(doc["name"] == name for doc in function_docs(class_name)))


assert set(_DOMAINS) == set(BACKENDS)
