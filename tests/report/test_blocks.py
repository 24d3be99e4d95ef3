"""Prompts cut into messages: for every family whose chat format the tests can render, and for text of none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.families import FAMILIES, family
from turngrad.report.blocks import Block, blocks
from turngrad.report.decode import Decoder

CALL = {"type": "function", "id": "call_0", "function": {"name": "look", "arguments": {"where": "here"}}}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_familys_prompt_is_cut_into_its_messages(name: str) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where am I?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_0", "name": "look", "content": "in a forest"},
    ]
    model = family(name)
    ids = model.renderer.render_ids(messages, tools=[TOOL], add_generation_prompt=True)  # type: ignore[list-item]
    pieces = Decoder(model.decode).pieces(ids)
    found = blocks(pieces)
    assert sum(block.length for block in found) == len(ids)
    texts, start = [], 0
    for block in found:
        texts.append((block.role, "".join(pieces[start : start + block.length])))
        start += block.length
    roles = [role for role, text in texts if role != "context"]
    # DeepSeek answers a tool's result without opening a message of its own.
    assert roles[-1] == ("tool" if name.startswith("deepseek") else "assistant")
    for role, said in (("system", "Be brief."), ("user", "Where am I?"), ("tool", "in a forest")):
        assert [said in text for found_role, text in texts if found_role == role].count(True) == 1, texts


@given(st.lists(st.text(max_size=6) | st.sampled_from(["<|im_start|>", "user\n", "<tool_response>", ""]), max_size=12))
def test_the_blocks_cover_the_pieces_whatever_they_say(pieces: list[str]) -> None:
    found = blocks(pieces)
    assert sum(block.length for block in found) == len(pieces)
    assert all(block.length > 0 for block in found)


def test_text_of_no_known_format_is_one_block_of_context() -> None:
    assert blocks(["What is", " 2 + 2?"]) == [Block("context", 2)]
