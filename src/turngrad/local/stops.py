"""Where a completion ends: the model's own end tokens, and stop strings matched on exact text.

In: output ids as they grow. Out: whether the newest token ends them. A stop string ends a completion at the token whose
text completes it, so the ids returned always include it. Most tokens cannot complete a stop string; a table per string
says which can, so that text is decoded for those alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Decodes(Protocol):
    """The part of `tokenizers.Tokenizer` used here."""

    def decode(self, ids: list[int], skip_special_tokens: bool = ...) -> str: ...
    def decode_batch(self, sequences: list[list[int]], skip_special_tokens: bool = ...) -> list[str]: ...
    def get_vocab_size(self, with_added_tokens: bool = ...) -> int: ...


class StopTable:
    """Which tokens may complete which stop string; shared by all requests of a tokenizer."""

    def __init__(self, tokenizer: Decodes | None, end_ids: frozenset[int], vocab: int) -> None:
        self._tokenizer, self.end_ids, self._vocab = tokenizer, end_ids, vocab
        self._pieces: list[str] | None = None
        self._candidates: dict[str, np.ndarray] = {}

    def text(self, ids: list[int]) -> str:
        """The text of `ids`, control tokens included; empty without a tokenizer."""
        return self._tokenizer.decode(ids, skip_special_tokens=False) if self._tokenizer is not None and ids else ""

    def candidates(self, stop: str) -> np.ndarray:
        """[vocab] bool: tokens whose own text holds the last character of `stop`, or is not whole UTF-8 by itself."""
        if stop not in self._candidates:
            if self._tokenizer is None:
                raise ValueError("stop strings need a tokenizer.json in the model folder")
            if self._pieces is None:
                size = self._tokenizer.get_vocab_size(with_added_tokens=True)
                self._pieces = self._tokenizer.decode_batch([[i] for i in range(size)], skip_special_tokens=False)
            last = stop[-1]
            table = np.zeros(max(self._vocab, len(self._pieces)), bool)
            # A leading space belongs to the word that carries it, and decoders strip it from a lone token.
            for i, piece in enumerate(self._pieces):
                table[i] = last in piece or "\ufffd" in piece or not piece or last == " "
            self._candidates[stop] = table
        return self._candidates[stop]


class Stopper:
    """One completion's end condition."""

    def __init__(self, table: StopTable, stops: list[str]) -> None:
        self._table = table
        self._stops = [(stop, table.candidates(stop)) for stop in stops]

    def ends(self, ids: list[int]) -> bool:
        """Whether the last of `ids` ends the completion. Called once after every token."""
        last = ids[-1]
        if last in self._table.end_ids:
            return True
        text = None
        for stop, candidates in self._stops:
            if candidates[last]:
                text = self._table.text(ids) if text is None else text
                if stop in text:
                    return True
        return False
