"""Graders: data compared with data, and the user's own functions.

In: a grader of the tasks file, the policy's last words, the transcript and the episode's server. Out: a reward. Invariant:
what the policy wrote is compared, never evaluated (C9). A grader that raises, or whose server is gone, makes the episode an
infrastructure failure, not a zero (C7); a tool's own error is an answer like any other.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from turngrad.envkit.limits import in_thread
from turngrad.envkit.world import Grade, RawResult, ToolError
from turngrad.mcp_world.tasks import AllOf, CallGrader, Contains, Exact, Json, Numeric, PythonGrader

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w])")
_LONGEST_TEXT = 100_000
_FUNCTION_SECONDS = 100.0

Caller = Callable[[str, dict[str, Any]], Awaitable[RawResult]]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a grader's call came to: the text parts joined by newlines, structured content, and whether it is an error."""

    text: str
    structured: Any
    is_error: bool


class GraderClient:
    """The episode's server, for the user's grading functions: `call` in a plain function, `acall` in an `async` one."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._loop = asyncio.get_running_loop()

    async def acall(self, name: str, **arguments: Any) -> ToolAnswer:
        return await ask(self._caller, name, arguments)

    def call(self, name: str, **arguments: Any) -> ToolAnswer:
        """Call a tool and wait for the answer. Raises what `acall` raises."""
        return asyncio.run_coroutine_threadsafe(self.acall(name, **arguments), self._loop).result()


async def ask(caller: Caller, name: str, arguments: dict[str, Any]) -> ToolAnswer:
    """Call a tool; the server's refusal is an answer with `is_error`. Raises WorldLost when there is no server."""
    try:
        result = await caller(name, arguments)
    except ToolError as error:
        return ToolAnswer(str(error), None, True)
    text = "\n".join(block["text"] for block in result.content if block.get("type") == "text")
    return ToolAnswer(text, result.structured, result.is_error)


async def grade(grader: Any, answer: str, transcript: list[dict[str, Any]], caller: Caller) -> Grade:
    """The reward of one grader of `turngrad.mcp_world.tasks`, with what it saw."""
    if isinstance(grader, AllOf):
        parts = [await grade(part, answer, transcript, caller) for part in grader.graders]
        return Grade(math.prod(part.reward for part in parts), {"parts": [{"reward": p.reward, **p.info} for p in parts]})
    if isinstance(grader, CallGrader):
        return await _grade_call(grader, caller)
    if isinstance(grader, PythonGrader):
        return await _grade_python(grader, answer, transcript, caller)
    return Grade(float(matches(grader, answer)), {"grader": grader.type})


def matches(grader: Any, text: str) -> bool:
    """Whether a text is what a text grader expects."""
    if isinstance(grader, Exact):
        return _fold(text, grader).strip() == _fold(grader.value, grader).strip()
    if isinstance(grader, Contains):
        wanted = [grader.value] if isinstance(grader.value, str) else grader.value
        return all(_fold(value, grader) in _fold(text, grader) for value in wanted)
    if isinstance(grader, Numeric):
        number = last_number(text)
        return number is not None and math.isclose(number, grader.value, rel_tol=1e-9, abs_tol=grader.tolerance)
    if isinstance(grader, Json):
        return any(same(found, grader.value, grader.subset) for found in json_in(text))
    raise TypeError(f"{type(grader).__name__} does not compare text")


def last_number(text: str) -> float | None:
    """The last number written in a text; thousands may be set off by commas."""
    found = _NUMBER.findall(text[-_LONGEST_TEXT:])
    return float(found[-1].replace(",", "")) if found else None


def json_in(text: str) -> list[Any]:
    """The text itself as JSON where it is that, else the last object or list in it; empty where there is neither."""
    text = text[-_LONGEST_TEXT:].strip()
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass
    decoder, place, found, tries = json.JSONDecoder(), 0, [], 0
    while tries < 1000 and (opening := re.compile(r"[{\[]").search(text, place)):
        tries += 1
        try:
            value, place = decoder.raw_decode(text, opening.start())
            found = [value]
        except (ValueError, RecursionError):
            place = opening.start() + 1
    return found


def same(found: Any, wanted: Any, subset: bool = False) -> bool:
    """Equality of JSON values: `true` is no 1, 2.0 is 2; with `subset`, objects may have keys beside the wanted ones."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return found == wanted
    if isinstance(wanted, dict) and isinstance(found, dict):
        keys = wanted.keys() <= found.keys() if subset else wanted.keys() == found.keys()
        return keys and all(same(found[key], value, subset) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(same(f, w, subset) for f, w in zip(found, wanted, strict=True))
    return type(found) is type(wanted) and found == wanted


def load_function(name: str) -> Callable[..., Any]:
    """The function that `module:function` names. Raises ImportError or AttributeError."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


async def _grade_call(grader: CallGrader, caller: Caller) -> Grade:
    answer = await ask(caller, grader.tool, grader.arguments)
    right = answer.is_error == grader.is_error
    if right and grader.expect is not None:
        structured = isinstance(grader.expect, Json) and answer.structured is not None
        right = matches(grader.expect, answer.text)
        if structured and not right:
            right = matches(grader.expect, json.dumps(answer.structured))
    return Grade(float(right), {"grader": "call", "tool": grader.tool, "answer": answer.text[:500], "is_error": answer.is_error})


async def _grade_python(grader: PythonGrader, answer: str, transcript: list[dict[str, Any]], caller: Caller) -> Grade:
    function = load_function(grader.function)
    client = GraderClient(caller)
    if inspect.iscoroutinefunction(function):
        value = await function(answer, transcript, client)
    else:
        value = await in_thread(function, answer, transcript, client, seconds=_FUNCTION_SECONDS)
    if isinstance(value, Grade):
        return value
    return Grade(float(value), {"grader": grader.function})


def _fold(text: str, grader: Exact | Contains) -> str:
    return text.casefold() if grader.ignore_case else text
