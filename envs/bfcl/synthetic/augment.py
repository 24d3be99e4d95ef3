"""Value substitution: a training entry with other names, numbers and secrets in it, and its ground truth to match.

In: an entry with structured ground truth. Out: the same requests about other files, people, amounts and dates. A value of
the ground truth is exchanged where the request or the initial state says it, looked up anew where an earlier result gave
it (an order id, a price), and kept where it is neither. The new ground truth runs on fresh backends; where that fails as
the old one did not, other values are tried.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

from . import words
from .exchange import COMPANIES, DATE_STYLES, ROUTES, another_like, another_number, ways_to_write
from .world import World, is_error

_FIXED = frozenset(
    words.word_list(
        """mode unit unit_in unit_out travel_class base_currency target_currency grant_type insurance_type option order_type
        status door ignitionMode sector a activate unlock human_readable precision priority path pedalPosition base
        last_name first_name"""
    )
)
"""Parameters whose values are a choice or a convention, not a value of the request."""

_PLACES = frozenset(
    words.word_list("location city cityA cityB travel_from travel_to symbol stock stocks name travel_date date_of_birth")
)
"""Parameters whose values the backends know by heart; exchanged, if at all, by the tables of `exchange`."""

_AMOUNTS = frozenset(
    words.word_list("amount price budget_limit insurance_cost fuelAmount liter gallon lines distance temperature threshold")
)
"""Parameters that are a quantity."""

_SYNONYMS = (
    ("Could you", "Would you", "Can you"),
    ("could you", "would you", "can you", "please"),
    ("I'd like", "I want", "I would like"),
    ("Please", "Kindly"),
    ("display", "show", "print", "present"),
    ("retrieve", "fetch", "get", "pull up"),
    ("provide", "give", "supply"),
    ("ensure", "make sure", "see to it"),
    ("Then", "Next", "After that"),
    ("Finally", "Lastly", "To finish"),
    ("directory", "folder"),
    ("locate", "find"),
    ("purchase", "buy", "acquire"),
    ("current", "present"),
    ("recent", "latest"),
    ("help me", "assist me"),
    ("need to", "have to", "must"),
    ("Once", "When", "As soon as"),
    ("create", "set up", "start"),
    ("Additionally", "Also", "Besides"),
    ("journey", "trip", "drive"),
    ("reservation", "booking"),
    ("details", "particulars", "specifics"),
)

Path = tuple[Any, ...]


def substitute(entry: dict[str, Any], rng: Random, attempts: int = 8) -> dict[str, Any]:
    """`entry` with other values; as it was where no substitution of `attempts` runs clean."""
    original = _run(entry)
    for _ in range(attempts):
        changed = _attempt(entry, original, rng)
        if changed is not None:
            return changed
    return entry


def _attempt(entry: dict[str, Any], original: list[list[str]], rng: Random) -> dict[str, Any] | None:
    text = "\n".join(message["content"] for turn in entry["question"] for message in turn)
    mapping = _mapping(entry, text, rng)
    pattern = _pattern(mapping)
    config = _map_strings(entry["initial_config"], pattern, mapping)
    _shake(config, rng)
    world = World(entry["involved_classes"], config)
    flat_old = [result for turn in original for result in turn]
    flat_new: list[str] = []
    truth: list[list[dict[str, Any]]] = []
    for turn in entry["ground_truth"]:
        calls = []
        for call in turn:
            arguments = _rebuild(call, text, pattern, mapping, flat_old, flat_new)
            result = world.call(call["name"], arguments)
            if is_error(result) and not is_error(flat_old[len(flat_new)]):
                return None
            flat_new.append(result)
            calls.append({"name": call["name"], "arguments": arguments})
        truth.append(calls)
    question = [
        [{**message, "content": _reword(_replace(message["content"], pattern, mapping), rng)} for message in turn]
        for turn in entry["question"]
    ]
    return {**entry, "question": question, "initial_config": config, "ground_truth": truth}


def _mapping(entry: dict[str, Any], text: str, rng: Random) -> dict[str, str]:
    """Old text to new text, for every value of the ground truth and every file name that may change."""
    mapping: dict[str, str] = {}
    names = {call["name"] for turn in entry["ground_truth"] for call in turn}
    for turn in entry["ground_truth"]:
        for call in turn:
            for path, value in _leaves(call["arguments"]):
                parameter = path[0]
                if parameter in _FIXED or parameter in _PLACES:
                    continue
                if isinstance(value, str):
                    if len(value) >= 2 and value in text and value not in mapping:
                        mapping[value] = another_like(value, rng)
                elif parameter in _AMOUNTS and not isinstance(value, bool):
                    for written in ways_to_write(value):
                        if re.search(_bounded(written), text):
                            mapping[written] = another_number(written, rng)
    unspoken = _unspoken(entry, text)
    for name in _file_names(entry["initial_config"].get("GorillaFileSystem", {})):
        if name not in mapping and name not in unspoken and len(name) > 2:
            mapping[name] = another_like(name, rng)
    if "get_available_stocks" not in names and "TradingBot" in entry["involved_classes"]:
        symbols = list(COMPANIES)
        shuffled = rng.sample(symbols, len(symbols))
        for old, new in zip(symbols, shuffled, strict=True):
            mapping[old] = new
            mapping[COMPANIES[old]] = COMPANIES[new]
    if "estimate_distance" in names:
        route = _route_of(entry)
        if route is not None:
            new_route = rng.choice(ROUTES)
            mapping.update(zip(route, new_route, strict=True))
    _map_dates(entry, text, mapping, rng)
    return mapping


def _unspoken(entry: dict[str, Any], text: str) -> set[str]:
    """Values of the ground truth that neither the requests nor earlier results spell out: only their old form is hinted at."""
    unspoken, seen = set(), text
    for turn, results in zip(entry["ground_truth"], _run(entry), strict=True):
        for call, result in zip(turn, results, strict=True):
            unspoken |= {value for _, value in _leaves(call["arguments"]) if isinstance(value, str) and value not in seen}
            seen += "\n" + result
    return unspoken


def _map_dates(entry: dict[str, Any], text: str, mapping: dict[str, str], rng: Random) -> None:
    """Another day for each travel date, where the request writes it in a way that can be written anew."""
    for turn in entry["ground_truth"]:
        for call in turn:
            date = call["arguments"].get("travel_date")
            if not isinstance(date, str) or date in mapping:
                continue
            year, month, day = (int(part) for part in date.split("-"))
            new_month, new_day = rng.randrange(1, 13), rng.randrange(1, 29)
            for write in DATE_STYLES:
                if write(year, month, day) in text:
                    mapping[write(year, month, day)] = write(year, new_month, new_day)
                    mapping[date] = f"{year}-{new_month:02d}-{new_day:02d}"
                    break


def _route_of(entry: dict[str, Any]) -> tuple[str, str, str, str] | None:
    pair = next(call["arguments"] for turn in entry["ground_truth"] for call in turn if call["name"] == "estimate_distance")
    for first, first_zip, second, second_zip in ROUTES:
        if (first_zip, second_zip) == (pair.get("cityA"), pair.get("cityB")):
            return first, first_zip, second, second_zip
        if (second_zip, first_zip) == (pair.get("cityA"), pair.get("cityB")):
            return second, second_zip, first, first_zip
    return None


def _shake(config: dict[str, Any], rng: Random) -> None:
    """Other counters, seeds and prices: what results show and requests do not say."""
    for class_name in ("TravelAPI", "VehicleControlAPI"):
        if class_name in config:
            config[class_name]["random_seed"] = rng.randrange(10_000, 999_999)
    trading = config.get("TradingBot")
    if trading and "order_counter" in trading and str(trading["order_counter"]) not in map(str, trading.get("orders", {})):
        trading["order_counter"] = rng.randrange(10_000, 99_999)
    for stock in (trading or {}).get("stocks", {}).values():
        stock["price"] = round(stock["price"] * rng.uniform(0.5, 1.5), 2)


def _rebuild(
    call: dict[str, Any],
    text: str,
    pattern: re.Pattern[str] | None,
    mapping: dict[str, str],
    old_results: list[str],
    new_results: list[str],
) -> dict[str, Any]:
    """The call's arguments after the substitution."""

    def value_of(path: Path, value: Any) -> Any:
        if isinstance(value, bool) or path[0] in _FIXED:
            return value
        if isinstance(value, str):
            mapped = _replace(value, pattern, mapping)
            if mapped != value or value in text:
                return mapped
        else:
            for written in ways_to_write(value):
                if written in mapping:
                    number = float(mapping[written].replace(",", ""))
                    return int(number) if isinstance(value, int) else number
        for index in range(len(new_results) - 1, -1, -1):
            found = _find(old_results[index], value)
            if found is not None:
                renewed = _at(new_results[index], found)
                return value if renewed is None else type(value)(renewed)
        return value

    return _map_leaves(copy.deepcopy(call["arguments"]), value_of)


