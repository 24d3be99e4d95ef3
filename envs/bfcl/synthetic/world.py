"""A world: one task's backends, and calls on them by name.

In: class names and an initial configuration in BFCL's shape. Out: result strings as BFCL's own executor formats them.
Nothing is evaluated: a call is a documented name and keyword arguments.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

_SOURCES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"

BACKENDS: dict[str, tuple[str, str]] = {
    "GorillaFileSystem": ("gorilla_file_system", "gorilla_file_system"),
    "MathAPI": ("math_api", "math_api"),
    "MessageAPI": ("message_api", "message_api"),
    "TwitterAPI": ("posting_api", "posting_api"),
    "TicketAPI": ("ticket_api", "ticket_api"),
    "TradingBot": ("trading_bot", "trading_bot"),
    "TravelAPI": ("travel_booking", "travel_booking"),
    "VehicleControlAPI": ("vehicle_control", "vehicle_control"),
}
"""Class name to (module of the backend, file of its function docs)."""

_STATELESS = {"MathAPI"}


def data_folder() -> Path:
    """The `data` folder of the installed bfcl-eval. Raises ValueError when it is not installed."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("bfcl-eval is not installed; install the group `bfcl` (`uv sync --group bfcl`)")
    return Path(spec.submodule_search_locations[0]) / "data"


@cache
def function_docs(class_name: str) -> tuple[dict[str, Any], ...]:
    """The documented functions of one backend, in the order of the official file."""
    path = data_folder() / "multi_turn_func_doc" / f"{BACKENDS[class_name][1]}.json"
    return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


@cache
def parameters(name: str) -> tuple[str, ...]:
    """The parameter names of a documented function, in the order of its doc."""
    for class_name in BACKENDS:
        for doc in function_docs(class_name):
            if doc["name"] == name:
                return tuple(doc["parameters"]["properties"])
    raise KeyError(name)


def tool_names(classes: list[str]) -> list[str]:
    """The documented functions of `classes`, in the official order."""
    return [doc["name"] for class_name in classes for doc in function_docs(class_name)]


class World:
    """Fresh backends of `classes`, loaded from `config`; classes that `config` lacks take BFCL's defaults."""

    def __init__(self, classes: list[str], config: dict[str, Any]) -> None:
        self.instances: dict[str, Any] = {}
        self._methods: dict[str, Any] = {}
        self._lists: dict[str, dict[str, Any]] = {}
        for class_name in classes:
            module = importlib.import_module(f"{_SOURCES}.{BACKENDS[class_name][0]}")
            instance = getattr(module, class_name)()
            if class_name not in _STATELESS:
                instance._load_scenario(copy.deepcopy(config.get(class_name, {})), long_context=False)
            self.instances[class_name] = instance
            for doc in function_docs(class_name):
                method = getattr(instance, doc["name"])
                self._methods[doc["name"]] = method
                self._lists[doc["name"]] = _list_defaults(method)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run one documented function; errors come back as text, as the official executor gives them."""
        method = self._methods.get(name)
        if method is None:
            return f"Error during execution: name '{name}' is not defined"
        try:
            # A list that a backend declares as a default is one object for the whole process, and `mention` writes to it.
            result = method(**copy.deepcopy({**self._lists[name], **arguments}))
        except Exception as error:
            return f"Error during execution: {error}"
        if isinstance(result, str):
            return result
        if isinstance(result, dict):
            try:
                return json.dumps(result)
            except TypeError:
                return str(result)
        return str(result)


def _list_defaults(method: Any) -> dict[str, Any]:
    """The parameters of `method` that default to a list, each with an empty one."""
    signature = inspect.signature(method)
    return {parameter.name: [] for parameter in signature.parameters.values() if isinstance(parameter.default, list)}


def is_error(result: str) -> bool:
    """Whether a result tells of a failure, in any of the ways the backends do."""
    lowered = result[:200].lower()
    return (
        lowered.startswith("error during execution")
        or '"error"' in lowered
        or "'error'" in lowered
        or "error: user not authenticated" in lowered
        or '"verification_failure"' in lowered
        or '"authentication_status": false' in lowered
        or '"login_status": false' in lowered
        or '"success": false' in lowered
    )
