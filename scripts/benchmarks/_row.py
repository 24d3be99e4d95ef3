"""A benchmark's row: a figure of ours, one measured beside it, and whether their ratio reaches its bar."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def row(name: str, ours: float, other: float | None, unit: str, ratio: float | None = None, bar: float | None = None) -> Row:
    """`ratio` is higher-is-better. Without a `bar` the row is only shown, and its `ok` is None."""
    ok = None if bar is None else ratio is not None and ratio >= bar
    return {"name": name, "ours": ours, "other": other, "unit": unit, "ratio": ratio, "bar": bar, "ok": ok}
