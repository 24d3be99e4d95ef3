"""Made-up arguments fit the schemas they are made up for."""

from __future__ import annotations

import random

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngrad.envcheck.made_up import made_up

SCHEMAS = [
    {"type": "object", "properties": {}},
    {
        "type": "object",
        "required": ["n", "kind", "tags", "who"],
        "properties": {
            "n": {"type": "integer", "minimum": 3, "maximum": 5},
            "x": {"type": "number", "exclusiveMinimum": 0},
            "kind": {"enum": ["a", "b"]},
            "flag": {"type": "boolean", "default": True},
            "tags": {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 4}, "minItems": 1},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "who": {"$ref": "#/$defs/Person"},
            "either": {"type": ["string", "null"]},
            "fixed": {"const": 7},
        },
        "$defs": {
            "Person": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            }
        },
    },
    {"type": "object", "required": ["a"], "properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 3}]}}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
@given(seed=st.integers(0, 1000))
def test_made_up_arguments_are_valid(schema: dict[str, object], seed: int) -> None:
    jsonschema.validate(made_up(schema, random.Random(seed)), schema)


def test_the_same_seed_makes_up_the_same() -> None:
    assert [made_up(SCHEMAS[1], random.Random(3)) for _ in range(2)] == [made_up(SCHEMAS[1], random.Random(3))] * 2
