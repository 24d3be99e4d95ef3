"""The turn loop through genuine hud rollouts and a genuine MCP server: what ends an episode, and whose fault it is."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hud.capabilities.base import Capability
from hud.environment import Environment
from hud.eval.runtime import LocalRuntime

from tests.families import family
from tests.scripted import ScriptedPolicy
from tests.test_tools import Server, server  # noqa: F401 - a fixture
from turngrad.agent import LoopSettings
from turngrad.episodes import BadCall, Episode, Failure, StopReason
from turngrad.errors import RolloutError, RunError
from turngrad.rollout import Rollouts, RolloutSettings
from turngrad.tasksets import TaskRow

MODEL = family("qwen3")
SETTINGS = LoopSettings(max_tokens=200, max_seq_len=8192, tool_timeout=2.0, episode_timeout=20.0)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def environment(url: str | None, grader: Any = None) -> Any:
    """A hud environment with the server's tools, graded by whether the answer holds "42" unless `grader` says."""

    def build(task: Any = None) -> Environment:
        env = Environment("tests", capabilities=[Capability.mcp(name="tools", url=url)] if url else [])

        @env.template(id="ask")
        async def ask(question: str = "?") -> Any:
            answer = yield question
            yield grader(answer) if grader else float("42" in str(answer))

        return env

    return LocalRuntime(build)


async def play(
    script: Any, provider: Any, *, attempts: int = 1, settings: LoopSettings = SETTINGS, retries: int = 0
) -> tuple[list[Episode], ScriptedPolicy, Rollouts]:
    policy = ScriptedPolicy(MODEL, script)
    rollouts = Rollouts(MODEL, provider, settings, RolloutSettings(max_concurrent=64, retries=retries))
    row = TaskRow("task", "tests", "ask", {"question": "what?"}, "task", "what?")
    groups = [group async for group in rollouts.groups([row], attempts, policy, seed="0")]  # type: ignore[arg-type]
    return list(groups[0].episodes), policy, rollouts


async def test_without_tools_an_episode_is_one_turn() -> None:
    (episode,), policy, _ = await play(["the answer is 42"], environment(None))
    assert (episode.reward, episode.stop_reason, episode.failure, len(episode.turns)) == (1.0, StopReason.DONE, None, 1)
    assert list(episode.turns[0].context_ids) == policy.prompts[0]
    assert MODEL.decode(episode.turns[0].output_ids) == "the answer is 42<|im_end|>"


async def test_a_call_runs_and_its_result_extends_the_exact_tokens(server: Server) -> None:  # noqa: F811
    script = [call("echo", text="ä 1") + "\n" + call("echo", text="2"), "it is 42"]
    (episode,), policy, _ = await play(script, environment(server.url))
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)
    first, second = episode.turns
    assert policy.prompts[1] == [*policy.prompts[0], *first.output_ids, *second.context_ids]
    assert [(c.name, c.arguments, c.result, c.is_error, c.bad) for c in first.tool_calls] == [
        ("echo", {"text": "ä 1"}, "ä 1", False, None),
        ("echo", {"text": "2"}, "2", False, None),
    ]
    assert second.segment_break is None
    assert Episode.from_json(episode.to_json()) == episode


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('<tool_call>\n{"name": "echo", "arguments": {\n</tool_call>', BadCall.UNPARSABLE),
        (call("nosuch", text="x"), BadCall.UNKNOWN_TOOL),
        (call("echo", wrong=1), BadCall.INVALID_ARGUMENTS),
    ],
)
async def test_a_bad_call_gets_one_reply_and_the_loop_goes_on(server: Server, text: str, kind: BadCall) -> None:  # noqa: F811
    (episode,), _, _ = await play([text, "then 42"], environment(server.url))
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)
    (bad,) = episode.turns[0].tool_calls
    assert bad.bad is kind
    assert bad.result.startswith("Error: ")
    assert bad.result in MODEL.decode(episode.turns[1].context_ids)
    assert server.calls("echo") == 0


async def test_bad_calls_in_a_row_end_the_episode_as_malformed_and_it_stays_trainable(server: Server) -> None:  # noqa: F811
    (episode,), _, _ = await play([call("nosuch")], environment(server.url))
    assert (episode.stop_reason, len(episode.turns), episode.excluded) == (StopReason.MALFORMED, 3, None)
    (mixed,), _, _ = await play([call("nosuch"), call("echo", text="x"), call("nosuch"), "42"], environment(server.url))
    assert mixed.stop_reason is StopReason.DONE


async def test_nothing_of_a_cut_turn_runs_and_its_tokens_train(server: Server) -> None:  # noqa: F811
    (episode,), _, _ = await play([call("echo", text="x") + "~"], environment(server.url))
    assert episode.stop_reason is StopReason.MAX_TOKENS
    assert episode.excluded is None
    assert episode.turns[0].untrainable is None
    assert len(episode.turns[0].logprobs) == len(episode.turns[0].output_ids) > 0
    assert server.calls("echo") == 0


async def test_limits_on_turns_and_calls_end_the_episode(server: Server) -> None:  # noqa: F811
    turns, calls = replace(SETTINGS, max_turns=2), replace(SETTINGS, max_tool_calls=2)
    (episode,), _, _ = await play([call("echo", text="x")], environment(server.url), settings=turns)
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.MAX_TURNS, 2)
    (episode,), _, _ = await play([call("echo", text="x")], environment(server.url), settings=calls)
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.MAX_TOOL_CALLS, 3)


