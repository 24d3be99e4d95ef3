"""Other models on our tasks: hud's own agents, genuine, against a real HTTP server that plays their providers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from bfcl_data import load_category

from tests.envs.bfcl_scripts import truth
from tests.providers import Asked, Said, provider
from turngrad.baselines import Baseline, BaselineSession, baseline, open_baselines, with_user_turns
from turngrad.config import TrainConfig
from turngrad.episodes import BadCall, Episode, Failure, StopReason
from turngrad.errors import RunError, UserError
from turngrad.metrics import rollout_metrics
from turngrad.tasksets import TaskRow, load_taskset

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = TrainConfig(taskset="bfcl-multi-turn-all", backend="local", stop_at_failed_turn=False, rollout_retries=0).resolve()
TASKSET = load_taskset(CONFIG)
ROWS = {row.id: row for row in (*TASKSET.train, *TASKSET.held_out)}
KEY = "sk-a-secret-of-the-tests"


def silence(asked: Asked) -> Said:
    return "I do not know."


def ground_truth(mode: str, category: str = "base") -> Callable[[Asked], Said]:
    """Says the ground truth of the entry that the prompt belongs to; a call of a tool that is not on offer raises."""
    entries = {entry.turns[0][0]["content"]: entry for entry in load_category(category)}

    def say(asked: Asked) -> Said:
        entry = entries[asked.prompt]
        messages: list[Said] = []
        for calls in truth(entry):
            messages += [[call] for call in calls] if asked.one_call else [calls] * bool(calls)
            messages.append([("next_turn", {})] if mode == "tool" else "Done.")
        messages.append("Goodbye.")
        said = messages[asked.said]
        assert isinstance(said, str) or {name for name, _ in said} <= set(asked.tools), (asked, said)
        return said

    return say


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session() -> AsyncIterator[BaselineSession]:
    async with open_baselines(CONFIG, TASKSET) as opened:
        yield opened


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, KEY)


async def play(session: BaselineSession, player: Baseline, rows: Sequence[TaskRow]) -> dict[str, Episode]:
    groups = session.rollouts.groups(rows, 1, player, seed="0")
    return {group.row.id: group.episodes[0] async for group in groups}


def some(category: str, count: int) -> list[TaskRow]:
    return [row for row in ROWS.values() if row.id.startswith(f"multi_turn_{category}_")][:count]


async def test_the_ground_truth_earns_1_in_tool_mode_and_is_recorded_without_tokens(session: BaselineSession) -> None:
    rows, prompt = with_user_turns(some("base", 8), "tool")
    with provider(ground_truth("tool")) as server:
        player = baseline("openai:gold", url=server.openai, system_prompt=prompt)
        episodes = await play(session, player, rows)
    assert {task: episode.reward for task, episode in episodes.items()} == {row.id: 1.0 for row in rows}
    assert all(episode.info["strict"] for episode in episodes.values())
    assert {episode.snapshot for episode in episodes.values()} == {"openai:gold"}
    assert all(episode.stop_reason is StopReason.DONE for episode in episodes.values())
    figures = rollout_metrics([[episode] for episode in episodes.values()])
    assert figures["sampled_tokens"] == 0
    # Every request is a turn, and the tokens that the provider counted add up.
    assert figures["turns_per_episode"] * 8 == len(server.asked) == player.answers
    assert player.spent == {"prompt_tokens": 100 * player.answers, "sampled_tokens": 10 * player.answers}
    assert set(server.keys) == {KEY}
    assert all(body["messages"][0] == {"role": "system", "content": prompt} for body in server.bodies)


async def test_silence_earns_0(session: BaselineSession) -> None:
    rows, prompt = with_user_turns(some("base", 8), "tool")
    with provider(silence) as server:
        episodes = await play(session, baseline("openai:mute", url=server.openai, system_prompt=prompt), rows)
    assert [episode.reward for episode in episodes.values()] == [0.0] * 8
    assert all(episode.excluded is None and len(episode.turns) == 1 for episode in episodes.values())


async def test_tools_that_are_revealed_later_reach_the_model(session: BaselineSession) -> None:
    rows, prompt = with_user_turns(some("miss_func", 4), "tool")
    with provider(ground_truth("tool", "miss_func")) as server:
        episodes = await play(session, baseline("openai:gold", url=server.openai, system_prompt=prompt), rows)
    assert [episode.reward for episode in episodes.values()] == [1.0] * 4


async def test_in_official_mode_the_user_speaks_when_the_model_stops_calling(session: BaselineSession) -> None:
    rows, prompt = with_user_turns(some("miss_func", 4), "official")
    assert prompt is None
    with provider(ground_truth("official", "miss_func")) as server:
        episodes = await play(session, baseline("openai:gold", url=server.openai), rows)
    assert [episode.reward for episode in episodes.values()] == [1.0] * 4
    assert all(max(turn.user_turn for turn in episode.turns) > 0 for episode in episodes.values())
    assert not any("next_turn" in asked.tools for asked in server.asked)


@pytest.mark.parametrize("kind", ["openai-responses", "claude", "gemini"])
@pytest.mark.parametrize("mode", ["tool", "official"])
async def test_the_other_agents_of_hud_play_it_too(session: BaselineSession, kind: str, mode: Any) -> None:
    rows, prompt = with_user_turns(some("miss_func", 2), mode)
    with provider(ground_truth(mode, "miss_func")) as server:
        url = server.openai if kind == "openai-responses" else server.root
        episodes = await play(session, baseline(f"{kind}:gold", url=url, system_prompt=prompt), rows)
    assert {task: (e.reward, e.error) for task, e in episodes.items()} == {row.id: (1.0, None) for row in rows}
    assert set(server.keys) == {KEY}


async def test_bad_calls_are_counted_as_a_policys_and_end_the_episode(session: BaselineSession) -> None:
    said: list[Said] = [[("no_such_tool", {})], [("cd", {"folder": 3})], [("cd", {"folder": "x"})], [("cd", {})] * 3]
    with provider(lambda asked: said[asked.said]) as server:
        episodes = await play(session, baseline("openai:clumsy", url=server.openai), [ROWS["multi_turn_base_0"]])
    episode = episodes["multi_turn_base_0"]
    found = [call.bad for call in episode.tool_calls]
    assert found == [BadCall.UNKNOWN_TOOL, BadCall.INVALID_ARGUMENTS, None, *[BadCall.INVALID_ARGUMENTS] * 3]
    assert episode.stop_reason is StopReason.MALFORMED
    assert (episode.excluded, episode.reward) == (None, 0.0)


@pytest.mark.parametrize("said", [[("pwd", {})], "And now?"])
async def test_a_model_that_never_stops_is_stopped_by_the_limit_on_turns_and_graded(
    session: BaselineSession, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setattr(session.rollouts, "_loop", replace(session.rollouts._loop, max_turns=3))
    with provider(lambda asked: said) as server:
        episodes = await play(session, baseline("openai:busy", url=server.openai), [ROWS["multi_turn_base_0"]])
    episode = episodes["multi_turn_base_0"]
    assert episode.stop_reason is StopReason.MAX_TURNS
    assert (len(episode.turns), episode.reward, episode.excluded) == (3, 0.0, None)


async def test_a_full_context_is_the_models_doing_and_is_graded(session: BaselineSession) -> None:
    with provider(silence) as server:
        server.faults.append((400, {}, "This model's maximum context length is 10 tokens."))
        episodes = await play(session, baseline("openai:short", url=server.openai), [ROWS["multi_turn_base_0"]])
    episode = episodes["multi_turn_base_0"]
    assert (episode.stop_reason, episode.reward, episode.excluded) == (StopReason.CONTEXT_OVERFLOW, 0.0, None)


async def test_a_429_that_passes_is_waited_out(session: BaselineSession) -> None:
    with provider(silence) as server:
        server.faults += [(429, {"retry-after-ms": "5"}, "slow down")] * 2
        rows, _ = with_user_turns([ROWS["multi_turn_base_0"]], "tool")
        episodes = await play(session, baseline("openai:mute", url=server.openai), rows)
    assert episodes["multi_turn_base_0"].excluded is None
    assert (len(server.keys), len(server.asked)) == (3, 1)


async def test_a_429_that_stays_costs_that_rollout_and_is_counted(session: BaselineSession) -> None:
    session.rollouts.take_counts()
    with provider(silence) as server:
        server.faults += [(429, {"retry-after-ms": "5"}, "slow down")] * 5
        episodes = await play(session, baseline("openai:mute", url=server.openai), [ROWS["multi_turn_base_0"]])
    episode = episodes["multi_turn_base_0"]
    assert (episode.failure, episode.reward is None or episode.excluded == "sampler") == (Failure.SAMPLER, True)
    assert "HTTP 429" in (episode.error or "")
    assert "slow down" in (episode.error or "")
    assert session.rollouts.take_counts().failures == {"sampler": 1}


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(401, "refuses the key in OPENAI_API_KEY (HTTP 401)"), (402, "asks for payment"), (404, "does not know 'mute'")],
)
async def test_a_refusal_ends_the_evaluation_in_a_sentence_without_the_key(
    session: BaselineSession, status: int, sentence: str
) -> None:
    with provider(silence) as server:
        server.faults += [(status, {}, f"Incorrect API key provided: {KEY}.")] * 8
        with pytest.raises(RunError) as error:
            await play(session, baseline("openai:mute", url=server.openai), some("base", 4))
    assert sentence in str(error.value)
    assert KEY not in str(error.value)


async def test_an_endpoint_that_never_answered_ends_the_evaluation(
    session: BaselineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngrad.baselines._RETRIES", 0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(RunError, match=f"no connection to {url}"):
        await play(session, baseline("openai:mute", url=url), some("base", 2))


async def test_no_key_and_no_endpoint_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="OPENAI_API_KEY is not set"):
        baseline("openai:gpt")
    with pytest.raises(UserError, match="expected KIND:MODEL"):
        baseline("gpt")


@pytest.mark.full
async def test_the_script_writes_a_table_by_category_and_a_result_that_compares(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FIREWORKS", "HUD", "TINKER", "OPENAI"))}
    theirs, ours = tmp_path / "theirs.json", tmp_path / "ours.json"
    flags = ["--agent", "openai:gold", "--tasks", "6", "--samples", "2", "--json-file", str(theirs)]
    with provider(ground_truth("tool")) as server:
        environment |= {"OPENAI_BASE_URL": server.openai, "OPENAI_API_KEY": KEY}
        said = await asyncio.to_thread(evaluate, flags, environment)
    assert KEY not in said
    assert "multi_turn_base              reward 1.000  pass@1 1.000  tasks 6" in said
    result = json.loads(theirs.read_text())
    assert (result["reward"], result["strict"], result["samples"]) == (1.0, 1.0, 12)
    assert (result["taskset"], result["base_model"]) == ("bfcl-multi-turn", "openai:gold")
    assert set(result["per_task"].values()) == {1.0}
    assert result["prompt_tokens"] == 100 * len(server.asked)
    ours.write_text(json.dumps({"per_task": dict.fromkeys(result["per_task"], 0.25)}))
    compared = await asyncio.to_thread(evaluate, ["--compare", str(ours), str(theirs)], environment)
    assert "6 common tasks: 0.250 -> 1.000, difference +0.750" in compared


def evaluate(flags: list[str], environment: dict[str, str]) -> str:
    """What the script prints; fails unless its status is 0."""
    command = [sys.executable, "scripts/evaluate.py", *flags]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr
