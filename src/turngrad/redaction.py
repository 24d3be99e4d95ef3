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
    """Hide `text`, and each of its words that is long enough, from now on as `[name]`; a path is no secret."""
    for value in (text, *text.split()):
        if len(value) >= _SHORTEST and not _is_path(value):
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


def hidden_headers(headers: Iterable[str]) -> list[str]:
    """`Name: value` as a run folder keeps it: a literal value becomes `${NAME}`, which resume asks for by that name."""
    return [_by_name(header, ":") for header in headers]


def hidden_variables(variables: Iterable[str]) -> list[str]:
    """`NAME=value` as a run folder keeps it: the same, where the value may be a key. A path or a short word is none."""
    kept = []
    for variable in variables:
        name, _, value = variable.partition("=")
        secret = _CALLED_LIKE_A_KEY.search(name) or len(value) >= _SHORTEST
        kept.append(_by_name(variable, "=") if secret and not _is_path(value) else variable)
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


def _by_name(pair: str, separator: str) -> str:
    name, found, value = pair.partition(separator)
    if not found or "${" in value:
        return pair
    variable = re.sub(r"\W", "_", name.strip()).upper()
    return f"{name}{separator}{' ' * value.startswith(' ')}${{{variable}}}"


def _is_path(value: str) -> bool:
    return value.startswith(("/", ".", "{"))


def _known() -> list[tuple[str, str]]:
    """Values and names, the longest first: one may be a part of another."""
    found = {value: name for name, value in os.environ.items() if len(value) >= _SHORTEST and _CALLED_LIKE_A_KEY.search(name)}
    return sorted((_told | found).items(), key=lambda item: -len(item[0]))
