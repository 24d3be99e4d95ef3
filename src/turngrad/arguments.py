"""Arguments: whether what the model wrote fits a tool's JSON schema, and in words for the model what does not.

In: a tool's schema, then arguments as parsed. Out: None, or a complaint. A compiled validator (`jsonschema_rs`) says yes in a
microsecond; only where it does not is `jsonschema` asked, seven times slower, which says no and why. Invariant: a schema that
is broken or that points elsewhere refuses nothing and fetches nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry

_STRICT_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False)
_SHOWN = 300


class ArgumentCheck:
    """The check of one tool's arguments; the schema is compiled at the first call."""

    def __init__(self, tool: str, schema: dict[str, Any]) -> None:
        self._tool = tool
        self._schema = schema
        self._accepts: Callable[[Any], bool] | None = None
        self._validator: Validator | None = None

    def complaint(self, arguments: Any) -> str | None:
        """What is wrong with the arguments, or None."""
        if not isinstance(arguments, dict):
            return f"arguments must be a JSON object, got {type(arguments).__name__}"
        try:
            _STRICT_JSON.encode(arguments).encode("utf-8")
        except (ValueError, TypeError, RecursionError) as error:
            return f"arguments cannot be sent as JSON: {error}"
        if self._accepts is None:
            self._accepts = _compiled(self._schema)
        if self._accepts(arguments):
            return None
        try:
            if self._validator is None:
                kind = validator_for(self._schema, default=Draft202012Validator)
                # Without a registry of its own it would fetch what the schema points to.
                self._validator = kind(self._schema, registry=Registry())
            error = best_match(self._validator.iter_errors(arguments))
        except Exception as broken:
            logging.getLogger(__name__).warning(
                "the schema of tool %r is broken, its arguments go unchecked: %s", self._tool, broken
            )
            return None
        if error is None:
            return None
        where = "".join(f"[{part!r}]" for part in error.absolute_path)
        return f"invalid arguments{where}: {error.message[:_SHOWN]}"


def _compiled(schema: dict[str, Any]) -> Callable[[Any], bool]:
    """Whether arguments are valid for certain: never, for a schema that does not compile or that points elsewhere."""

    def refuse(uri: str) -> Any:
        raise ValueError(f"a tool's schema may not fetch {uri}")

    try:
        is_valid = jsonschema_rs.validator_for(schema, retriever=refuse, validate_formats=False).is_valid
    except Exception:
        return lambda arguments: False

    def accepts(arguments: Any) -> bool:
        try:
            return is_valid(arguments)
        except Exception:
            return False

    return accepts
