"""Episodes share nothing: not at once, not after an aborted one."""

import asyncio
import importlib

import pytest
from bfcl_backends import Backends
from bfcl_data import CATEGORIES, load_category
from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING
from hud.eval.run import Run

from envs.bfcl.env import MultiTurn
from tests.envs.bfcl_scripts import play, play_turns, truth
from tests.players import Mcp
from turngrad.envkit import Call, ToolError
from turngrad.pool import ServerPool

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_one_entry_64_times_at_once_and_after_aborted_rollouts_starts_clean_every_time(bfcl_pool: ServerPool) -> None:
    entry = load_category("base")[0]
    starts: list[tuple[str, str]] = []

    async def aborted(mcp: Mcp, run: Run) -> str:
        for name, arguments in truth(entry)[0]:
            await mcp.result(name, arguments, step=0)
        raise RuntimeError("the policy's process fell over")

    async def whole(mcp: Mcp, run: Run) -> str:
        starts.append((await mcp.call("pwd", step=100), await mcp.call("find", {"path": "."}, step=100)))
        return await play_turns(mcp, truth(entry))

    for _ in range(2):
        broken = await asyncio.gather(*(play(bfcl_pool, entry, aborted) for _ in range(16)))
        sound = await asyncio.gather(*(play(bfcl_pool, entry, whole) for _ in range(64)))
        assert {run.trace.status for run in broken} == {"error"}
        assert [run.reward for run in sound] == [1.0] * 64
    assert len(starts) == 128
    assert len(set(starts)) == 1


async def replay(category: str, scenario: int) -> float:
    entry = load_category(category)[scenario]
    world = MultiTurn(entry.id)
    turns = world.turns()
    for calls in truth(entry):
        await anext(turns)
        for name, arguments in calls:
            # A thread of its own per call, as the kit gives it: calls of all episodes interleave.
            try:
                await asyncio.to_thread(world.call, Call("", name, arguments, step=world.turn))
            except ToolError as error:
                raise AssertionError(str(error)) from error
    await anext(turns, None)
    return world.grade("").reward


async def test_160_concurrent_gradings_have_no_false_failure() -> None:
    rewards = await asyncio.gather(*(replay(category, scenario) for scenario in range(0, 200, 40) for category in CATEGORIES * 8))
    assert rewards == [1.0] * 160


@pytest.mark.full
async def test_1600_concurrent_gradings_have_no_false_failure() -> None:
    rewards = await asyncio.gather(*(replay("base", scenario) for scenario in list(range(200)) * 8))
    assert rewards == [1.0] * 1600


async def test_no_module_of_the_backends_changes_while_episodes_are_played() -> None:
    modules = [
        importlib.import_module(path)
        for name, path in CLASS_FILE_PATH_MAPPING.items()
        if "API_" not in name and "Web" not in name
    ]
    shared = {
        (module.__name__, name): value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, dict | list | set) and not name.startswith("__")
    }
    # The one exception is rewritten before each use, under a lock.
    before = {key: repr(value) for key, value in shared.items() if key[1] != "LONG_WEATHER_EXTENSION"}
    for scenario in range(0, 200, 10):
        assert await replay("long_context", scenario) == 1.0
    assert {key: repr(shared[key]) for key in before} == before


async def test_a_mention_in_one_episode_is_in_no_other_episodes_tweet() -> None:
    """`post_tweet`'s default lists are one object per process; a whole evaluation shares what one episode mentions."""
    entry = next(entry for entry in load_category("base") if "TwitterAPI" in entry.involved_classes)
    posts = []
    for _ in range(2):
        backends = Backends(entry)
        backends.execute("authenticate_twitter", {"username": "x", "password": "y"})
        backends.instances["TwitterAPI"].authenticated = True
        posts.append(backends.execute("post_tweet", {"content": "hello"}))
        number = max(backends.instances["TwitterAPI"].tweets)
        backends.execute("mention", {"tweet_id": number, "mentioned_usernames": ["@someone"]})
    assert posts[0] == posts[1]
    assert "@someone" not in posts[1]
