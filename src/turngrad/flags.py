"""docs/flags.md, written from the settings themselves: `python -m turngrad.flags > docs/flags.md`.

In: `TrainConfig` and its presets. Out: one line a flag with its kind, default and help, in the order of `--help`.
"""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from turngrad.config import PRESETS, TrainConfig

_ROOT = Path(__file__).parent

_HEAD = """# Flags of train.py

Made by `python -m turngrad.flags > docs/flags.md` from the settings in `src/turngrad/config.py`; a test compares them.
`uv run scripts/train.py --help` shows the same. A default
in brackets depends on where the weights live and on the taskset, as named in it.

| flag | value | default | help |
|---|---|---|---|
"""


def flag_page() -> str:
    """The page."""
    hints = typing.get_type_hints(TrainConfig)
    return _HEAD + "".join(
        f"| `--{name.replace('_', '-')}` | {_cell(_kind(hints[name]))} | {_cell(_default(name, info.default))} "
        f"| {_cell(info.description or '')} |\n"
        for name, info in TrainConfig.model_fields.items()
    )


def _kind(hint: Any) -> str:
    """The value a flag takes, in words."""
    origin = get_origin(hint)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if origin is typing.Annotated:
        return _kind(get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(arm) for arm in get_args(hint) if arm is not type(None))
    if origin in (tuple, list):
        return f"{_kind(get_args(hint)[0])}, several"
    names = {bool: "switch (`--no-` before it turns it off)", int: "integer", float: "number", str: "text"}
    return names.get(hint, getattr(hint, "__name__", str(hint)).lower())


def _shown(value: Any) -> str:
    """A file of this package is named from its root: the page is the same on every machine."""
    return value.relative_to(_ROOT).as_posix() if isinstance(value, Path) else str(value)


def _default(name: str, default: Any) -> str:
    """The default; of a setting that depends on backend and taskset, each preset's."""
    by_value: dict[str, list[str]] = {}
    for (backend, kind), preset in PRESETS.items():
        if name in preset:
            by_value.setdefault(_shown(preset[name]), []).append(f"{backend} {kind}")
    if by_value:
        return "[" + "; ".join(f"{', '.join(where)}: {value}" for value, where in by_value.items()) + "]"
    return "none" if default is None else "none" if default == () else str(default)


def _cell(text: str) -> str:
    """Text as it may stand in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


if __name__ == "__main__":
    print(flag_page(), end="")
