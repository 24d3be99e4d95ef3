"""A completion ends at the exact token that completes a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.local.tiny import END, VOCAB, tokenizer
from turngrad.local.stops import Stopper, StopTable

TOKENIZER = tokenizer()
TABLE = StopTable(TOKENIZER, frozenset([END]), VOCAB)


def end_of(ids: list[int], stops: list[str]) -> int | None:
    """How many of `ids` are sampled before the stopper says stop; None if it never does."""
    stopper = Stopper(TABLE, stops)
    for n in range(1, len(ids) + 1):
        if stopper.ends(ids[:n]):
            return n
    return None


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def test_a_control_token_given_as_text_ends_at_that_token() -> None:
    assert end_of([*ids_of("ab"), 0, *ids_of("c")], ["<|endoftext|>"]) == 3


def test_the_same_text_spelled_out_ends_at_its_last_character() -> None:
    spelled = [i for character in "<|endoftext|>" for i in ids_of(character)]
    assert len(spelled) == 13
    assert end_of(spelled + ids_of("x"), ["<|endoftext|>"]) == 13


def test_a_stop_inside_a_longer_token_ends_at_that_token() -> None:
    [word] = ids_of("<w7>")
    assert end_of([*ids_of("a"), word, *ids_of("b")], ["w7"]) == 2


def test_a_stop_across_tokens_ends_at_the_one_that_completes_it() -> None:
    assert end_of(ids_of("one two three"), ["two"]) == 7


def test_the_models_own_end_token_always_ends() -> None:
    assert end_of([*ids_of("ab"), END], []) == 3


def test_the_first_of_several_stops_wins() -> None:
    assert end_of(ids_of("abc"), ["c", "b"]) == 2


def test_a_character_of_several_bytes_ends_at_its_last_byte() -> None:
    ids = ids_of("aé!")
    assert len(ids) == 4
    assert end_of(ids, ["é"]) == 3


@settings(max_examples=80, deadline=None)
@given(text=st.text(alphabet="abé€ <", min_size=1, max_size=12), stop=st.text(alphabet="abé€ ", min_size=1, max_size=3))
def test_the_table_never_misses_a_stop(text: str, stop: str) -> None:
    ids = ids_of(text)
    expected = next((n for n in range(1, len(ids) + 1) if stop in TOKENIZER.decode(ids[:n], skip_special_tokens=False)), None)
    assert end_of(ids, [stop]) == expected


def test_stop_strings_without_a_tokenizer_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Stopper(StopTable(None, frozenset(), VOCAB), ["x"])