def _find(result: str, value: Any) -> Path | None:
    """Where in a JSON result a value stands; small numbers are too common to be traced."""
    if isinstance(value, (int, float)) and -10 < value < 10:
        return None
    try:
        data = json.loads(result)
    except json.JSONDecodeError:
        return None
    return next((path for path, leaf in _leaves(data) if leaf == value and isinstance(leaf, type(value))), None)


def _at(result: str, path: Path) -> Any:
    try:
        data = json.loads(result)
        for step in path:
            data = data[step]
    except (json.JSONDecodeError, KeyError, IndexError, TypeError):
        return None
    return data


def _leaves(data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _leaves(value, (*path, index))
    else:
        yield path, data


def _map_leaves(data: Any, function: Any, path: Path = ()) -> Any:
    if isinstance(data, dict):
        return {key: _map_leaves(value, function, (*path, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [_map_leaves(value, function, (*path, index)) for index, value in enumerate(data)]
    return function(path, data)


def _file_names(scenario: Any) -> Iterator[str]:
    for key, value in (scenario or {}).items():
        if isinstance(value, dict):
            if "type" in value or key not in ("root", "contents"):
                yield key
            yield from _file_names(value)


def _bounded(value: str) -> str:
    start = r"(?<![\w])" if value[0].isalnum() or value[0] == "_" else ""
    end = r"(?![\w])(?!\.\d)" if value[-1].isalnum() or value[-1] == "_" else ""
    return start + re.escape(value) + end


def _pattern(mapping: dict[str, str]) -> re.Pattern[str] | None:
    ordered = sorted(mapping, key=len, reverse=True)
    return re.compile("|".join(_bounded(value) for value in ordered)) if ordered else None


def _replace(text: str, pattern: re.Pattern[str] | None, mapping: dict[str, str]) -> str:
    return pattern.sub(lambda match: mapping[match[0]], text) if pattern else text


def _map_strings(data: Any, pattern: re.Pattern[str] | None, mapping: dict[str, str]) -> Any:
    if isinstance(data, dict):
        return {
            _replace(key, pattern, mapping) if key not in ("root", "contents", "type", "content") else key: _map_strings(
                value, pattern, mapping
            )
            for key, value in data.items()
        }
    if isinstance(data, list):
        return [_map_strings(value, pattern, mapping) for value in data]
    return _replace(data, pattern, mapping) if isinstance(data, str) else copy.deepcopy(data)


def _reword(text: str, rng: Random) -> str:
    """Some common words exchanged for others, outside quotes."""
    parts = re.split(r"('[^']*'|\"[^\"]*\")", text)
    for group in _SYNONYMS:
        if rng.random() < 0.35:
            pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in group))
            parts[::2] = [pattern.sub(lambda _, group=group: rng.choice(group), part) for part in parts[::2]]
    return "".join(parts)


def _run(entry: dict[str, Any]) -> list[list[str]]:
    world = World(entry["involved_classes"], entry["initial_config"])
    return [[world.call(call["name"], call["arguments"]) for call in turn] for turn in entry["ground_truth"]]
