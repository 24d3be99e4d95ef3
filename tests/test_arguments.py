"""The check of a call's arguments: what it accepts, what it says, and that the fast validator and the slow one agree."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngrad.arguments import ArgumentCheck

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer", "minimum": 0}, "tags": {"type": "array"}},
    "required": ["text"],
    "additionalProperties": False,
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def complaint(arguments: Any, schema: dict[str, Any] = SCHEMA) -> str | None:
    return ArgumentCheck("tool", schema).complaint(arguments)


def test_arguments_that_fit_pass_and_others_are_told_what_is_wrong() -> None:
    assert complaint({"text": "a", "count": 2}) is None
    assert complaint({"text": 3}) == "invalid arguments['text']: 3 is not of type 'string'"
    assert complaint({}) == "invalid arguments: 'text' is a required property"
    assert complaint(["text"]) == "arguments must be a JSON object, got list"
    assert "cannot be sent as JSON" in (complaint({"text": float("nan")}) or "")
    assert "cannot be sent as JSON" in (complaint({"text": "\ud800"}) or "")


@given(st.dictionaries(st.sampled_from(["text", "count", "tags", "else"]), VALUES, max_size=4))
def test_the_verdict_is_that_of_the_reference_validator(arguments: dict[str, Any]) -> None:
    try:
        repr(arguments).encode("utf-8")
    except UnicodeEncodeError:
        return
    assert (complaint(arguments) is None) == jsonschema.Draft202012Validator(SCHEMA).is_valid(arguments)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "object", "required": 3},
        {"$ref": "#/$defs/missing"},
        {"type": "object", "properties": {"text": {"pattern": "("}}},
    ],
)
def test_a_broken_schema_refuses_nothing(schema: dict[str, Any]) -> None:
    assert complaint({"text": "a"}, schema) is None


def test_a_schema_that_points_elsewhere_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def no_network(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the check opened a connection")

    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    assert complaint({"text": "a"}, {"$ref": "http://127.0.0.1:9/schema.json"}) is None


def test_references_within_the_schema_hold() -> None:
    schema = {"$defs": {"word": {"type": "string"}}, "type": "object", "properties": {"text": {"$ref": "#/$defs/word"}}}
    assert complaint({"text": "a"}, schema) is None
    assert "not of type 'string'" in (complaint({"text": 1}, schema) or "")
