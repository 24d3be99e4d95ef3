"""The whole path on BFCL without a model: turn loop, MCP, official grade, datums. Ground truth earns one, token by token."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.envs.bfcl_scripts import truth
from tests.families import family
from tests.scripted import ScriptedPolicy
from turngrad.advantages import group_advantages
from turngrad.agent import LoopSettings
from turngrad.batch import build_batch
from turngrad.config import TrainConfig
from turngrad.episodes import StopReason
from turngrad.rollout import Rollouts, RolloutSettings
from turngrad.runtimes import open_runtime
from turngrad.tasksets import Taskset, load_taskset

MODEL = family("qwen3")
SETTINGS = LoopSettings(max_tokens=1024, max_seq_len=32768)


def _taskset(name: str) -> Taskset:
    config = TrainConfig(taskset=name, backend="local").resolve()
    return load_taskset(config.model_copy(update={"train_tasks": None, "train_ids": None}))


def _script(row: Any) -> list[str]:
    from bfcl_data import load_entry

    lines = []
    for calls in truth(load_entry(row.args["entry"])):
        if calls:
            texts = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
            lines.append("\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts))
        lines.append("done")
    return lines


@pytest.mark.parametrize("name", ["bfcl-multi-turn", "bfcl-multi-turn-miss-func", "bfcl-synthetic"])
async def test_ground_truth_earns_one_and_silence_nothing_and_the_batch_trains_the_sampled_ids(name: str) -> None:
    taskset = _taskset(name)
    async with open_runtime(taskset.placement) as provider:
        rollouts = Rollouts(MODEL, provider, SETTINGS, RolloutSettings())
        for row in [*taskset.train[:3], *taskset.held_out[:2]]:
            script = _script(row)
            policy = ScriptedPolicy(MODEL, lambda n, script=script: script if n % 2 == 0 else ["done"])
            (group,) = [g async for g in rollouts.groups([row], 2, policy, seed="0")]  # type: ignore[arg-type]
            good, silent = sorted(group.episodes, key=lambda episode: -(episode.reward or 0.0))
            assert (good.reward, good.info["strict"], good.stop_reason) == (1.0, True, StopReason.DONE)
            assert (silent.reward, silent.info["strict"]) == (0.0, False)
            assert not any(turn.segment_break for turn in good.turns)
            pair = [good, silent]
            batch = build_batch([(pair, group_advantages(pair, "group-zscore"))], normalize="token")
            assert len(batch.segments) == 2
            trained = batch.segments[0].ids[1:][batch.segments[0].target_mask].tolist()
            assert trained == [token for turn in good.turns for token in turn.output_ids]


async def test_in_tool_mode_the_model_brings_the_next_turn_itself_and_new_tools_reach_it() -> None:
    taskset = _taskset("bfcl-multi-turn-miss-func")
    async with open_runtime(taskset.placement) as provider:
        rollouts = Rollouts(MODEL, provider, SETTINGS, RolloutSettings())
        for row in taskset.train[:3]:
            row = replace(row, args={**row.args, "user_turns": "tool"})
            following = '<tool_call>\n{"name": "next_turn", "arguments": {}}\n</tool_call>'
            policy = ScriptedPolicy(MODEL, [following if line == "done" else line for line in _script(row)])
            (group,) = [g async for g in rollouts.groups([row], 1, policy, seed="0")]  # type: ignore[arg-type]
            (episode,) = group.episodes
            assert (episode.reward, episode.info["strict"], episode.stop_reason) == (1.0, True, StopReason.DONE)


async def test_an_episode_that_the_environment_ends_is_not_sampled_further() -> None:
    taskset = _taskset("bfcl-multi-turn")
    row = next(row for row in taskset.train if "ls" in _tool_names(row))
    listing = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'
    async with open_runtime(taskset.placement) as provider:
        rollouts = Rollouts(MODEL, provider, SETTINGS, RolloutSettings())
        policy = ScriptedPolicy(MODEL, [listing])
        (group,) = [g async for g in rollouts.groups([row], 1, policy, seed="0")]  # type: ignore[arg-type]
        (episode,) = group.episodes
    assert (episode.stop_reason, len(episode.turns), episode.reward) == (StopReason.DONE, 21, 0.0)
    assert "more than 20 steps" in episode.info["aborted"]


def _tool_names(row: Any) -> set[str]:
    from bfcl_data import function_documents, load_entry

    return {name for owner in load_entry(row.args["entry"]).involved_classes for name in function_documents(owner)}


def test_the_split_is_fixed_and_the_seed_only_orders_within_it() -> None:
    first = load_taskset(TrainConfig(taskset="bfcl-multi-turn", backend="local", train_tasks=150).resolve())
    second = load_taskset(TrainConfig(taskset="bfcl-multi-turn", backend="local", train_tasks=150, seed=7).resolve())
    assert {row.id for row in first.held_out} == {row.id for row in second.held_out}
    assert {row.id for row in first.train} == {row.id for row in second.train}
    assert [row.id for row in first.train] != [row.id for row in second.train]
    assert len(first.held_out) == 50


def test_every_step_draws_its_own_tasks_and_an_epoch_repeats_none() -> None:
    taskset = _taskset("bfcl-multi-turn")
    steps = len(taskset.train) // 8
    drawn = [row.id for step in range(1, steps + 1) for row in taskset.rows_for_step(step, 8, seed=3)]
    assert len(drawn) == len(set(drawn)) == steps * 8
    again = [row.id for row in taskset.rows_for_step(5, 8, seed=3)]
    assert again == [row.id for row in taskset.rows_for_step(5, 8, seed=3)]
    assert again != [row.id for row in taskset.rows_for_step(5 + steps, 8, seed=3)]


def test_all_categories_keep_twins_on_one_side() -> None:
    taskset = load_taskset(TrainConfig(taskset="bfcl-multi-turn-all", backend="local", train_tasks=600).resolve())
    assert len(taskset.held_out) == 200
    assert not {row.scenario for row in taskset.train} & {row.scenario for row in taskset.held_out}
