"""Typed methods become JSON Schemas, and their arguments are checked."""

from typing import Any, Literal

import pytest

from tests.envkit.bank import Bank
from turngrad.envkit import World, tool
from turngrad.envkit.schema import bind_tools, validated


class Desk(World):
    @tool
    def book(
        self, seat: int, title: str = "title", tags: list[str] | None = None, kind: Literal["aisle", "window"] = "aisle"
    ) -> str:
        """Book a seat."""
        return f"{seat} {title} {tags} {kind}"

    def secret(self) -> str:
        return "not a tool"


class QuietDesk(Desk):
    book = None  # type: ignore[assignment]

    @tool
    def ring(self) -> str:
        """Ring."""
        return "ring"


def test_a_signature_and_a_docstring_become_a_json_schema() -> None:
    listed = {each.name: each.to_mcp() for each in Bank(0, []).tools()}
    assert list(listed) == ["pay_in", "look"]
    assert listed["pay_in"] == {
        "name": "pay_in",
        "description": "Pay an amount into the account.",
        "inputSchema": {
            "type": "object",
            "additionalProperties": False,
            "required": ["amount"],
            "properties": {
                "amount": {"type": "integer", "description": "what to pay in, in whole units"},
                "times": {"type": "integer", "default": 1, "description": "how often"},
            },
        },
    }
    assert listed["look"]["inputSchema"] == {"type": "object", "additionalProperties": False, "properties": {}}


def test_a_parameter_may_be_called_title() -> None:
    schema = bind_tools(Desk)["book"].input_schema
    assert schema["properties"]["title"] == {"type": "string", "default": "title"}
    assert schema["properties"]["kind"] == {"type": "string", "enum": ["aisle", "window"], "default": "aisle"}


def test_only_marked_methods_are_tools_and_a_subclass_can_drop_one() -> None:
    assert list(bind_tools(Desk)) == ["book"]
    assert list(bind_tools(QuietDesk)) == ["ring"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "seat: Field required"),
        ({"seat": "x"}, "seat: Input should be a valid integer"),
        ({"seat": 1, "row": 2}, "row: Extra inputs are not permitted"),
        ({"seat": 1, "kind": "roof"}, "kind: Input should be 'aisle' or 'window'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=f"invalid arguments for book: {fault}"):
        validated(bind_tools(Desk)["book"], arguments)


def test_a_parameter_without_annotation_is_an_authoring_error() -> None:
    class Sloppy(World):
        @tool
        def go(self, where) -> str:  # type: ignore[no-untyped-def]
            return where

    with pytest.raises(TypeError, match="tool go, parameter where: annotate it"):
        bind_tools(Sloppy)
