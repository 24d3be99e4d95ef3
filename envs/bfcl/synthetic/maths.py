"""Arithmetic on numbers the request names, or on those an earlier result gave."""

from __future__ import annotations

from random import Random
from typing import Any

from .scene import Intent, Scene
from .speech import Wording

CLASS = "MathAPI"

CONTEXT = (
    "[I'm crunching some figures|I need this for my statistics homework|The numbers must be right for my report].",
    "[I never trust my mental arithmetic|My calculator broke|I want to double check a figure].",
)


def config(rng: Random) -> dict[str, Any] | None:
    """The math backend has no state."""
    return None


def _number(scene: Scene) -> int | float:
    rng = scene.rng
    return rng.randrange(1, 1000) if rng.random() < 0.6 else round(rng.uniform(1, 500), rng.choice((1, 2)))


def _numbers(scene: Scene) -> tuple[list[int | float], str]:
    """Some numbers, and how the request lists them; those just computed, where there are any."""
    recent = scene.recent.get("numbers")
    if recent and len(recent) > 1 and scene.chance(0.7):
        return list(recent), scene.to_do("[those numbers|these values|the values you just found|the figures above]").text
    numbers = [_number(scene) for _ in range(scene.rng.randrange(3, 7))]
    spoken = [str(number) for number in numbers]
    return numbers, scene.pick((", ".join(spoken), ", ".join(spoken[:-1]) + " and " + spoken[-1], "[" + ", ".join(spoken) + "]"))


def _one(scene: Scene) -> tuple[int | float, str]:
    recent = scene.recent.get("number")
    if recent is not None and scene.chance(0.5):
        return recent, scene.to_do("[that result|that number|this value|the result]").text
    number = _number(scene)
    return number, str(number)


def _keep(scene: Scene, result: Any) -> None:
    value = result.get("result") if isinstance(result, dict) else None
    if isinstance(value, (int, float)):
        scene.recent["number"] = value


_LIST_FUNCTIONS = (
    ("mean", "[compute|calculate|work out|find|determine|give me] the [mean|average|arithmetic mean|mean value] of {numbers}"),
    ("standard_deviation", "[compute|calculate|work out|find] the standard deviation of {numbers}"),
    ("sum_values", "[add up|sum up|compute the sum of|calculate the total of] {numbers}"),
    ("max_value", "[find|tell me|determine] the [largest|biggest|maximum|highest] [of|value among|number in] {numbers}"),
    ("min_value", "[find|tell me|determine] the [smallest|lowest|minimum] [of|value among|number in] {numbers}"),
)


def of_list(scene: Scene) -> Wording:
    scene.backend(CLASS)
    name, template = scene.rng.choices(_LIST_FUNCTIONS, (5, 2, 2, 1, 1))[0]
    numbers, spoken = _numbers(scene)
    _keep(scene, scene.do(name, numbers=numbers))
    return scene.to_do(template, numbers=spoken)


_PAIR_FUNCTIONS = (
    ("add", "a", "b", "[add {a} and {b}|compute {a} plus {b}|add {b} to {a}]"),
    ("subtract", "a", "b", "[subtract {b} from {a}|compute {a} minus {b}|take {b} away from {a}]"),
    ("multiply", "a", "b", "[multiply {a} by {b}|compute {a} times {b}|find the product of {a} and {b}]"),
    ("divide", "a", "b", "[divide {a} by {b}|compute {a} divided by {b}]"),
    ("percentage", "part", "whole", "[compute|tell me|work out] what percentage {a} is of {b}"),
)


def of_pair(scene: Scene) -> Wording:
    scene.backend(CLASS)
    name, first, second, template = scene.pick(_PAIR_FUNCTIONS)
    value, spoken = _one(scene)
    other = _number(scene)
    _keep(scene, scene.do(name, **{first: value, second: other}))
    return scene.to_do(template, a=spoken, b=other)


def logarithm(scene: Scene) -> Wording:
    scene.backend(CLASS)
    value, spoken = _one(scene)
    scene.need(value > 0)
    base, precision = scene.pick((2, 3, 5, 6, 8, 10, 10, 10)), scene.rng.randrange(2, 9)
    scene.do("logarithm", value=value, base=base, precision=precision)
    return scene.to_do(
        "[compute|calculate|determine|find|work out] the [base {base} logarithm of {value}|logarithm of {value} "
        "to the base {base}] "
        "with [a precision of {precision}[| digits| decimal places]|{precision} digits of precision|precision {precision}]",
        base=base,
        value=spoken,
        precision=precision,
    )


def square_root(scene: Scene) -> Wording:
    scene.backend(CLASS)
    value, precision = _number(scene), scene.rng.randrange(2, 9)
    scene.do("square_root", number=value, precision=precision)
    return scene.to_do(
        "[compute|calculate|find] the square root of {value} with [a precision of {precision} digits|precision {precision}]",
        value=value,
        precision=precision,
    )


def power(scene: Scene) -> Wording:
    scene.backend(CLASS)
    base, exponent = scene.rng.randrange(2, 30), scene.rng.randrange(2, 6)
    _keep(scene, scene.do("power", base=base, exponent=exponent))
    return scene.to_do("[raise {a} to the power of {b}|compute {a} to the {b}th power]", a=base, b=exponent)


def round_off(scene: Scene) -> Wording:
    scene.backend(CLASS)
    value, places = round(scene.rng.uniform(1, 500), 4), scene.rng.randrange(0, 4)
    _keep(scene, scene.do("round_number", number=value, decimal_places=places))
    return scene.to_do("round {value} to {places} decimal places", value=value, places=places)


def absolute(scene: Scene) -> Wording:
    scene.backend(CLASS)
    value = -_number(scene)
    _keep(scene, scene.do("absolute_value", number=value))
    return scene.to_do("[give me|compute|tell me] the absolute value of {value}", value=value)


_METRIC = {"km": "kilometers", "m": "meters", "cm": "centimeters", "mm": "millimeters"}
_MIXED = (
    ("cm", "in", "centimeters", "inches"),
    ("in", "cm", "inches", "centimeters"),
    ("m", "ft", "meters", "feet"),
    ("ft", "m", "feet", "meters"),
    ("km", "miles", "kilometers", "miles"),
    ("miles", "km", "miles", "kilometers"),
    ("kg", "lb", "kilograms", "pounds"),
    ("lb", "kg", "pounds", "kilograms"),
)


def convert(scene: Scene) -> Wording:
    scene.backend(CLASS)
    value = _number(scene)
    if scene.chance(0.5):
        start, end = scene.rng.sample(list(_METRIC), 2)
        name, long_start, long_end = "si_unit_conversion", _METRIC[start], _METRIC[end]
    else:
        start, end, long_start, long_end = scene.pick(_MIXED)
        name = "imperial_si_conversion"
    _keep(scene, scene.do(name, value=value, unit_in=start, unit_out=end))
    short = scene.chance(0.5)
    return scene.to_do(
        "[convert {value} {a} [to|into] {b}|tell me how many {b} {value} {a} are|express {value} {a} in {b}]",
        value=value,
        a=start if short else long_start,
        b=end if short else long_end,
    )


INTENTS: tuple[tuple[float, Intent], ...] = (
    (5, of_list),
    (2.5, of_pair),
    (2.5, logarithm),
    (0.8, square_root),
    (0.6, power),
    (0.8, round_off),
    (0.4, absolute),
    (1.2, convert),
)
