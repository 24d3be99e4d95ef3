"""User turns, limits, early ends and abstention."""

import pytest
from bfcl_data import REVEAL_MESSAGE, load_category, load_entry
from hud.eval.run import Run

from envs.bfcl.env import MultiTurn
from tests.envs.bfcl_scripts import Calls, play, truth
from tests.players import Mcp
from turngrad.envkit import Call
from turngrad.pool import ServerPool

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_reveal_brings_the_official_message_and_the_held_out_function(bfcl_pool: ServerPool) -> None:
    entry = load_entry("multi_turn_miss_func_0")

    async def script(mcp: Mcp, run: Run) -> str:
        seen = []
        for _ in range(3):
            assert "sort" not in await mcp.names()
            seen.append(await mcp.next_turn())
        assert [turn["tools_changed"] for turn in seen] == [False, False, True]
        assert seen[2]["messages"] == [{"role": "user", "content": REVEAL_MESSAGE}]
        assert (await mcp.names())[-1] == "sort"
        return ""

    run = await play(bfcl_pool, entry, script)
    assert run.trace.error is None


async def test_without_stopping_a_failed_turn_the_conversation_goes_on_to_its_end(bfcl_pool: ServerPool) -> None:
    async def script(mcp: Mcp, run: Run) -> str:
        return str([(await mcp.next_turn())["done"] for _ in range(4)])

    run = await play(bfcl_pool, "multi_turn_base_0", script)
    assert run.trace.content == "[False, False, False, True]"
    assert run.reward == 0.0
    assert run.grade.info["failed_turn"] == 0
    assert run.grade.info["reason"] == "Model response list is empty for turn 0"


async def test_stopping_at_the_failed_turn_ends_early_with_the_same_reward(bfcl_pool: ServerPool) -> None:
    entry = load_entry("multi_turn_base_0")
    faulty: Calls = [truth(entry)[0], [], *truth(entry)[2:]]

    async def script(mcp: Mcp, run: Run) -> str:
        for name, arguments in faulty[0]:
            await mcp.result(name, arguments, step=0)
        return str([(await mcp.next_turn())["done"], (await mcp.next_turn())["done"]])

    stopped = await play(bfcl_pool, entry, script, stop_at_failed_turn=True)
    played_out = await play(bfcl_pool, entry, faulty)
    assert stopped.trace.content == "[False, True]"
    assert stopped.reward == played_out.reward == 0.25
    assert stopped.grade.info["turn_rewards"] == [0.25, 0.0]
    assert played_out.grade.info["turn_rewards"] == [0.25, 0.0, 0.0, 0.0]
    assert stopped.grade.info["failed_turn"] == played_out.grade.info["failed_turn"] == 1


async def test_the_turn_in_progress_is_judged_when_the_episode_ends_in_it(bfcl_pool: ServerPool) -> None:
    entry = load_entry("multi_turn_base_0")

    async def script(mcp: Mcp, run: Run) -> str:
        for name, arguments in truth(entry)[0]:
            await mcp.result(name, arguments, step=0)
        return "out of tokens"

    run = await play(bfcl_pool, entry, script)
    assert run.reward == 0.25
    assert run.grade.info["passed_turns"] == 1
    assert not run.grade.info["strict"]


async def test_the_21st_step_of_a_turn_ends_the_episode_and_loses_the_turn(bfcl_pool: ServerPool) -> None:
    entry = load_entry("multi_turn_base_0")

    async def script(mcp: Mcp, run: Run) -> str:
        for name, arguments in truth(entry)[0]:
            await mcp.result(name, arguments, step=0)
        for step in range(1, 20):
            assert not (await mcp.result("pwd", step=step))["isError"]
        over = await mcp.result("pwd", step=20)
        assert over["isError"]
        assert over["_meta"]["turngrad/done"]
        assert (await mcp.result("pwd", step=21))["isError"]
        assert (await mcp.next_turn())["done"]
        return ""

    run = await play(bfcl_pool, entry, script)
    assert run.trace.error is None
    assert run.reward == 0.0
    assert run.grade.info["aborted"] == "more than 20 steps in one turn"


async def test_20_steps_are_allowed_in_every_turn(bfcl_pool: ServerPool) -> None:
    entry = load_entry("multi_turn_base_0")

    async def script(mcp: Mcp, run: Run) -> str:
        for turn, calls in enumerate(truth(entry)):
            for name, arguments in calls:
                await mcp.result(name, arguments, step=100 * turn)
            for step in range(1, 20):
                await mcp.result("pwd", step=100 * turn + step)
            await mcp.next_turn()
        return ""

    run = await play(bfcl_pool, entry, script)
    assert run.reward == 1.0
    assert run.grade.info["steps_per_turn"] == [20, 20, 20, 20]


