"""Which curves a report has, and what each is there to show.

In: metric rows. Out: `Chart`s, those without any figure left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from turngrad.report.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Chart,
    Line,
    add_band,
    add_line,
    each,
    finish,
    key,
    lines,
    stacks,
)
from turngrad.report.folder import Row, RunFolder


def charts(runs: Sequence[RunFolder]) -> list[Chart]:
    """The charts of a report, those without any data left out."""
    return [chart for build in (_reward, _solved, *_PLAIN) for chart in [build(runs)] if chart.figure["data"]]


def _reward(runs: Sequence[RunFolder]) -> Chart:
    figure = go.Figure()
    for number, run in enumerate(runs):
        add_band(figure, run, number, len(runs))
        add_line(figure, Line("training", BLUE, key("reward")), runs, number, run.steps)
        for split, colour in (("held_out", ORANGE), ("train", GREEN)):
            name = "held-out tasks" if split == "held_out" else "training pool, evaluated"
            rows = [row for row in run.evaluations if row["split"] == split]
            add_line(figure, Line(name, colour, key("reward")), runs, number, rows, interval=True)
    return finish(
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
        add_line(figure, Line("training, solved", BLUE, key("solved")), runs, number, run.steps)
        held = [row for row in run.evaluations if row["split"] == "held_out"]
        for line in (
            Line("held-out, pass@1", ORANGE, key("pass_at_1")),
            Line("held-out, every attempt", RED, key("pass_hat_k")),
            Line("held-out, strict", PURPLE, key("strict")),
        ):
            add_line(figure, line, runs, number, held)
    return finish(
        "solved",
        "Solved",
        "Share of attempts with the full reward. Where the reward rises and this does not, the policy collects parts.",
        figure,
        "share",
        share=True,
    )


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
    stacks(
        "stops",
        "Stop reasons",
        "How the sound episodes ended. Token limits and malformed calls that grow are a policy that forgets how to stop or to "
        "call; done alone is healthy.",
        "episodes",
        _prefixed("stop_"),
    ),
    lines(
        "errors",
        "Tool errors",
        "Share of calls that were malformed or refused, and of calls that the tool answered with an error.",
        "share of calls",
        Line("malformed or refused", RED, key("bad_call_rate")),
        Line("error from the tool", ORANGE, key("tool_error_rate")),
        share=True,
    ),
    lines(
        "length",
        "Turns and calls",
        "Means of the sound episodes.",
        "per episode",
        Line("assistant turns", BLUE, key("turns_per_episode")),
        Line("user turns", GREEN, key("user_turns_per_episode")),
        Line("tool calls", ORANGE, key("tool_calls_per_episode")),
    ),
    lines(
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
    stacks(
        "groups",
        "Groups",
        "Groups that trained, and why others did not. Without spread in its rewards a group teaches nothing.",
        "groups",
        _groups,
    ),
    stacks(
        "lost",
        "Rollouts lost",
        "Infrastructure failures by class: left out of the baseline and the batch, or tried again with success.",
        "rollouts",
        _lost,
    ),
    lines(
        "lag",
        "Lag",
        "Optimizer steps between the weights that sampled and those that were updated; 0 is on-policy.",
        "steps",
        Line("lag", BLUE, key("lag")),
    ),
    lines(
        "gap",
        "Sampler against trainer",
        "Difference of the two logprobs of one token under the same weights. Above some hundredths on average, sampler and "
        "trainer do not compute the same model.",
        "nats",
        Line("mean", BLUE, key("gap/mean")),
        Line("largest", RED, key("gap/max")),
        log=True,
    ),
    lines(
        "ratio",
        "Probability ratio",
        "Trainer over sampler, as the loss sees it, later minibatches and older samples included.",
        "ratio",
        Line("mean", BLUE, key("ratio/mean")),
        Line("largest", RED, key("ratio/max")),
        Line("smallest", PURPLE, key("ratio/min")),
        Line("share clipped", ORANGE, key("ratio/clip_fraction")),
    ),
    stacks(
        "seconds",
        "Seconds by phase",
        "Wall time of a step: playing the episodes, and the update.",
        "seconds",
        lambda row: {"rollout": row["seconds_rollout"], "update": row["seconds_update"]},
    ),
    lines(
        "loss",
        "Loss and gradient",
        "A policy-gradient loss is no measure of progress; look for jumps.",
        "value",
        Line("loss", BLUE, key("loss")),
        Line("gradient norm", ORANGE, key("update/grad_norm")),
        Line("KL to the base model", PURPLE, key("kl")),
    ),
    lines(
        "entropy",
        "Entropy of what was sampled",
        "Mean of minus the sampled tokens' logprobs. Near zero the policy no longer explores.",
        "nats per token",
        Line("entropy", BLUE, key("entropy/sampled")),
    ),
    lines(
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
