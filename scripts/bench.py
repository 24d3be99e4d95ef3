#!/usr/bin/env python3
"""Benchmarks as ratios measured in one run: `uv run scripts/bench.py batch`, or `all`.

Each row compares ours with a peer or a floor measured in the same run, interleaved; `ratio` is higher-is-better and `ok` says
whether it reaches its bar.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from turngrad.cli import run_script
from turngrad.errors import UserError

FOLDER = Path(__file__).parent / "benchmarks"


def names() -> list[str]:
    """The modules of scripts/benchmarks, less what they share and the `*_peer`s, which run in isolated environments."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py") if not path.stem.endswith("_peer"))


def bench(
    name: Annotated[str, tyro.conf.Positional], json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None
) -> int:
    """Run one benchmark, or all of them.

    Args:
        name: a benchmark's name, or all.
        json_file: also write the rows to this file.
    """
    if name != "all" and name not in names():
        raise UserError(f"no benchmark called {name!r}; there are {', '.join(names())}, and all")
    rows: list[dict[str, Any]] = []
    for each in names() if name == "all" else [name]:
        found = _load(each).run()
        rows += found
        _show(each, found)
    if json_file is not None:
        json_file.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(row["ok"] is not False for row in rows) else 1


def _load(name: str) -> Any:
    # Before torch is imported. As in the engine's own process: spinning threads slow each other down on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _show(name: str, rows: list[dict[str, Any]]) -> None:
    table = Table("name", "ours", "other", "unit", "ratio", "bar", "", title=name, title_justify="left")
    for row in rows:
        verdict = "" if row["bar"] is None else "ok" if row["ok"] else "below"
        table.add_row(
            row["name"],
            *(_number(row[key]) for key in ("ours", "other")),
            row["unit"],
            *(_number(row[key]) for key in ("ratio", "bar")),
            verdict,
        )
    Console().print(table)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(run_script(lambda arguments: tyro.cli(bench, args=arguments)))