async def test_calls_beyond_the_cap_of_a_step_are_refused(bfcl_pool: ServerPool) -> None:
    async def script(mcp: Mcp, run: Run) -> str:
        return str([(await mcp.result("pwd", step=0))["isError"] for _ in range(3)])

    run = await play(bfcl_pool, "multi_turn_base_0", script, max_calls_per_step=2)
    assert run.trace.content == "[False, False, True]"
    assert run.grade.info["calls_per_turn"][0] == 2


async def test_in_tool_mode_the_policy_brings_the_next_user_turn_itself(bfcl_pool: ServerPool) -> None:
    entry = load_category("miss_func")[0]

    async def script(mcp: Mcp, run: Run) -> str:
        assert run.bindings["tools"]["user_turns"] is False
        assert (await mcp.next_turn())["done"]
        step = 0
        for turn, calls in enumerate(truth(entry)):
            for name, arguments in calls:
                step += 1
                await mcp.result(name, arguments, step=step)
            step += 1
            answer = await mcp.result("next_turn", step=step)
            if turn + 1 < len(entry.turns):
                assert answer["content"][0]["text"] == entry.turns[turn + 1][0]["content"]
            assert answer.get("_meta", {}).get("turngrad/tools-changed", False) == (turn + 1 == 3)
        assert answer["_meta"]["turngrad/done"]
        return ""

    run = await play(bfcl_pool, entry, script, user_turns="tool")
    assert run.trace.error is None
    assert run.reward == 1.0
    assert run.grade.info["strict"]


async def test_in_tool_mode_next_turn_must_stand_alone_in_its_message(bfcl_pool: ServerPool) -> None:
    async def script(mcp: Mcp, run: Run) -> str:
        after_a_call = [await mcp.result("pwd", step=1), await mcp.result("next_turn", step=1)]
        before_a_call = [await mcp.result("next_turn", step=2), await mcp.result("pwd", step=2)]
        return str([answer["isError"] for answer in after_a_call + before_a_call])

    run = await play(bfcl_pool, "multi_turn_base_0", script, user_turns="tool")
    assert run.trace.content == "[False, True, False, True]"
    assert run.grade.info["calls_per_turn"] == [1, 0, 0, 0]


async def test_abstention_is_reported_and_does_not_change_the_reward_unless_asked(bfcl_pool: ServerPool) -> None:
    entry = load_entry("multi_turn_miss_func_0")
    calls = truth(entry)
    eager: Calls = [*calls[:2], [("pwd", {})], *calls[3:]]
    still = await play(bfcl_pool, entry, calls)
    plain = await play(bfcl_pool, entry, eager)
    asked = await play(bfcl_pool, entry, eager, abstention=True)
    both = await play(bfcl_pool, entry, calls, abstention=True)
    assert (still.reward, still.grade.info["abstention"]) == (1.0, 1.0)
    assert (plain.reward, plain.grade.info["abstention"]) == (1.0, 0.0)
    # Turns 0 and 1 of the four with ground truth pass before the call in turn 2.
    assert (asked.reward, asked.grade.info["failed_turn"]) == (0.5, 2)
    assert (both.reward, both.grade.info["strict"]) == (1.0, True)


async def test_an_entry_can_be_given_as_a_row_of_the_datas_form(bfcl_pool: ServerPool) -> None:
    row = {
        "id": "made_up_0",
        "question": [[{"role": "user", "content": "Make a folder called a."}]],
        "initial_config": {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": {}}}}},
        "involved_classes": ["GorillaFileSystem"],
        "ground_truth": [["mkdir(dir_name='a')", {"name": "cd", "arguments": {"folder": "a"}}]],
    }
    run = await play(bfcl_pool, row, [[("mkdir", {"dir_name": "a"}), ("cd", {"folder": "a"})]])  # type: ignore[arg-type]
    assert run.prompt_text == "Make a folder called a."
    assert run.reward == 1.0


async def test_an_unknown_entry_is_refused_in_words(bfcl_pool: ServerPool) -> None:
    run = await play(bfcl_pool, "multi_turn_base_200", [])
    assert run.grade.is_error
    assert "no BFCL multi-turn entry 'multi_turn_base_200'" in (run.trace.error or "")


async def test_a_call_stopped_at_its_time_out_ends_the_episode_and_loses_the_turn() -> None:
    world = MultiTurn("multi_turn_base_0")
    turns = world.turns()
    await anext(turns)
    assert world.stopped(Call("", "ls", {})) == "ls was stopped after 30 s; the conversation is over"
    assert world.over
    assert [turn async for turn in turns] == []
    assert world.grade("").info["reason"] == "ls was stopped after 30 s"
