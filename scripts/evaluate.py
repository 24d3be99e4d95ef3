#!/usr/bin/env python3
"""Evaluate a snapshot or the base model: `uv run scripts/evaluate.py --run runs/<folder> --samples 4`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from turngrad.checkpoints import best_snapshot
from turngrad.cli import parse_flags, run_script
from turngrad.compare import compare, read_result
from turngrad.config import ENVIRONMENT_SETTINGS, TrainConfig, config_from
from turngrad.display import Display
from turngrad.errors import RunError, UserError
from turngrad.run import supervised
from turngrad.runlog import read_config, read_rows
from turngrad.tasksets import TaskRow, Taskset, load_taskset

if TYPE_CHECKING:
    from turngrad.rollout import Group


class EvaluateConfig(BaseModel):
    """Evaluate a run's snapshot, a base model or another provider's model on held-out or training tasks; or compare two results.

    With --run, the model, taskset and limits are that run's; without, they are the defaults of --taskset.
    """

    model_config = ConfigDict(extra="forbid")

    run: Path | None = Field(default=None, description="Run folder whose weights and settings to use.")
    snapshot: str = Field(
        default="final",
        description="final, best (by the run's evaluations), base, a step number, or a sampler path of the service.",
    )
    taskset: str | None = Field(default=None, description="Another taskset than the run's.")
    base_model: str | None = Field(default=None, description="Without --run: the model to evaluate.")
    split: Literal["held_out", "train", "all"] = Field(default="held_out", description="Which tasks.")
    tasks: int | None = Field(default=None, ge=1, description="This many of them only.")
    samples: int = Field(default=4, ge=1, description="Attempts at each task.")
    temperature: float | None = Field(
        default=None, gt=0, description="Sampling temperature; None: 1, and with --agent what the provider has for default."
    )
    agent: str | None = Field(
        default=None,
        description="Instead of weights, another model through hud's own agent for it, KIND:MODEL. KIND: openai (chat "
        "completions, any compatible endpoint), openai-responses, claude, gemini; the key comes from OPENAI_API_KEY, "
        "ANTHROPIC_API_KEY or GEMINI_API_KEY.",
    )
    agent_url: str | None = Field(
        default=None, description="With --agent: its endpoint, where it is not the provider's own (or OPENAI_BASE_URL's)."
    )
    user_turns: Literal["tool", "official"] = Field(
        default="tool",
        description="With --agent, on BFCL: the model asks for the user's next turn with the tool next_turn, or the user speaks "
        "when it stops calling, as for weights.",
    )
    max_concurrent: int = Field(default=64, ge=1, description="Rollouts in flight at once.")
    json_file: Path | None = Field(default=None, description="Write the result here, for --compare.")
    compare: tuple[Path, Path] | None = Field(default=None, description="Compare two results instead of evaluating.")


_SIZES = ("steps", "tasks_per_step", "train_tasks", "train_ids", "eval_tasks")
"""Settings of a run that say how its own taskset is divided, and nothing of another."""


def evaluate(arguments: list[str]) -> int:
    config = parse_flags(EvaluateConfig, arguments)
    if config.compare is not None:
        return _compare(*config.compare)
    return supervised(_evaluate(config, Display()))


def _compare(first: Path, second: Path) -> int:
    found = compare(read_result(first)["per_task"], read_result(second)["per_task"])
    between = "" if found.interval is None else f" (95 % {found.interval[0]:+.3f} to {found.interval[1]:+.3f})"
    print(f"{found.tasks} common tasks: {found.first:.3f} -> {found.second:.3f}, difference {found.difference:+.3f}{between}")
    return 0


def settings(config: EvaluateConfig) -> TrainConfig:
    """The run's settings, or the defaults of the taskset, with the whole training split, whatever part of it a run trains on."""
    saved = read_config(config.run) if config.run else {}
    changes = {"taskset": config.taskset, "base_model": config.base_model}
    changes = {key: value for key, value in changes.items() if value is not None}
    if config.taskset is not None:
        # The run's own files would win over a named taskset.
        dropped = {*ENVIRONMENT_SETTINGS, *(() if config.taskset == saved.get("taskset") else _SIZES)}
        saved = {key: value for key, value in saved.items() if key not in dropped}
    train = config_from({**saved, **changes, "temperature": config.temperature or 1.0, "max_concurrent": config.max_concurrent})
    return train.resolve().model_copy(update={"train_tasks": None, "train_ids": None})


async def _evaluate(config: EvaluateConfig, display: Display) -> None:
    train = settings(config)
    taskset = load_taskset(train)
    rows = {"held_out": taskset.held_out, "train": taskset.train, "all": (*taskset.train, *taskset.held_out)}[config.split]
    rows = rows[: config.tasks]
    if config.agent is not None:
        await _play_agent(config, train, rows, taskset, display)
        return
    with tempfile.TemporaryDirectory(prefix="turngrad-") as scratch:
        state_dir = config.run / "engine" if config.run else Path(scratch)
        await _play_weights(config, train, rows, taskset, state_dir, display)


