"""Live episodes: at most once, one at a time, freed at the end."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from turngrad.envkit import Call, Tool, ToolError, World, tool
from turngrad.envkit.live import NEXT_TURN, Episodes, LiveEpisode, UnknownEpisode


class Counter(World):
    call_timeout = 0.3

    def __init__(self, turns: int = 1) -> None:
        self.count = 0
        self.running = 0
        self.most_running = 0
        self.user = turns
        self.closed = 0

    @tool
    async def add(self, seconds: float = 0.0) -> int:
        """Count up."""
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(seconds)
        self.running -= 1
        self.count += 1
        return self.count

    @tool
    def block(self) -> str:
        """Never return."""
        while True:
            time.sleep(0.001)

    @tool
    def fail(self) -> str:
        """Raise."""
        raise KeyError("broken")

    def turns(self) -> Iterator[str]:
        for turn in range(self.user):
            yield f"turn {turn}"

    def grade(self, answer: str) -> float:
        return float(self.count)

    def close(self) -> None:
        self.closed += 1


class Changing(World):
    """Tools that differ by turn, user turns from an async generator."""

    def __init__(self) -> None:
        self.turn = 0

    def tools(self) -> list[Tool]:
        return [Tool(f"tool_{self.turn // 2}", "", {"type": "object"})]

    def call(self, call: Call) -> str:
        raise ToolError(call.name)

    async def turns(self) -> AsyncIterator[list[dict[str, Any]]]:
        for turn in range(3):
            self.turn = turn
            yield [{"role": "user", "content": f"turn {turn}"}]

    def grade(self, answer: str) -> float:
        return 1.0


async def opened(episodes: Episodes, world: Any = Counter, **arguments: Any) -> LiveEpisode:
    return await episodes.open(world, arguments)


def text(answer: dict[str, Any]) -> str:
    return answer["content"][0]["text"]


async def test_a_repeated_id_gets_the_first_answer_and_runs_nothing() -> None:
    episode = await opened(Episodes(60))
    call = Call("one", "add", {})
    assert [text(await episode.answer(call)) for _ in range(3)] == ["1", "1", "1"]
    assert text(await episode.answer(Call("two", "add", {}))) == "2"


async def test_a_repeat_that_arrives_while_the_first_runs_waits_for_its_answer() -> None:
    episode = await opened(Episodes(60))
    call = Call("one", "add", {"seconds": 0.1})
    assert [text(answer) for answer in await asyncio.gather(*(episode.answer(call) for _ in range(5)))] == ["1"] * 5


async def test_a_caller_that_hangs_up_finds_the_answer_when_it_comes_back() -> None:
    episode = await opened(Episodes(60))
    call = Call("one", "add", {"seconds": 0.1})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(episode.answer(call), 0.02)
    assert text(await episode.answer(call)) == "1"


async def test_a_repeated_next_turn_does_not_skip_a_turn() -> None:
    episode = await opened(Episodes(60), turns=3)
    first = [await episode.answer(Call("a", NEXT_TURN, {})) for _ in range(2)]
    assert [answer["structuredContent"]["messages"][0]["content"] for answer in first] == ["turn 1", "turn 1"]


async def test_calls_of_one_episode_run_one_at_a_time() -> None:
    episode = await opened(Episodes(60))
    await asyncio.gather(*(episode.answer(Call(str(i), "add", {"seconds": 0.01})) for i in range(8)))
    assert (episode.world.count, episode.world.most_running) == (8, 1)


async def test_a_call_that_does_not_return_is_stopped_and_the_episode_goes_on() -> None:
    episode = await opened(Episodes(60))
    for name, arguments in (("block", {}), ("add", {"seconds": 30})):
        answer = await episode.answer(Call(name, name, arguments))
        assert (text(answer), answer["isError"]) == (f"{name} was stopped after 0.3 s", True)
    assert text(await episode.answer(Call("after", "add", {}))) == "1"


async def test_a_tool_that_raises_and_one_that_does_not_exist_are_errors_in_words() -> None:
    episode = await opened(Episodes(60))
    for name, words in (
        ("fail", "KeyError: 'broken'"),
        ("__init__", "unknown tool '__init__'"),
        ("close", "unknown tool 'close'"),
    ):
        answer = await episode.answer(Call(name, name, {}))
        assert (text(answer), answer["isError"]) == (words, True)


async def test_user_turns_say_whether_the_tools_changed() -> None:
    episode = await opened(Episodes(60), Changing)
    assert episode.prompt == [{"role": "user", "content": "turn 0"}]
    turns = [(await episode.answer(Call(str(i), NEXT_TURN, {})))["structuredContent"] for i in range(4)]
    assert [turn["done"] for turn in turns] == [False, False, True, True]
    assert [turn["tools_changed"] for turn in turns] == [False, True, False, False]
    assert [tool.name for tool in episode.tools()] == ["tool_1"]


async def test_grading_ends_the_turn_in_progress_and_closing_frees_the_world_once() -> None:
    episodes = Episodes(60)
    episode = await opened(episodes)
    await episode.answer(Call("one", "add", {}))
    assert (await episode.finish("")).reward == 1.0
    await episodes.close(episode)
    await episodes.close(episode)
    assert episode.world.closed == 1
    with pytest.raises(UnknownEpisode):
        episodes.find(episode.token)


async def test_an_idle_episode_ends_by_itself_and_a_used_one_does_not() -> None:
    episodes = Episodes(0.4)
    idle, used = await opened(episodes), await opened(episodes)
    for index in range(8):
        await asyncio.sleep(0.1)
        await used.answer(Call(str(index), "add", {}))
    assert episodes.find(used.token) is used
    with pytest.raises(UnknownEpisode):
        episodes.find(idle.token)
    assert idle.world.closed == 1
    await episodes.close_all()


async def test_a_world_that_raises_in_its_first_turn_leaves_nothing_behind() -> None:
    class Broken(Counter):
        def turns(self) -> Iterator[str]:
            raise RuntimeError("no data")
            yield ""

    episodes = Episodes(60)
    with pytest.raises(RuntimeError, match="no data"):
        await opened(episodes, Broken)
    assert len(episodes) == 0


async def test_a_world_that_is_not_finished_says_what_its_author_has_still_to_write() -> None:
    class Unfinished(World):
        pass

    class Ungraded(World):
        def turns(self) -> Iterator[str]:
            yield "go"

    episodes = Episodes(60)
    with pytest.raises(NotImplementedError, match=r"Unfinished needs turns\(\): yield the prompt"):
        await opened(episodes, Unfinished)
    episode = await opened(episodes, Ungraded)
    with pytest.raises(NotImplementedError, match=r"Ungraded needs grade\(\): return a reward or a Grade"):
        await episode.finish("")
    await episodes.close_all()