async def test_a_turn_gets_the_room_that_is_left_and_a_full_context_keeps_the_reward(server: Server) -> None:  # noqa: F811
    _, policy, _ = await play(["42"], environment(server.url))
    room = len(policy.prompts[0]) + 120
    settings = replace(SETTINGS, max_seq_len=room)
    script = ["42 " + call("echo", text="some more words to fill the context with")]
    (episode,), policy, _ = await play(script, environment(server.url), settings=settings)
    assert policy.limits[0] == 120
    assert all(limit + len(prompt) <= room for limit, prompt in zip(policy.limits, policy.prompts, strict=True))
    assert (episode.stop_reason, episode.reward, episode.excluded) == (StopReason.CONTEXT_OVERFLOW, 1.0, None)


async def test_a_failing_sampler_is_tried_again_with_a_fresh_environment_then_left_out() -> None:
    def script(n: int) -> list[Any]:
        return [RolloutError(Failure.SAMPLER, "no sample")] if n in (0, 1, 2) else ["42"]

    episodes, _, rollouts = await play(script, environment(None), attempts=32, retries=1)
    counts = rollouts.take_counts()
    lost = [episode for episode in episodes if episode.failure]
    assert len(episodes) == 32
    assert all(e.failure is Failure.SAMPLER and e.stop_reason is StopReason.INFRASTRUCTURE for e in lost)
    assert len(lost) <= 1
    assert counts.failures == {"sampler": 3}
    assert counts.started == 32 + 3 - len(lost)


async def test_a_dead_tool_server_is_no_fault_of_the_policy(server: Server) -> None:  # noqa: F811
    (episode,), _, _ = await play([call("die", text="x"), "42"], environment(server.url))
    assert episode.failure is Failure.TOOL_SERVER
    assert episode.excluded == "tool_server"


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None])
async def test_a_reward_that_is_no_number_is_the_graders_failure(reward: Any) -> None:
    (episode,), _, _ = await play(["42"], environment(None, lambda answer: reward))
    assert episode.failure is Failure.GRADER
    assert episode.excluded


async def test_a_grader_that_raises_is_not_a_reward_of_zero() -> None:
    def grader(answer: Any) -> float:
        raise ZeroDivisionError("no")

    (episode,), _, _ = await play(["42"], environment(None, grader))
    assert (episode.failure, episode.reward) == (Failure.GRADER, None)


async def test_an_agent_that_crashed_is_told_apart_from_the_zero_that_hud_grades() -> None:
    """hud grades an agent's exception as reward 0 with no error flag."""
    (episode,), _, _ = await play([KeyError("bug")], environment(None))
    assert episode.failure is Failure.AGENT
    assert "KeyError" in (episode.error or "")


async def test_ten_broken_rollouts_in_a_row_end_the_run() -> None:
    with pytest.raises(RunError, match="in a row"):
        await play([KeyError("bug")], environment(None), attempts=16)


async def test_a_refused_key_ends_the_run_at_once() -> None:
    with pytest.raises(RunError, match="refuses the API key"):
        await play([RunError("the service refuses the API key")], environment(None), attempts=4)


async def test_an_episode_out_of_time_is_graded_on_what_there_is_and_left_out() -> None:
    class Slow(ScriptedPolicy):
        async def sample(self, *arguments: Any, **options: Any) -> Any:
            sample = await super().sample(*arguments, **options)
            if self.samples > 1:
                await asyncio.sleep(60)
            return sample

    settings = replace(SETTINGS, episode_timeout=1.0)
    rollouts = Rollouts(MODEL, environment(None), settings, RolloutSettings(retries=0))
    row = TaskRow("task", "tests", "ask", {}, "task", "?")
    policy: Any = Slow(MODEL, ["42"])
    policy.samples = 1
    groups = [group async for group in rollouts.groups([row], 1, policy, seed="0")]
    (episode,) = groups[0].episodes
    assert (episode.failure, episode.stop_reason, episode.reward) == (Failure.TIMEOUT, StopReason.TIMEOUT, 0.0)


async def test_system_messages_and_chat_prompts_are_rendered_as_they_are() -> None:
    def build(task: Any = None) -> Environment:
        env = Environment("tests")

        @env.template(id="ask")
        async def ask(question: str = "?") -> Any:
            answer = yield [{"role": "system", "content": "be brief"}, {"role": "user", "content": question}]
            yield {"score": float("42" in str(answer)), "info": {"note": "fine"}}

        return env

    (episode,), policy, _ = await play(["42"], LocalRuntime(build))
    text = MODEL.tokenizer.decode(policy.prompts[0])
    assert text.index("be brief") < text.index("what?")
    assert "<|im_start|>system" in text
    assert episode.info == {"note": "fine"}


async def test_closing_the_stream_of_groups_leaves_no_rollout_running() -> None:
    class Endless(ScriptedPolicy):
        async def sample(self, *arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(3600)

    rollouts = Rollouts(MODEL, environment(None), SETTINGS, RolloutSettings())
    row = TaskRow("task", "tests", "ask", {}, "task", "?")
    stream: Any = rollouts.groups([row], 4, Endless(MODEL, [""]), seed="0")  # type: ignore[arg-type]
    pending = asyncio.ensure_future(anext(stream))
    while rollouts.in_flight < 4:
        await asyncio.sleep(0.01)
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    await stream.aclose()
    assert rollouts.in_flight == 0
