"""Token ids as text, one piece per token.

In: the ids of a prompt or an answer. Out: as many pieces, which joined are the text of the whole. A character that several
tokens share (most of a byte-level vocabulary's emoji and Chinese) belongs to the last of them; the others' pieces are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from turngrad.errors import UserError
from turngrad.transcript import printable

_REPLACEMENT = "\ufffd"


class Decoder:
    """Decodes one by one with `decode`, or shows ids where there is no tokenizer; `note` then says why."""

    def __init__(self, decode: Callable[[Sequence[int]], str] | None, note: str | None = None) -> None:
        self._decode = decode
        self.note = note
        self._single: dict[int, str] = {}

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, safe to show: control characters and direction marks are spelled out."""
        if self._decode is None:
            return [f"{token_id} " for token_id in ids]
        singles = [self._one(token_id) for token_id in ids]
        whole = "".join(singles)
        if _REPLACEMENT in whole or self._text(ids) != whole:
            singles = self._shared(ids)
        return [printable(piece) for piece in singles]

    def _one(self, token_id: int) -> str:
        if token_id not in self._single:
            self._single[token_id] = self._text([token_id])
        return self._single[token_id]

    def _shared(self, ids: Sequence[int]) -> list[str]:
        """The pieces where tokens do not decode alone, by what each adds to the few before it."""
        pieces, start, read = [], 0, 0
        for end in range(1, len(ids) + 1):
            before, after = self._text(ids[start:read]), self._text(ids[start:end])
            if after.endswith(_REPLACEMENT) and end < len(ids) and end - read < 8:
                pieces.append("")
                continue
            pieces.append(after[len(before) :])
            start, read = read, end
        return pieces

    def _text(self, ids: Sequence[int]) -> str:
        assert self._decode is not None
        try:
            return self._decode(ids)
        except Exception:
            # An id beyond the vocabulary: another model's tokenizer, or a broken record. It is shown as it is.
            return "".join(f"<{token_id}>" for token_id in ids)


def decoder_for(config: dict[str, Any], tokenizer_model: str | None = None) -> Decoder:
    """The decoder of a run's model, or one that shows ids, with a note, where no tokenizer can be loaded."""
    # Here, not at the top: transformers takes seconds that a run of ids alone need not wait for.
    from turngrad.conversation import load_family
    from turngrad.local.models import renderer_for, resolve_model

    model = tokenizer_model or config.get("tokenizer_model")
    renderer_config = None
    try:
        if model is None:
            model = config["base_model"]
            if not model.startswith("accounts/"):
                model = str(resolve_model(model))
        if Path(model).is_dir():
            renderer_config = renderer_for(Path(model))
        family = load_family(model, renderer=config.get("renderer", "auto"), renderer_config=renderer_config)
    except (UserError, ValueError, OSError, ImportError) as error:
        return Decoder(None, f"no tokenizer, so tokens are shown as ids: {error}")
    return Decoder(family.decode)
