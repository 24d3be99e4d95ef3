"""The simulated systems of one BFCL episode: instances that belong to the episode, calls dispatched by an allow-list.

In: an entry. Out: `execute` for the policy's calls and `execute_truth` for the ground truth's. Invariant: the instances are
reachable through this object only; the official executor keeps them in module globals, where two rollouts of one entry
share them.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from bfcl_data import Entry, TruthCall, function_documents
from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES
from bfcl_execute import run, undefined

Isolated = Callable[[str, dict[str, Any]], str]
"""Runs a stateless backend's call (name, arguments) elsewhere and gives its official text."""

MAX_PATHS = 20_000
"""Paths that a directory walk may visit; BFCL's own trees have 125 at most."""
_WALKS = ("find", "du")
_SHARED_TEXT = threading.Lock()
_WRITES_SHARED_TEXT = "get_outside_temperature_from_google"
"""In long_context this function writes its answer into a dict of its module before returning it."""


class EndlessCall(Exception):
    """A legal call that would not end; it was not begun."""


class Backends:
    """The involved classes of an entry in their initial state.

    `isolated` takes the calls of stateless classes (MathAPI); without it they run here, which is for trusted calls.
    """

    def __init__(self, entry: Entry, isolated: Isolated | None = None) -> None:
        self.instances = {name: _instance(name, entry) for name in entry.involved_classes}
        self._isolated = isolated
        self._defaults: dict[str, dict[str, Any]] = {}
        self._owner = {function: name for name in entry.involved_classes for function in function_documents(name)}

    def execute(self, name: str, arguments: dict[str, Any]) -> str:
        """Run a documented function of the involved classes; any other name is unknown, as in the official executor.

        Raises EndlessCall for a walk over directories that moves and copies have folded into more than `MAX_PATHS` paths.
        """
        owner = self._owner.get(name)
        if owner is None:
            return undefined(name)
        if name in _WALKS:
            files = self.instances[owner]
            if not (_walk_ends(files.root) and _walk_ends(files._current_dir)):
                raise EndlessCall(f"stopped: the directories hold more than {MAX_PATHS} paths")
        if owner in STATELESS_CLASSES and self._isolated is not None:
            return self._isolated(name, arguments)
        return self._run(owner, name, arguments)

    def execute_truth(self, call: TruthCall) -> str:
        """Run one ground-truth call. Raises ValueError when the involved classes have no such function."""
        if call.name not in self._owner:
            raise ValueError(f"ground truth calls {call.name!r}, which none of {', '.join(self.instances)} has")
        return self._run(self._owner[call.name], call.name, copy.deepcopy(call.arguments), call.positional)

    def _run(self, owner: str, name: str, arguments: dict[str, Any], positional: tuple[Any, ...] = ()) -> str:
        method = getattr(self.instances[owner], name)
        arguments = {**self._own_defaults(name, method, arguments, positional), **arguments}
        if name == _WRITES_SHARED_TEXT:
            with _SHARED_TEXT:
                return run(method, arguments, positional)
        return run(method, arguments, positional)

    def _own_defaults(
        self, name: str, method: Callable[..., Any], arguments: dict[str, Any], positional: tuple[Any, ...]
    ) -> dict[str, Any]:
        """The lists that the call leaves to their defaults, as objects of this episode.

        `post_tweet`'s default lists are one object in the whole process, and `mention` writes into them: what one episode
        mentions would stand in the tweets of all others.
        """
        if name not in self._defaults:
            parameters = inspect.signature(method).parameters.values()
            self._defaults[name] = {p.name: copy.copy(p.default) for p in parameters if isinstance(p.default, list)}
        if not self._defaults[name]:
            return {}
        given = {*list(inspect.signature(method).parameters)[: len(positional)], *arguments}
        return {parameter: value for parameter, value in self._defaults[name].items() if parameter not in given}


def _walk_ends(top: Any) -> bool:
    """Whether a walk is over within `MAX_PATHS` paths: at its end, or where the interpreter's recursion limit ends it.

    `mv` and `cp` share contents between directories: forty of each make a tree of 2**40 paths, and a walk over it would
    take the server's memory before its time is up.
    """
    levels = [iter(top.contents.values())]
    paths = 0
    while levels and len(levels) <= sys.getrecursionlimit():
        item = next(levels[-1], None)
        if item is None:
            levels.pop()
            continue
        paths += 1
        if paths > MAX_PATHS:
            return False
        if hasattr(item, "contents"):
            levels.append(iter(item.contents.values()))
    return True


def _instance(class_name: str, entry: Entry) -> Any:
    instance = _backend_class(class_name)()
    if class_name not in STATELESS_CLASSES:
        config = copy.deepcopy(entry.initial_config.get(class_name, {}))
        instance._load_scenario(config, long_context=entry.long_context)
    return instance


@cache
def _backend_class(class_name: str) -> Any:
    return getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[class_name]), class_name)
