"""Typed methods as tools: a signature and a docstring become a JSON Schema, and arguments are validated against it.

In: a method marked `@tool`, its parameters annotated, its docstring in Google's form (an `Args:` section describes the
parameters). Out: name, description and input schema as MCP wants them. Nothing but marked methods is reachable (C9).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__turngrad_tool__"


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A marked method of a world class with the pydantic model of its arguments."""

    name: str
    description: str
    input_schema: dict[str, Any]
    function: Callable[..., Any]
    model: type[BaseModel]


def tool(function: F) -> F:
    """Offer a method to the policy under its own name."""
    setattr(function, _MARK, True)
    return function


@cache
def bind_tools(world: type) -> dict[str, BoundTool]:
    """The marked methods of a world class by name, in the order they are written, base classes first.

    Raises TypeError where a parameter has no annotation, or cannot be named by a JSON object's key.
    """
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(world.__mro__):
        for name, member in vars(base).items():
            if getattr(member, _MARK, False):
                found[name] = member
            elif name in found:
                del found[name]
    return {name: _bound(name, function) for name, function in found.items()}


def validated(bound: BoundTool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as the method's annotations want them. Raises ValueError naming each argument that does not fit."""
    try:
        model = bound.model.model_validate(arguments)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in error.errors())
        raise ValueError(f"invalid arguments for {bound.name}: {faults}") from None
    return {name: getattr(model, name) for name in bound.model.model_fields}


def _bound(name: str, function: Callable[..., Any]) -> BoundTool:
    description, parameter_docs = _read_docstring(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function, eval_str=True).parameters.values())[1:]:
        where = f"tool {name}, parameter {parameter.name}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{where}: a tool's arguments arrive by name; write it as a plain keyword parameter")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"{where}: annotate it, the annotation becomes the JSON Schema the model sees")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (parameter.annotation, Field(default, description=parameter_docs.get(parameter.name)))
    model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return BoundTool(name, description, _without_titles(model.model_json_schema()), function, model)


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The docstring's prose before its first section, and the entries of its `Args:` section."""
    prose, *sections = re.split(r"^(Args|Returns|Raises):\s*$", text, flags=re.MULTILINE)
    named = dict(zip(sections[::2], sections[1::2], strict=True))
    entries = re.findall(r"^ {2,4}(\w+)(?: \([^)]*\))?: (.*(?:\n {5,}.*)*)", named.get("Args", ""), flags=re.MULTILINE)
    return prose.strip(), {name: " ".join(entry.split()) for name, entry in entries}


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop pydantic's generated titles, which repeat the names and cost prompt tokens."""

    def clean(node: Any, keys_are_names: bool = False) -> Any:
        if isinstance(node, list):
            return [clean(item) for item in node]
        if not isinstance(node, dict):
            return node
        kept = {key: value for key, value in node.items() if keys_are_names or key != "title"}
        return {key: clean(value, key == "properties" and not keys_are_names) for key, value in kept.items()}

    return clean(schema)
