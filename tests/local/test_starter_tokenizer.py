"""The starter's tokenizer: exact both ways, one form for every word."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from turngrad.local.models import BFCL_STARTER, resolve_model
from turngrad.local.starter.tokenizer import CONTROL_TOKENS, ESCAPE, GLUE, WORD, train_tokenizer

any_text = st.text(
    alphabet=st.one_of(
        st.sampled_from(f" {WORD}{GLUE}{ESCAPE}abXg_m1'\"{{}}\n\r\t.<>|:"), st.characters(exclude_categories=["Cs"])
    ),
    max_size=80,
)


@cache
def packaged() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(resolve_model(BFCL_STARTER))


def words_of(text: str) -> list[str]:
    return list(packaged().convert_ids_to_tokens(packaged().encode(text, add_special_tokens=False)))


@settings(max_examples=500, deadline=None)
@given(any_text)
def test_any_text_comes_back_byte_for_byte(text: str) -> None:
    ids = packaged().encode(text, add_special_tokens=False)
    assert packaged().decode(ids, skip_special_tokens=False) == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(CONTROL_TOKENS), any_text), max_size=6))
def test_control_tokens_between_texts_change_nothing(parts: list[str]) -> None:
    text = "".join(parts)
    assert packaged().decode(packaged().encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_a_control_token_is_one_special_token(token: str) -> None:
    ids = packaged().encode(token, add_special_tokens=False)
    assert len(ids) == 1
    assert ids[0] in packaged().all_special_ids


@pytest.mark.parametrize("word", ["report", "file_name", "book_flight", "fuelAmount", "SFO"])
@pytest.mark.parametrize("around", ["{}", "the {} there", "'{}'", '{{"a": "{}"}}', "a/{}", "\n{}\n", "({})", "x.{}"])
def test_a_word_is_the_same_token_wherever_it_stands(word: str, around: str) -> None:
    assert WORD + word in words_of(around.format(word))


def test_digits_stand_alone() -> None:
    assert words_of("1984.50") == ["1", "9", "8", "4", ".", "5", "0"]


def test_the_fixed_parts_of_a_call_are_one_token_each() -> None:
    pieces = words_of('{"name": "cat", "arguments": {"file_name": "a"}}')
    assert pieces[0] == f'{{"{GLUE}{WORD}name": "{GLUE}'
    assert pieces[1] == WORD + "cat"
    assert pieces[2] == f'", "{GLUE}{WORD}arguments": {{"{GLUE}'
    assert pieces[3] == WORD + "file_name"


def test_a_vocabulary_without_room_for_its_words_is_refused_with_the_size_it_needs() -> None:
    with pytest.raises(ValueError, match="vocab_size 600 has no room for 100 whole words; at least 621"):
        train_tokenizer(["text"], ["w" + "x" * n for n in range(100)], 600)


def test_a_trained_tokenizer_is_a_plain_hugging_face_one(tmp_path) -> None:
    made = train_tokenizer(["copy 'report.txt' to the archive"] * 5, ["copy", "file_name"], 600)
    made.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "copy 'wörld.txt' 世界 file_name"
    assert loaded.encode(text, add_special_tokens=False) == made.encode(text, add_special_tokens=False)
    assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text
    assert loaded.eos_token == "<|im_end|>"
