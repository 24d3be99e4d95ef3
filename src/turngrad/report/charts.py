"""The curves of one or two runs, as plotly figures.

In: metric rows. Out: `Chart`s: a figure, what it shows, and its figures in a sentence for who cannot see it. Every point
carries the page it opens (`customdata`), the key that `page` gives the episodes of its step. Colours are picked to be read on
white and on black; text and grid take the page's own when a browser draws them.
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


def charts(runs: Sequence[RunFolder]) -> list[Chart]:
    """The charts of a report, those without any data left out."""
    return [chart for build in (_reward, _solved, *_PLAIN) for chart in [build(runs)] if chart.figure["data"]]


def key(name: str, scale: float = 1.0) -> Value:
    """The value of one key of a row."""

    def value(row: Row) -> float | None:
        found = row.get(name)
        return None if found is None else found * scale

    return value


def each(name: str, count: str = "rollouts") -> Value:
    """The value of one key, for one rollout."""
    return lambda row: None if row.get(name) is None or not row.get(count) else row[name] / row[count]


def _reward(runs: Sequence[RunFolder]) -> Chart:
    figure = go.Figure()
    for number, run in enumerate(runs):
        _add_band(figure, run, number, len(runs))
        _add_line(figure, Line("training", BLUE, key("reward")), runs, number, run.steps)
        for split, colour in (("held_out", ORANGE), ("train", GREEN)):
            name = "held-out tasks" if split == "held_out" else "training pool, evaluated"
            rows = [row for row in run.evaluations if row["split"] == split]
            _add_line(figure, Line(name, colour, key("reward")), runs, number, rows, interval=True)
    return _chart(
        "reward",
        "Reward",
        "Mean reward of each step's attempts; the band is one standard deviation within a group, on average. Evaluation points "
        "have 95 % intervals. A held-out line that stays while training rises is overfitting.",
        figure,
        "reward",
    )


def _solved(runs: Sequence[RunFolder]) -> Chart:
    figure = go.Figure()
    for number, run in enumerate(runs):
        _add_line(figure, Line("training, solved", BLUE, key("solved")), runs, number, run.steps)
        held = [row for row in run.evaluations if row["split"] == "held_out"]
        for line in (
            Line("held-out, pass@1", ORANGE, key("pass_at_1")),
            Line("held-out, every attempt", RED, key("pass_all")),
            Line("held-out, strict", PURPLE, key("strict")),
        ):
            _add_line(figure, line, runs, number, held)
    return _chart(
        "solved",
        "Solved",
        "Share of attempts with the full reward. Where the reward rises and this does not, the policy collects parts.",
        figure,
        "share",
        share=True,
    )


def _lines(name: str, title: str, caption: str, axis: str, *lines: Line, **layout: Any) -> Callable[..., Chart]:
    def build(runs: Sequence[RunFolder]) -> Chart:
        figure = go.Figure()
        for number, run in enumerate(runs):
            for line in lines:
                _add_line(figure, line, runs, number, run.steps)
        return _chart(name, title, caption, figure, axis, **layout)

    return build


def _stacks(name: str, title: str, caption: str, axis: str, find: Callable[[Row], dict[str, float]]) -> Callable[..., Chart]:
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
        return _chart(name, title, caption, figure, axis)

    return build


def _colours(count: int) -> list[str]:
    return [PALETTE[index % len(PALETTE)] for index in range(count)]


def _add_line(
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


def _add_band(figure: go.Figure, run: RunFolder, number: int, runs: int) -> None:
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


def _chart(name: str, title: str, caption: str, figure: go.Figure, axis: str, *, share: bool = False, log: bool = False) -> Chart:
    figure.update_layout(
        template="none",
        margin={"l": 54, "r": 12, "t": 8, "b": 40},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="closest",
        showlegend=True,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        xaxis={"title": {"text": "step"}, "rangemode": "tozero", "tickformat": "d", "dtick": _step_ticks(figure)},
        yaxis={"title": {"text": axis}, "tickformat": ".0%" if share else "", "rangemode": "normal" if log else "tozero"},
    )
    if log:
        figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    return Chart(name, title, caption, " ".join(_sentences(figure)), figure.to_plotly_json())


def _traces(figure: go.Figure) -> tuple[Any, ...]:
    """What was added to the figure; plotly's own annotation of `data` says less."""
    traces: Any = figure.data
    return traces


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


