"""Secrets stay out of what a run prints and writes.

In: text on its way to a terminal, a log or a file. Out: the same text with every known secret as `[NAME]`. Known are the
environment variables that are called like a key, and what a run was told by flag as a header or a server's variable. A service
that echoes a key in its refusal, or a server that dies with one on its lips, then says it to nobody.

Token ids are left alone: a secret that a tool tells the policy is in the episode, exactly as the policy read it (C1).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, TextIO, cast

_CALLED_LIKE_A_KEY = re.compile(r"(?:^|_)(?:API_?)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST = 8
"""A shorter value is no key, and would be found in words that are none."""

_told: dict[str, str] = {}


def keep_secret(name: str, text: str) -> None:
    """Hide `text`, and each of its words that is long enough, from now on as `[name]`."""
    for value in (text, *text.split()):
        if len(value) >= _SHORTEST:
            _told[value] = name


def redacted(text: str) -> str:
    """`text` without the secrets known by now, as they are or as JSON writes them."""
    for value, name in _known():
        if value in text:
            text = text.replace(value, f"[{name}]")
        escaped = json.dumps(value)[1:-1]
        if escaped != value:
            text = text.replace(escaped, f"[{name}]")
    return text


def hidden(pairs: Iterable[str], separator: str) -> list[str]:
    """`Name: value` or `NAME=value` with a reference to an environment variable in place of a literal value.

    What a run folder keeps of such a flag: resume then asks for the variable by name, or for the flag.
    """
    kept = []
    for pair in pairs:
        name, found, value = pair.partition(separator)
        if found and "${" not in value:
            variable = re.sub(r"\W", "_", name.strip()).upper()
            pair = f"{name}{separator}{' ' if separator == ':' else ''}${{{variable}}}"
        kept.append(pair)
    return kept


class Redacting:
    """A text stream that writes to `stream` what is left of a text without its secrets."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redacted(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redacting(stream: TextIO | None) -> TextIO | None:
    """`stream` behind a `Redacting`; a stream that is closed from the start stays None."""
    return None if stream is None else cast("TextIO", Redacting(stream))


def _known() -> list[tuple[str, str]]:
    """Values and names, the longest first: one may be a part of another."""
    found = {value: name for name, value in os.environ.items() if len(value) >= _SHORTEST and _CALLED_LIKE_A_KEY.search(name)}
    return sorted((_told | found).items(), key=lambda item: -len(item[0]))
