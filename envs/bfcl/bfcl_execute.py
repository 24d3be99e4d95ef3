"""One call of a BFCL backend, answered with the official executor's text.

The official executor builds source text from the model's call and evaluates it; here a bound method is called with
keyword arguments, and only the wording of results and errors is reproduced (C9).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def run(method: Callable[..., Any], arguments: Mapping[str, Any], positional: Sequence[Any] = ()) -> str:
    """The text a model is shown for this call: the result, or "Error during execution: ..."."""
    unspeakable = _first_non_finite([*positional, *arguments.values()])
    if unspeakable is not None:
        return undefined(unspeakable)
    try:
        result = method(*positional, **arguments)
        if type(result) is str:
            return result
        if type(result) is dict:
            try:
                return json.dumps(result)
            except Exception:
                # Not everything is JSON (mpmath's numbers); the official executor falls back to repr.
                return str(result)
        return str(result)
    except Exception as error:
        return f"Error during execution: {error}"


def undefined(name: str) -> str:
    """What the official executor says of a name it does not know."""
    return f"Error during execution: name '{name}' is not defined"


def _first_non_finite(node: Any) -> str | None:
    """`nan` and `inf` are no names in the official executor's source text: using one is an error there."""
    if isinstance(node, float):
        return None if math.isfinite(node) else ("nan" if math.isnan(node) else "inf")
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return next((found for child in children if (found := _first_non_finite(child)) is not None), None)
