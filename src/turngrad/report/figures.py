"""Curves and bars over the rows of one or two runs, as plotly figures.

In: metric rows and what to take from them. Out: `Chart`s: a figure, what it shows, and its first and last values in a
sentence for who cannot see it. Every point carries the page it opens (`customdata`), the key that `page` gives the episodes
of its step. Colours are picked to be read on white and on black; text and grid take the page's own when a browser draws them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from turngrad.report.folder import Row, RunFolder

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#3b82d0", "#d9730d", "#2f9e6e", "#d6455d", "#9061c2", "#8a8f98"
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, "#b08900", "#1aa3b8", "#c2559d", GREY)
DASHES = ("solid", "dot")

Value = Callable[[Row], float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure. `caption` says what to look for, `summary` the first and last value of every line."""

    key: str
    title: str
    caption: str
    summary: str
    figure: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its name, its colour, its value in a row (None: no point)."""

    name: str
    colour: str
    value: Value


def page_key(run: int, name: str) -> str:
    """What a point opens: the episode file `name` of the run with this number."""
    return f"{run}/{name}"


def key(name: str, scale: float = 1.0) -> Value:
    """The value of one key of a row."""

    def value(row: Row) -> float | None:
        found = row.get(name)
        return None if found is None else found * scale

    return value


def each(name: str, count: str = "rollouts") -> Value:
    """The value of one key, for one rollout."""
    return lambda row: None if row.get(name) is None or not row.get(count) else row[name] / row[count]


def lines(name: str, title: str, caption: str, axis: str, *drawn: Line, **layout: Any) -> Callable[..., Chart]:
    def build(runs: Sequence[RunFolder]) -> Chart:
        figure = go.Figure()
        for number, run in enumerate(runs):
            for line in drawn:
                add_line(figure, line, runs, number, run.steps)
        return finish(name, title, caption, figure, axis, **layout)

    return build


def stacks(name: str, title: str, caption: str, axis: str, find: Callable[[Row], dict[str, float]]) -> Callable[..., Chart]:
    """Bars whose parts are found in the rows: parts that are zero throughout are left out."""

    def build(runs: Sequence[RunFolder]) -> Chart:
        figure = go.Figure()
        totals: dict[str, float] = {}
        for run in runs:
            for row in run.steps:
                for part, value in find(row).items():
                    totals[part] = totals.get(part, 0.0) + value
        names = [part for part in totals if totals[part]]
        for number, run in enumerate(runs):
            for part, colour in zip(names, _colours(len(names)), strict=True):
                figure.add_bar(
                    x=[row["step"] for row in run.steps],
                    y=[find(row).get(part, 0.0) for row in run.steps],
                    customdata=[page_key(number, page_name(row)) for row in run.steps],
                    name=_named(part, runs, number),
                    marker={"color": colour, "pattern": {"shape": "/" if number else ""}},
                    offsetgroup=str(number),
                    hovertemplate="%{fullData.name}, step %{x}: %{y:.4~g}<extra></extra>",
                )
        figure.update_layout(barmode="stack")
        return finish(name, title, caption, figure, axis)

    return build


def _colours(count: int) -> list[str]:
    return [PALETTE[index % len(PALETTE)] for index in range(count)]


def add_line(
    figure: go.Figure, line: Line, runs: Sequence[RunFolder], number: int, rows: Sequence[Row], *, interval: bool = False
) -> None:
    """The line over the rows that have its value, or nothing."""
    points = [(row, value) for row in rows for value in [line.value(row)] if value is not None and math.isfinite(value)]
    if not points:
        return
    bounds: dict[str, Any] = {}
    if interval:
        ends = [row.get("reward_ci95") or [value, value] for row, value in points]
        bounds["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [high - value for (_, value), (_, high) in zip(points, ends, strict=True)],
            "arrayminus": [value - low for (_, value), (low, _) in zip(points, ends, strict=True)],
        }
    figure.add_scatter(
        x=[row["step"] for row, _ in points],
        y=[value for _, value in points],
        customdata=[page_key(number, page_name(row)) for row, _ in points],
        name=_named(line.name, runs, number),
        mode="lines+markers",
        line={"color": line.colour, "dash": DASHES[number], "width": 2},
        marker={"size": 9 if interval else 6, "symbol": "diamond" if interval else "circle"},
        hovertemplate="%{fullData.name}, step %{x}: %{y:.4~g}<extra></extra>",
        **bounds,
    )


def add_band(figure: go.Figure, run: RunFolder, number: int, runs: int) -> None:
    """Reward plus and minus the spread within groups."""
    rows = [row for row in run.steps if row["reward"] is not None and row["reward_std_within_group"] is not None]
    if not rows:
        return
    steps = [row["step"] for row in rows]
    high = [row["reward"] + row["reward_std_within_group"] for row in rows]
    low = [row["reward"] - row["reward_std_within_group"] for row in rows]
    figure.add_scatter(
        x=steps + steps[::-1],
        y=high + low[::-1],
        fill="toself",
        fillcolor=f"rgba(59,130,208,{0.18 if number == 0 else 0.09})",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        name="spread" if runs == 1 else f"spread {number}",
        mode="lines",
    )


def finish(name: str, title: str, caption: str, figure: go.Figure, axis: str, *, share: bool = False, log: bool = False) -> Chart:
    figure.update_layout(
        template="none",
        margin={"l": 54, "r": 12, "t": 8, "b": 40},
        hovermode="closest",
        # The page has a legend of its own, whose entries a keyboard reaches and a narrow screen wraps.
        showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        xaxis={"title": {"text": "step"}, "range": _step_range(figure), "tickformat": "d", "dtick": _step_ticks(figure)},
        yaxis={"title": {"text": axis}, "tickformat": ".0%" if share else "", "rangemode": "normal" if log else "tozero"},
    )
    if log:
        figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    return Chart(name, title, caption, " ".join(_sentences(figure)), figure.to_plotly_json())


def _traces(figure: go.Figure) -> tuple[Any, ...]:
    """What was added to the figure; plotly's own annotation of `data` says less."""
    traces: Any = figure.data
    return traces


def _step_range(figure: go.Figure) -> list[float]:
    """All steps, with room for a bar or an interval at either end."""
    steps = [step for trace in _traces(figure) for step in trace.x] or [0]
    room = max(0.6, 0.03 * max(steps))
    return [min(steps) - room, max(steps) + room]


def _step_ticks(figure: go.Figure) -> int:
    """Whole steps between ticks: at most ten of them."""
    return max(1, math.ceil(max((max(trace.x) for trace in _traces(figure) if trace.x), default=0) / 10))


def _sentences(figure: go.Figure) -> Iterator[str]:
    for trace in _traces(figure):
        if trace.hoverinfo == "skip":
            continue
        steps, values = list(trace.x), list(trace.y)
        if len(values) > 1:
            yield f"{trace.name}: {values[0]:.4g} at step {steps[0]}, {values[-1]:.4g} at step {steps[-1]}."
        else:
            yield f"{trace.name}: {values[0]:.4g} at step {steps[0]}."


def _named(name: str, runs: Sequence[RunFolder], number: int) -> str:
    return name if len(runs) == 1 else f"{'AB'[number]}: {name}"


def page_name(row: Row) -> str:
    """The episode file that a row is about, as `training` names it."""
    return f"step-{row['step']:04d}" if row["kind"] == "train" else f"eval-{row['step']:04d}-{row['split']}"
