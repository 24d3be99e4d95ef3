"""Ids as pieces of text, with the starter's own tokenizer and Qwen's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers.base import load_tokenizer

from tests.qwen import qwen_tokenizer
from turngrad.local.models import BFCL_STARTER_FOLDER
from turngrad.report.decode import Decoder, decoder_for
from turngrad.transcript import printable

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.lists(
    st.sampled_from(["'report.txt' ", "naïve 🤖🏽", '{"a": 1}', "\n", "你好", "  x_y", "🇫🇷", "é"]), max_size=8
).map("".join)


@cache
def tokenizer(name: str) -> object:
    return load_tokenizer(str(BFCL_STARTER_FOLDER)) if name == "starter" else qwen_tokenizer()


def decoder(name: str) -> Decoder:
    loaded = tokenizer(name)

    def decode(ids: Sequence[int]) -> str:
        return loaded.decode(list(ids), skip_special_tokens=False)  # type: ignore[attr-defined]

    return Decoder(decode)


@pytest.mark.parametrize("name", ["starter", "qwen"])
@settings(max_examples=40)
@given(text=TEXTS)
def test_the_pieces_are_the_text_of_the_whole_one_per_token(name: str, text: str) -> None:
    ids = tokenizer(name).encode(text, add_special_tokens=False)  # type: ignore[attr-defined]
    pieces = decoder(name).pieces(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == printable(tokenizer(name).decode(ids, skip_special_tokens=False))  # type: ignore[attr-defined]


def test_a_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    ids = qwen_tokenizer().encode("🦤", add_special_tokens=False)
    assert len(ids) > 1
    assert decoder("qwen").pieces(ids) == [""] * (len(ids) - 1) + ["🦤"]


def test_control_characters_and_direction_marks_are_spelled_out() -> None:
    assert Decoder(lambda ids: "\x1b[2J\u202e\n" * len(ids)).pieces([7]) == ["\\u001b[2J\\u202e\n"]


def test_an_id_that_no_token_has_is_shown_as_it_is() -> None:
    assert Decoder(lambda ids: "".join(["a", "b"][token_id] for token_id in ids)).pieces([9]) == ["<9>"]


def test_without_a_tokenizer_ids_are_shown_and_the_reason_is_told() -> None:
    found = decoder_for({"base_model": "no-such-model", "tokenizer_model": None})
    assert found.pieces([5, 6]) == ["5 ", "6 "]
    assert "no such folder" in (found.note or "")
