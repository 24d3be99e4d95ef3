"""Calibration: one step's rollouts without the step, to see whether there is anything to learn from and what it will cost.

In: a session with a fresh adapter. Out: printed figures, an estimate of the run's tokens (and money where prices are given),
and advice. Nothing is updated.
"""

from __future__ import annotations

from typing import Any

from turngrad.advantages import group_advantages
from turngrad.batch import build_batch
from turngrad.config import TrainConfig
from turngrad.costs import price
from turngrad.display import Display
from turngrad.headroom import learnable
from turngrad.learner import Learner
from turngrad.metrics import rollout_metrics
from turngrad.rollout import Group
from turngrad.session import Session
from turngrad.tasksets import Taskset
from turngrad.transcript import show_samples

_TOKEN_KINDS = ("sampled", "prompt", "cached", "context")


async def calibrate(config: TrainConfig, taskset: Taskset, session: Session, display: Display) -> dict[str, Any]:
    """Roll out the first step's tasks under the initial weights, print the report, and return its figures."""
    assert config.tasks_per_step is not None
    assert config.group_size is not None
    learner = await Learner.create(session.service, session.endpoint.base_model, lora_rank=config.lora_rank, seed=config.seed)
    policy = await session.policy(await learner.snapshot("calibration"))
    rows = taskset.rows_for_step(1, config.tasks_per_step, config.seed)
    groups: list[Group] = []
    with display.phase("calibration", len(rows) * config.group_size):
        session.on_progress = lambda episode: display.advance(session.rollouts.in_flight)
        async for group in session.rollouts.groups(rows, config.group_size, policy, seed=f"{config.seed}/1"):
            groups.append(group)
    policy.close()
    await learner.close()

    figures = rollout_metrics([group.episodes for group in groups])
    pairs = [(group.episodes, group_advantages(group.episodes, config.advantage)) for group in groups]
    batch = build_batch(pairs, normalize=config.normalize, max_seq_len=config.max_seq_len)
    figures["trained_tokens"] = sum(len(segment.ids) - 1 for segment in batch.sent)
    counts = session.rollouts.take_counts()
    for line in report(config, figures, has_tools=taskset.has_tools):
        display.say(line)
    if counts.failures:
        display.say(f"infrastructure failures: {dict(counts.failures)}, the last: {counts.last_error}")
    display.say(_list_learnable(config, groups))
    if config.debug_samples:
        show_samples(groups, config.debug_samples, session.family, display)
    return figures


def _list_learnable(config: TrainConfig, groups: list[Group]) -> str:
    """Write the tasks with headroom where the run folder is given; how many there are, in words."""
    rewards = {
        group.row.id: [episode.reward for episode in group.episodes if episode.excluded is None and episode.reward is not None]
        for group in groups
    }
    ids = learnable(rewards)
    found = f"tasks with headroom {len(ids)}/{len(groups)}"
    if not ids:
        return found
    if config.output_dir is None:
        return f"{found}; --output-dir FOLDER lists them for --train-ids"
    listed = config.output_dir / "learnable.txt"
    try:
        config.output_dir.mkdir(parents=True, exist_ok=True)
        listed.write_text("".join(f"{task}\n" for task in ids), encoding="utf-8")
    except OSError as error:
        return f"{found}: {', '.join(ids)} ({listed} cannot be written: {error.strerror})"
    return f"{found}, the largest first in {listed}: --train-ids {listed} trains on them alone"


def report(config: TrainConfig, figures: dict[str, Any], *, has_tools: bool) -> list[str]:
    """The lines of a calibration: what happened, what a run would cost, what to change."""
    stops = {key.removeprefix("stop_"): value for key, value in figures.items() if key.startswith("stop_")}
    lines = [
        f"rollouts {figures['rollouts']}, valid {figures['valid_rollouts']}",
        f"reward_mean {_show(figures['reward'])}",
        f"within_group_reward_std {_show(figures['reward_std_within_group'])}",
        f"groups_with_spread {figures['groups_with_spread']}/{figures['groups']}",
        f"stop_reasons {stops}",
        f"tool_error_rate {figures['tool_error_rate']:.3f}  malformed_rate {figures['bad_call_rate']:.3f}",
        "tokens per episode: "
        + ", ".join(f"{name} {figures[f'{name}_tokens'] / max(figures['rollouts'], 1):.0f}" for name in _TOKEN_KINDS),
    ]
    return [*lines, *_estimate(config, figures), *[f"advice: {text}" for text in advice(config, figures, has_tools=has_tools)]]


def advice(config: TrainConfig, figures: dict[str, Any], *, has_tools: bool) -> list[str]:
    """What to change, by what was seen; nothing where nothing is wrong."""
    reward, valid = figures["reward"], figures["valid_rollouts"]
    if not valid:
        return ["every rollout failed for reasons of infrastructure; nothing can be said about the policy"]
    found = []
    if reward is not None and reward >= 0.95:
        found.append("almost everything is right already: harder tasks, or another taskset, leave something to learn")
    elif figures["groups_with_spread"] == 0 and reward == 0:
        found.append("everything is wrong: easier tasks, more --group-size, a stronger --base-model, or look at --debug-samples")
    elif figures["groups_with_spread"] == 0:
        found.append("no group has two rewards that differ: raise --group-size, or --temperature")
    cut = figures.get("stop_max_tokens", 0) + figures.get("stop_context_overflow", 0)
    if cut > 0.2 * valid:
        found.append(f"{cut} of {valid} episodes hit a token limit: raise --max-tokens ({config.max_tokens}) or --max-seq-len")
    if has_tools and figures["tool_calls_per_episode"] == 0:
        found.append("no tool was called at all: the renderer may not fit the model (--renderer)")
    if figures["bad_call_rate"] > 0.2:
        found.append("more than a fifth of the calls are malformed or refused: check --renderer, or set --bad-call-penalty")
    return found or ["nothing stands in the way of a run"]


def _estimate(config: TrainConfig, figures: dict[str, Any]) -> list[str]:
    assert config.steps is not None
    assert config.tasks_per_step is not None
    assert config.group_size is not None
    training = config.steps * config.tasks_per_step * config.group_size
    splits = 1 + config.eval_train
    evaluation = (config.eval_tasks or 0) * (config.eval_samples or 0) * splits * 2
    rollouts = max(figures["rollouts"], 1)
    tokens = {
        "sampled": figures["sampled_tokens"] / rollouts * (training + evaluation),
        "prefill": figures["prompt_tokens"] / rollouts * (training + evaluation),
        "trained": figures["trained_tokens"] / rollouts * training,
    }
    lines = [
        f"a run of {config.steps} steps: {training} training and {evaluation} evaluation rollouts, about "
        + ", ".join(f"{value / 1e6:.2f} M {name}" for name, value in tokens.items())
        + " tokens"
    ]
    if (cost := price(config, **tokens)) is not None:
        missing = [f"--price-{name}" for name in tokens if getattr(config, f"price_{name}") is None]
        lines.append(f"estimated cost {cost:.2f}" + (f" (without {', '.join(missing)})" if missing else ""))
    return lines


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