async def _play_weights(
    config: EvaluateConfig,
    train: TrainConfig,
    rows: Sequence[TaskRow],
    taskset: Taskset,
    state_dir: Path,
    display: Display,
) -> None:
    # Here, not at the top: hud, the SDK and the tokenizer take seconds that --help should not.
    from turngrad.evaluation import evaluate as play
    from turngrad.session import open_session

    snapshot = _snapshot(config)
    _announce(config, snapshot or train.base_model, rows, taskset, display)
    async with open_session(train, taskset, state_dir, say=display.say) as session:
        policy = await session.policy(snapshot)
        groups, row = await play(session, rows, policy, split=config.split, step=0, samples=config.samples, display=display)
        _tell(config, groups, row, {"taskset": taskset.name, "base_model": train.base_model}, display)


async def _play_agent(
    config: EvaluateConfig, train: TrainConfig, rows: Sequence[TaskRow], taskset: Taskset, display: Display
) -> None:
    # As above.
    from turngrad.baselines import baseline, open_baselines, with_user_turns
    from turngrad.evaluation import evaluate as play

    assert config.agent is not None
    rows, prompt = with_user_turns(rows, config.user_turns)
    player = baseline(
        config.agent,
        url=config.agent_url,
        temperature=config.temperature,
        system_prompt=prompt,
        timeout=train.sample_timeout,
    )
    _announce(config, f"{player.name} at {player.url}", rows, taskset, display)
    async with open_baselines(train, taskset) as session:
        groups, row = await play(session, rows, player, split=config.split, step=0, samples=config.samples, display=display)
        if row["samples"] == 0:
            raise RunError(f"no episode of {player.name} could be judged; the last failed by: {_last_error(groups)}")
        _tell(config, groups, row | player.spent, {"taskset": taskset.name, "base_model": player.name}, display)


def _announce(config: EvaluateConfig, what: str | None, rows: Sequence[TaskRow], taskset: Taskset, display: Display) -> None:
    display.say(f"evaluating {what} on {len(rows)} tasks of {taskset.name}, {config.samples} attempts each")


def _tell(config: EvaluateConfig, groups: Sequence[Group], row: dict[str, Any], names: dict[str, Any], display: Display) -> None:
    """Show the figures, those of each kind of task, and what failed; write the result."""
    from turngrad.metrics import by_category

    display.evaluation(row)
    kinds = by_category({group.row.id: group.episodes for group in groups})
    # Tasks whose ids say nothing of a kind are each one of their own: no use in listing them.
    for category, figures in kinds.items() if len(kinds) < len(groups) else ():
        display.say(
            f"  {category:<28} reward {_figure(figures['reward'])}  pass@1 {_figure(figures['pass_at_1'])}  "
            f"tasks {figures['tasks']}"
        )
    if row["failures"]:
        told = ", ".join(f"{count} {name}" for name, count in sorted(row["failures"].items()))
        lost = sum(episode.excluded is not None for group in groups for episode in group.episodes)
        display.say(f"failures: {told}; {lost} attempts are left out of the figures{_reason(groups)}")
    if config.json_file is not None:
        result = {key: value for key, value in row.items() if key not in ("kind", "step")}
        config.json_file.write_text(json.dumps({**result, **names, "per_task": _per_task(groups)}, indent=2) + "\n")
        display.say(f"result in {config.json_file}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _reason(groups: Sequence[Group]) -> str:
    error = _last_error(groups)
    return "" if error is None else f", the last by: {error}"


def _last_error(groups: Sequence[Group]) -> str | None:
    errors = [episode.error for group in groups for episode in group.episodes if episode.excluded is not None]
    return errors[-1] if errors else None


def _per_task(groups: Sequence[Group]) -> dict[str, float]:
    sound = {group.row.id: [e.reward or 0.0 for e in group.episodes if e.excluded is None] for group in groups}
    return {task: sum(rewards) / len(rewards) for task, rewards in sorted(sound.items()) if rewards}


def _snapshot(config: EvaluateConfig) -> str | None:
    """The sampler path that `--snapshot` means; None for the base model."""
    if config.run is None or config.snapshot == "base":
        return None
    if "/" in config.snapshot:
        return config.snapshot
    if config.snapshot == "final":
        found = [row["snapshot"] for row in read_rows(config.run / "checkpoints.jsonl") if row["snapshot"]]
    elif config.snapshot == "best":
        best = best_snapshot(read_rows(config.run / "metrics.jsonl"))
        found = [best.snapshot] if best is not None else []
    elif config.snapshot.isdigit():
        # The row of a step names the weights it sampled: those after the step before.
        rows = read_rows(config.run / "metrics.jsonl")
        found = [row["snapshot"] for row in rows if row["kind"] == "train" and row["step"] == int(config.snapshot) + 1]
    else:
        raise UserError(f"--snapshot {config.snapshot!r}: expected final, best, base, a step number or a sampler path")
    if not found:
        raise UserError(f"{config.run} has no snapshot {config.snapshot!r}; its metrics.jsonl names those there are")
    return found[-1]


if __name__ == "__main__":
    sys.exit(run_script(evaluate))
