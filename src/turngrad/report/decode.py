"""Token ids as text, one piece per token.

In: the ids of a prompt or an answer. Out: as many pieces, which joined are the text of the whole. A character that several
tokens share (most emoji of a byte-level vocabulary) belongs to the last of them, and the others' pieces are empty. Some
tokenizers decode a token differently beside another one, so a token is asked alone first and among its neighbours where that
does not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from turngrad.errors import UserError
from turngrad.transcript import printable

_REPLACEMENT = "\ufffd"

_STRETCH = 256

_REACHES = (1, 4, 16, 64)
"""Neighbours asked on each side, more where a text breaks off inside a character: a run of single bytes may be long."""


class Decoder:
    """Decodes one by one with `decode`, or shows ids where there is no tokenizer; `note` then says why."""

    def __init__(self, decode: Callable[[Sequence[int]], str] | None, note: str | None = None) -> None:
        self._decode = decode
        self.note = note
        self._known: dict[tuple[int, ...], str] = {(): ""}
        self._pieces: dict[tuple[tuple[int, ...], int], str] = {}

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, safe to show: control characters and direction marks are spelled out."""
        if self._decode is None:
            return [f"{token_id} " for token_id in ids]
        pieces = [self._cached((token_id,)) for token_id in ids]
        # Stretches that overlap by a token: some decoders take time quadratic in what they are given at once.
        if not all(
            self._text(ids[start : start + _STRETCH + 1]) == "".join(pieces[start : start + _STRETCH + 1])
            for start in range(0, len(ids), _STRETCH)
        ):
            pieces = self._in_context(ids)
        return [printable(piece) for piece in pieces]

    def _in_context(self, ids: Sequence[int]) -> list[str]:
        """The pieces where tokens do not decode alone: by what each adds to its neighbours' text."""
        return [self._added(*self._window(ids, place)) for place in range(len(ids))]

    def _window(self, ids: Sequence[int], place: int) -> tuple[tuple[int, ...], int]:
        """The token at `place` among as many neighbours as it takes to break off inside no character, and where it is."""
        window, first = tuple(ids), 0
        for reach in _REACHES:
            first = max(0, place - reach)
            window = tuple(ids[first : place + reach + 1])
            if _REPLACEMENT not in self._cached(window):
                break
        return window, place - first

    def _added(self, window: tuple[int, ...], place: int) -> str:
        """What the token at `place` adds: its text begins and ends where the text so far agrees with the window's."""
        if (window, place) not in self._pieces:
            whole = self._cached(window)
            agreed = [_agreement(self._cached(window[:end]), whole) for end in range(place + 2)]
            self._pieces[window, place] = whole[max(agreed[:-1]) : max(agreed)]
        return self._pieces[window, place]

    def _cached(self, ids: tuple[int, ...]) -> str:
        if ids not in self._known:
            self._known[ids] = self._text(ids)
        return self._known[ids]

    def _text(self, ids: Sequence[int]) -> str:
        assert self._decode is not None
        try:
            return self._decode(ids)
        except Exception:
            # An id beyond the vocabulary: another model's tokenizer, or a broken record. It is shown as it is.
            return "".join(f"<{token_id}>" for token_id in ids)


def _agreement(text: str, other: str) -> int:
    """How many first characters two texts share."""
    for place, (one, two) in enumerate(zip(text, other, strict=False)):
        if one != two:
            return place
    return min(len(text), len(other))


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
