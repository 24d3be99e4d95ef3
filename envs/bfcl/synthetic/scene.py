"""A scene: one task while it is being made up. Intents look at the live backends, act on them and word the request.

In: a seeded random source and an initial configuration. Out: per turn a message and the calls that answer it. Every call
runs as it is made, so what an intent does next may depend on what came back, as it must for the policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from .speech import Ask, Do, Wording, say
from .world import World, is_error

T = TypeVar("T")


class Impossible(Exception):
    """This intent cannot be played in this scene."""


class Broken(Exception):
    """A call that should have worked returned an error."""


class Scene:
    """What is known while a task is made: the live world, the calls of the turn, and what was last spoken of."""

    def __init__(self, rng: Random, classes: list[str], config: dict[str, Any]) -> None:
        self.rng = rng
        self.classes = classes
        self.world = World(classes, config)
        self.calls: list[dict[str, Any]] = []
        self.recent: dict[str, Any] = {}
        """What later requests may refer to: "file", "order", "tweet", "ticket", "booking", "numbers", ... ."""

    def do(self, function: str, /, **arguments: Any) -> Any:
        """Run a call as part of the ground truth; its result, parsed where it is JSON."""
        result = self.world.call(function, arguments)
        if is_error(result):
            raise Broken(f"{function}({arguments}): {result}")
        self.calls.append({"name": function, "arguments": arguments})
        try:
            return json.loads(result)
        except json.JSONDecodeError:
            return result

    def backend(self, class_name: str) -> Any:
        """The live instance of a backend; Impossible where the task has none."""
        if class_name not in self.world.instances:
            raise Impossible
        return self.world.instances[class_name]

    def need(self, condition: object) -> None:
        """Impossible unless `condition` holds."""
        if not condition:
            raise Impossible

    def pick(self, options: Sequence[T]) -> T:
        self.need(options)
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def quoted(self, value: str) -> str:
        """A value as people write it: mostly in quotes, sometimes bare where it is one word."""
        draw = self.rng.random()
        if "'" in value:
            return f'"{value}"'
        if draw < 0.25 and " " not in value:
            return value
        return f'"{value}"' if draw > 0.92 else f"'{value}'"

    @staticmethod
    def said(text: str) -> str:
        """A message in quotes that it does not contain itself."""
        return f'"{text}"' if "'" in text else f"'{text}'"

    def to_do(self, template: str, **values: object) -> Do:
        return Do(say(self.rng, template, **values))

    def to_ask(self, template: str, **values: object) -> Ask:
        return Ask(say(self.rng, template, **values))


Intent = Callable[[Scene], Wording]
"""Acts on the scene and words the request; raises Impossible where there is nothing to act on."""