def _prefixed(prefix: str, words: str = "") -> Callable[[Row], dict[str, float]]:
    return lambda row: {
        words + name.removeprefix(prefix).replace("_", " "): value for name, value in row.items() if name.startswith(prefix)
    }


def _groups(row: Row) -> dict[str, float]:
    return {"trained": row["kept_groups"], **_prefixed("groups/dropped_")(row)}


def _lost(row: Row) -> dict[str, float]:
    retried = sum(row.get("failures", {}).values()) - sum(_prefixed("episodes/excluded_")(row).values())
    return {**_prefixed("episodes/excluded_", "left out: ")(row), "tried again": max(retried, 0.0)}


_PLAIN = (
    _stacks(
        "stops",
        "Stop reasons",
        "How the sound episodes ended. Token limits and malformed calls that grow are a policy that forgets how to stop or to "
        "call; `done` alone is healthy.",
        "episodes",
        _prefixed("stop_"),
    ),
    _lines(
        "errors",
        "Tool errors",
        "Share of calls that were malformed or refused, and of calls that the tool answered with an error.",
        "share of calls",
        Line("malformed or refused", RED, key("bad_call_rate")),
        Line("error from the tool", ORANGE, key("tool_error_rate")),
        share=True,
    ),
    _lines(
        "length",
        "Turns and calls",
        "Means of the sound episodes.",
        "per episode",
        Line("assistant turns", BLUE, key("turns_per_episode")),
        Line("user turns", GREEN, key("user_turns_per_episode")),
        Line("tool calls", ORANGE, key("tool_calls_per_episode")),
    ),
    _lines(
        "tokens",
        "Tokens",
        "Per rollout. Prompt tokens count every turn's whole prompt, which is what a sampler reads; cached ones it need not "
        "compute again.",
        "tokens per rollout",
        Line("sampled", ORANGE, each("sampled_tokens")),
        Line("context, each once", BLUE, each("context_tokens")),
        Line("prompts", PURPLE, each("prompt_tokens")),
        Line("of these cached", GREY, each("cached_tokens")),
        log=True,
    ),
    _stacks(
        "groups",
        "Groups",
        "Groups that trained, and why others did not. Without spread in its rewards a group teaches nothing.",
        "groups",
        _groups,
    ),
    _stacks(
        "lost",
        "Rollouts lost",
        "Infrastructure failures by class: left out of the baseline and the batch, or tried again with success.",
        "rollouts",
        _lost,
    ),
    _lines(
        "lag",
        "Lag",
        "Optimizer steps between the weights that sampled and those that were updated; 0 is on-policy.",
        "steps",
        Line("lag", BLUE, key("lag")),
    ),
    _lines(
        "gap",
        "Sampler against trainer",
        "Difference of the two logprobs of one token under the same weights. Above some hundredths on average, sampler and "
        "trainer do not compute the same model.",
        "nats",
        Line("mean", BLUE, key("gap/mean")),
        Line("largest", RED, key("gap/max")),
        log=True,
    ),
    _lines(
        "ratio",
        "Probability ratio",
        "Trainer over sampler, as the loss sees it, later minibatches and older samples included.",
        "ratio",
        Line("mean", BLUE, key("ratio/mean")),
        Line("largest", RED, key("ratio/max")),
        Line("smallest", PURPLE, key("ratio/min")),
        Line("share clipped", ORANGE, key("ratio/clip_fraction")),
    ),
    _stacks(
        "seconds",
        "Seconds by phase",
        "Wall time of a step: playing the episodes, and the update.",
        "seconds",
        lambda row: {"rollout": row["seconds_rollout"], "update": row["seconds_update"]},
    ),
    _lines(
        "loss",
        "Loss and gradient",
        "A policy-gradient loss is no measure of progress; look for jumps.",
        "value",
        Line("loss", BLUE, key("loss")),
        Line("gradient norm", ORANGE, key("update/grad_norm")),
        Line("KL to the base model", PURPLE, key("kl")),
    ),
    _lines(
        "entropy",
        "Entropy of what was sampled",
        "Mean of minus the sampled tokens' logprobs. Near zero the policy no longer explores.",
        "nats per token",
        Line("entropy", BLUE, key("entropy/sampled")),
    ),
    _lines(
        "gradient",
        "Where the gradient comes from",
        "Shares of the summed advantages: attempts better than their group, worse ones, and the largest single task.",
        "share",
        Line("better", GREEN, key("gradient/better")),
        Line("worse", RED, key("gradient/worse")),
        Line("largest task", BLUE, key("gradient/largest_task")),
        share=True,
    ),
)
