"""Graders: what counts as right, and that nothing the policy writes is more than data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from turngrad.envkit.world import Grade, RawResult, ToolError, WorldLost
from turngrad.mcp_world.graders import GraderClient, grade, json_in, last_number, matches, same
from turngrad.mcp_world.tasks import Grader

ADAPTER: TypeAdapter[Any] = TypeAdapter(Grader)


def grader(**fields: Any) -> Any:
    return ADAPTER.validate_python(fields)


async def caller(name: str, arguments: dict[str, Any]) -> RawResult:
    if name == "refuses":
        raise ToolError("no")
    if name == "gone":
        raise WorldLost("dead")
    if name == "fails":
        return RawResult([{"type": "text", "text": "boom"}], None, True)
    text = {"type": "text", "text": f"you said {arguments.get('word')}"}
    return RawResult([text, {"type": "image", "data": "", "mimeType": "image/png"}], {"said": arguments})


@pytest.mark.parametrize(
    ("spec", "text", "right"),
    [
        ({"type": "exact", "value": "Paris"}, " Paris\n", True),
        ({"type": "exact", "value": "Paris"}, "paris", False),
        ({"type": "exact", "value": "Paris", "ignore_case": True}, "PARIS", True),
        ({"type": "exact", "value": "Paris"}, "It is Paris", False),
        ({"type": "contains", "value": "par"}, "It is Paris", False),
        ({"type": "contains", "value": "Par"}, "It is Paris", True),
        ({"type": "contains", "value": ["a", "b"]}, "a only", False),
        ({"type": "contains", "value": ["a", "b"]}, "b and a", True),
        ({"type": "numeric", "value": 1234.5}, "first 7, then 1,234.5 km", True),
        ({"type": "numeric", "value": 7}, "first 7, then 8", False),
        ({"type": "numeric", "value": 3.14, "tolerance": 0.01}, "about 3.149", True),
        ({"type": "numeric", "value": 3.14, "tolerance": 0.01}, "about 3.151", False),
        ({"type": "numeric", "value": -2}, "minus: -2.0", True),
        ({"type": "numeric", "value": 0}, "none", False),
        ({"type": "json", "value": {"a": [1, 2]}}, 'so: {"x": 1} and\n```json\n{"a": [1, 2.0]}\n```', True),
        ({"type": "json", "value": {"a": 1}}, '{"a": true}', False),
        ({"type": "json", "value": {"a": 1}}, '{"a": 1, "b": 2}', False),
        ({"type": "json", "value": {"a": 1}, "subset": True}, '{"a": 1, "b": 2}', True),
        ({"type": "json", "value": [1]}, "[1, 2]", False),
        ({"type": "json", "value": 42}, "42", True),
        ({"type": "json", "value": {}}, "[" * 50_000, False),
    ],
)
def test_a_text_grader_compares_as_stated(spec: dict[str, Any], text: str, right: bool) -> None:
    assert matches(grader(**spec), text) is right


@pytest.mark.parametrize(
    ("text", "number"), [("", None), ("v1.2", None), ("2x", None), ("1e3", 1000.0), ("12,34", 34.0), ("1,234,567", 1234567.0)]
)
def test_the_last_number_is_a_number_by_itself(text: str, number: float | None) -> None:
    assert last_number(text) == number


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_json_equality_is_symmetric_and_reflexive(a: Any, b: Any) -> None:
    assert same(a, a)
    assert same(a, a, True)
    assert same(a, b) == same(b, a)


@given(st.text(max_size=200))
def test_no_text_of_the_policy_makes_a_grader_raise(text: str) -> None:
    for spec in ({"type": "json", "value": {}}, {"type": "numeric", "value": 1}, {"type": "contains", "value": "x"}):
        matches(grader(**spec), text)
    json_in(text)


async def test_a_call_grader_compares_what_the_tool_answers() -> None:
    async def reward(**fields: Any) -> float:
        return (await grade(grader(type="call", **fields), "", [], caller)).reward

    says = {"type": "exact", "value": "you said hi"}
    assert await reward(tool="t", arguments={"word": "hi"}, expect=says) == 1.0
    assert await reward(tool="t", arguments={"word": "ho"}, expect=says) == 0.0
    assert await reward(tool="t", arguments={"word": "hi"}, expect={"type": "json", "value": {"said": {"word": "hi"}}}) == 1.0
    assert await reward(tool="fails", expect={"type": "contains", "value": "boom"}) == 0.0
    assert await reward(tool="fails", is_error=True, expect={"type": "contains", "value": "boom"}) == 1.0
    assert await reward(tool="refuses", is_error=True) == 1.0
    with pytest.raises(WorldLost):
        await reward(tool="gone")


async def test_all_of_several_graders_must_hold() -> None:
    right, wrong = {"type": "contains", "value": "a"}, {"type": "contains", "value": "z"}
    assert (await grade(grader(type="all", graders=[right, right]), "a", [], caller)).reward == 1.0
    found = await grade(grader(type="all", graders=[right, wrong]), "a", [], caller)
    assert (found.reward, [part["reward"] for part in found.info["parts"]]) == (0.0, [1.0, 0.0])


async def test_a_users_function_gets_answer_transcript_and_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grading_under_test.py").write_text(
        "def plain(answer, transcript, client):\n"
        "    said = client.call('t', word=answer)\n"
        "    return 0.5 if said.text == 'you said hi' and transcript == [{'user': 'q'}] else 0\n"
        "async def slow(answer, transcript, client):\n"
        "    return (await client.acall('fails')).is_error\n"
        "def raises(answer, transcript, client):\n"
        "    raise KeyError('x')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    async def run(name: str) -> Grade:
        return await grade(grader(type="python", function=f"grading_under_test:{name}"), "hi", [{"user": "q"}], caller)

    assert (await run("plain")).reward == 0.5
    assert (await run("slow")).reward == 1.0
    with pytest.raises(KeyError):
        await run("raises")
    with pytest.raises(AttributeError):
        await run("missing")
    assert GraderClient(caller)
    sys.modules.pop("grading_under_test")
