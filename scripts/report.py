#!/usr/bin/env python3
"""A run as one HTML file: `uv run scripts/report.py runs/<folder>`; two folders are shown side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from turngrad.cli import run_script


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    out: Path | None = None,
    watch: float | None = None,
    tokenizer_model: str | None = None,
    max_bytes: int = 10_000_000,
) -> int:
    """Write the report of one run, or of two side by side.

    Args:
        runs: one or two run folders.
        out: the file to write; without it report.html in the first run's folder.
        watch: write it again every so many seconds in which the run has moved, until it has finished.
        tokenizer_model: hub id or folder of the tokenizer, where the run's own cannot be loaded.
        max_bytes: largest size of the file; episodes that do not fit are left out, extremes last.
    """
    # Here, not at the top: plotly and the tokenizer take a moment that --help should not.
    from turngrad.report.page import Report
    from turngrad.report.page import watch as watch_runs

    made = Report(runs, tokenizer_model=tokenizer_model, max_bytes=max_bytes)
    path = out or runs[0] / "report.html"
    if watch is not None:
        try:
            watch_runs(made, path, watch, print)
        except KeyboardInterrupt:
            return 130
        return 0
    made.write(path)
    print(f"wrote {path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(run_script(lambda arguments: tyro.cli(report, args=arguments)))
