"""A pydantic config as command-line flags: help that teaches, mistakes in one sentence.

In: a config class and the arguments. Out: a validated config. Parsing knows only types; bounds are checked by the model
itself afterwards, so that every mistake is named in one go, by its flag.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
import yaml
from pydantic import BaseModel, ValidationError

from turngrad.config import validation_message
from turngrad.errors import UserError
from turngrad.presets import PRESETS
from turngrad.redaction import redacting

ModelT = TypeVar("ModelT", bound=BaseModel)


def parse_flags(model: type[ModelT], arguments: list[str], default: ModelT | None = None) -> ModelT:
    """The config of a command line; what is not given keeps `default`'s value.

    Raises:
        UserError: one line for each setting out of bounds. `--help` and unknown flags end the process, as tyro does.
    """
    start = default or model()
    hints = typing.get_type_hints(model)
    fields: list[Any] = [
        (
            name,
            Annotated[hints[name], tyro.conf.arg(help=_help(name, info.description or ""))],
            dataclasses.field(default=getattr(start, name)),
        )
        for name, info in model.model_fields.items()
    ]
    flags = dataclasses.make_dataclass(model.__name__, fields)
    flags.__doc__ = model.__doc__
    parsed = tyro.cli(flags, args=arguments)
    try:
        return model.model_validate({name: getattr(parsed, name) for name in model.model_fields})
    except ValidationError as error:
        raise UserError(validation_message(error)) from None


def flag_value(flag: str, arguments: list[str]) -> str | None:
    """The value of one flag before the rest is parsed, for a flag that decides the defaults of the others."""
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None


def read_yaml(path: Path) -> dict[str, Any]:
    """Settings from a YAML file, by name; `-` and `_` are the same in a name.

    Raises:
        UserError: no such file, or it is no mapping.
    """
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--config {path}: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"--config {path}: expected `name: value` lines, found a {type(data).__name__}")
    return {str(name).replace("-", "_"): value for name, value in data.items()}


def run_script(script: Callable[[list[str]], int]) -> int:
    """Run a script's main function on the command line: a user's mistake is shown in words, a closed pipe ends quietly.

    Nothing it prints holds a key (`turngrad.redaction`).
    """
    sys.stdout, sys.stderr = redacting(sys.stdout), redacting(sys.stderr)  # type: ignore[assignment]
    try:
        return script(sys.argv[1:])
    except KeyboardInterrupt:
        # Before there is anything to save.
        return 130
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Python would complain once more when it flushes at exit.
        sys.stdout = None  # type: ignore[assignment]
        return 0


def _help(name: str, description: str) -> str:
    """The description, with the defaults of a setting that depends on backend and taskset."""
    values = {key: preset[name] for key, preset in PRESETS.items() if name in preset}
    if not values:
        return description
    told = "; ".join(
        f"{backend}: "
        + " / ".join(str(values[backend, kind]) for kind in ("bfcl", "arithmetic", "own") if (backend, kind) in values)
        for backend in ("fireworks", "local")
        if any(key[0] == backend for key in values)
    )
    return f"{description} [{told}]"
