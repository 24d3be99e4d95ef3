"""Arguments invented by a JSON Schema: valid ones, from a seed."""

from __future__ import annotations

import random
from typing import Any

_WORDS = ("a", "notes", "2024-05-01", "x.txt", "hello there", "42", "London", "Ä €")
_DEEPEST = 6


def made_up(schema: dict[str, Any], rng: random.Random) -> Any:
    """A value that fits the schema in all that is commonly used; the top level of a tool's schema gives an object."""
    return _value(schema, schema, rng, 0)


def _value(schema: Any, root: dict[str, Any], rng: random.Random, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    if "$ref" in schema:
        return _value(_resolved(schema["$ref"], root), root, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    for key in ("examples", "default"):
        if key in schema and rng.random() < 0.5:
            return rng.choice(schema[key]) if key == "examples" and schema[key] else schema.get("default")
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _value(rng.choice(schema[key]), root, rng, depth + 1)
    if schema.get("allOf"):
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            merged |= _resolved(part["$ref"], root) if "$ref" in part else part
        return _value(merged, root, rng, depth + 1)
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    return _of_kind(rng.choice(kinds) if isinstance(kinds, list) else kinds, schema, root, rng, depth)


def _of_kind(kind: str, schema: dict[str, Any], root: dict[str, Any], rng: random.Random, depth: int) -> Any:
    if kind == "object":
        properties, required = schema.get("properties", {}), schema.get("required", [])
        names = [name for name in properties if name in required or (depth < 2 and rng.random() < 0.5)]
        return {name: _value(properties[name], root, rng, depth + 1) for name in names}
    if kind == "array":
        low = schema.get("minItems", 0)
        count = rng.randint(low, max(low, min(schema.get("maxItems", 2), 2)))
        return [_value(schema.get("items", {"type": "string"}), root, rng, depth + 1) for _ in range(count)]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 11) - 1)
        return rng.randint(int(low), max(int(low), int(high)))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    text = rng.choice(_WORDS)
    return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(text) + schema.get("minLength", 0))]


def _resolved(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    node: Any = root
    for part in reference.removeprefix("#/").split("/"):
        node = node.get(part, {}) if isinstance(node, dict) else {}
    return node if isinstance(node, dict) else {}
