"""Whatever the policy writes, no rollout fails for it: tokens are exact, nothing runs that was not offered, time is linear.

Fuzzed completions go through the whole path, for every family: parsing, the turn loop, an MCP endpoint of the kit behind genuine
hud rollouts, the bridge to the next prompt, the record, and the batch.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hud.environment.server import _shutdown, bind
from hud.eval.runtime import Runtime
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.drill.babble import CHOKING, PIECES, TAGS, Babble
from tests.families import FAMILIES, family
from turngrad.advantages import group_advantages
from turngrad.agent import LoopSettings
from turngrad.batch import build_batch
from turngrad.conversation import Conversation, ModelFamily
from turngrad.envkit import Call, Grade, Tool, World, environment
from turngrad.episodes import Episode, StopReason
from turngrad.policy import Sample
from turngrad.rollout import Rollouts, RolloutSettings
from turngrad.tasksets import TaskRow

TURNS = 8
"""Completions of one episode."""
TOOLS = (
    Tool(
        "echo",
        "Say it again.",
        {
            "type": "object",
            "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["text"],
            "additionalProperties": False,
        },
    ),
    Tool("store", "Keep anything.", {"type": "object", "properties": {"value": {}}, "required": ["value"]}),
)
SPECS = [
    {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}}
    for tool in TOOLS
]
ROW = TaskRow("task", "fuzz", "notebook", {}, "task", "?")
SETTINGS = LoopSettings(max_tokens=1000, max_seq_len=1 << 20, max_turns=TURNS, max_bad_calls=10**6, max_tool_tokens=64)
called: list[tuple[str, Any]] = []


class Notebook(World):
    """Two tools that write down what reached them; a user who goes on and on."""

    def tools(self) -> Any:
        return TOOLS

    def turns(self) -> Iterator[str]:
        while True:
            yield "Go on."

    async def call(self, call: Call) -> Any:
        called.append((call.name, call.arguments))
        return str(call.arguments.get("text", "kept"))

    def grade(self, answer: str) -> Grade:
        return Grade(float(len(called) % 2))


@dataclass
class Told:
    """A policy that returns the completions it was given, with a logprob of its own for every token."""

    completions: list[list[int]]
    snapshot: str = "told"
    prompts: list[list[int]] = field(default_factory=list)

    async def sample(self, prompt_ids: list[int], max_tokens: int, *, cache_key: str, seed: int | None = None) -> Sample:
        ids = self.completions[len(self.prompts)]
        self.prompts.append(list(prompt_ids))
        return Sample(list(ids), self.logprobs(len(self.prompts) - 1), "stop", 0, 0.0)

    def logprobs(self, turn: int) -> list[float]:
        return [-(turn + 1) - place / 1024 for place in range(len(self.completions[turn]))]


class Arena:
    """One served environment and the event loop that everything runs on."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.environment = environment("fuzz", notebook=Notebook)
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        await self.environment.start()
        self._server = await bind(self.environment)
        self._runtime = Runtime(f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}")

    def play(self, model: ModelFamily, policy: Told) -> Episode:
        return self.loop.run_until_complete(self._play(model, policy))

    async def _play(self, model: ModelFamily, policy: Told) -> Episode:
        rollouts = Rollouts(model, self._runtime, SETTINGS, RolloutSettings(1, retries=0))
        [group] = [group async for group in rollouts.groups([ROW], 1, policy, seed="0")]  # type: ignore[arg-type]
        return group.episodes[0]

    def close(self) -> None:
        self.loop.run_until_complete(_shutdown(self._server))
        self.loop.run_until_complete(self.environment.stop())
        self.loop.close()


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


def check(episode: Episode, policy: Told) -> None:
    """C1 to C5 of one episode and its batch, and C9: what ran is what was offered, with arguments that fit."""
    assert episode.excluded is None, episode.error
    assert episode.stop_reason in (StopReason.MAX_TURNS, StopReason.MAX_TOOL_CALLS)
    assert len(episode.turns) == len(policy.prompts) >= 1
    so_far: list[int] = []
    for turn, sent, told in zip(episode.turns, policy.prompts, policy.completions, strict=False):
        assert list(turn.output_ids) == told
        assert (turn.segment_break is None) == (sent[: len(so_far)] == so_far)
        so_far = list(turn.context_ids) if turn.segment_break else so_far + list(turn.context_ids)
        assert so_far == sent
        so_far += told
    assert Episode.from_json(episode.to_json()) == episode

    ran = [(call.name, call.arguments) for call in episode.tool_calls if call.bad is None]
    assert ran == called
    for name, arguments in called:
        assert name in ("echo", "store")
        assert isinstance(arguments, dict)
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
        assert isinstance(arguments["text"], str) if name == "echo" else "value" in arguments

    batch = build_batch([([episode, episode], _two())], normalize="token")
    segments = [segment for segment in batch.segments if segment.episode == 0]
    trained = [
        (int(i), float(p))
        for s in segments
        for i, p in zip(s.ids[1:][s.target_mask], s.target_logprobs[s.target_mask], strict=True)
    ]
    expected = [
        (token_id, float(np.float32(logprob)))
        for turn in range(len(episode.turns))
        for token_id, logprob in zip(policy.completions[turn], policy.logprobs(turn), strict=True)
    ]
    assert trained == expected
    for segment in segments:
        assert len(segment.target_mask) == len(segment.target_logprobs) == len(segment.target_advantages) == len(segment.ids) - 1
        assert not segment.target_logprobs[~segment.target_mask].any()
        assert not segment.target_advantages[~segment.target_mask].any()


def _two() -> Any:
    """Advantages of two attempts of which one was better."""
    base: dict[str, Any] = {"task_id": "t", "group_id": "g", "turns": (), "stop_reason": StopReason.DONE}
    return group_advantages([Episode(attempt=i, reward=float(i), **base) for i in range(2)], "group-mean")


def play_and_check(arena: Arena, model: ModelFamily, completions: list[list[int]]) -> Episode:
    called.clear()
    policy = Told(completions)
    episode = arena.play(model, policy)
    check(episode, policy)
    return episode


def fuzz(arena: Arena, name: str, completed: int, canary: Path, *, anew: bool) -> None:
    """`completed` completions of one family: `anew`, others than last time, and a failure prints its own."""
    model = family(name)
    completions = Babble(model, SPECS).completions(str(canary))

    @settings(
        max_examples=math.ceil(completed / TURNS),
        deadline=None,
        database=None,
        derandomize=not anew,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.lists(completions, min_size=TURNS, max_size=TURNS))
    def play(drawn: list[list[int]]) -> None:
        play_and_check(arena, model, drawn)

    play()
    assert not canary.exists()


@pytest.mark.parametrize("name", FAMILIES)
def test_200_fuzzed_completions(arena: Arena, name: str, tmp_path: Path) -> None:
    fuzz(arena, name, 200, tmp_path / "canary", anew=False)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_10000_fuzzed_completions_of_each_family(arena: Arena, name: str, tmp_path: Path) -> None:
    fuzz(arena, name, 10_000, tmp_path / "canary", anew=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_is_well_formed_runs_as_it_was_written(arena: Arena, name: str) -> None:
    """Without this, the tests here could pass by running nothing."""
    made = Babble(family(name), SPECS)
    [call] = made.broken_calls(["MARK"])[:1]
    play_and_check(arena, family(name), [call] * TURNS)
    assert called == [("echo", {"text": "MARK"})] * TURNS


def _break_every_hole(arena: Arena, name: str, pieces: Sequence[str]) -> None:
    completions = Babble(family(name), SPECS).broken_calls(pieces)
    for start in range(0, len(completions), TURNS):
        play_and_check(arena, family(name), (completions[start:] + completions)[start : start + TURNS])


@pytest.mark.parametrize("name", FAMILIES)
def test_what_chokes_json_is_the_policys_bad_call(arena: Arena, name: str) -> None:
    """Deeper than Python recurses, an integer longer than it reads, a name that is no text: json and its readers raise."""
    _break_every_hole(arena, name, CHOKING)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_every_piece_in_every_part_of_a_call(arena: Arena, name: str) -> None:
    _break_every_hole(arena, name, (*PIECES, *TAGS))


# -- time ----------------------------------------------------------------------------------------------------------------


def seconds(model: ModelFamily, ids: list[int]) -> float:
    """Processor time of taking `ids` as an answer and making the next prompt, the best of two."""

    async def take() -> float:
        conversation = Conversation(model, [{"role": "user", "content": "?"}], SPECS)
        await conversation.open()
        started = time.process_time()
        await conversation.answer(ids)
        await conversation.extend([{"role": "user", "content": "Go on."}])
        return time.process_time() - started

    return min(asyncio.run(take()) for _ in range(2))


def _times(name: str, texts: Sequence[str], tokens: int) -> None:
    made = Babble(family(name), SPECS)
    for text in texts:
        short, long = (seconds(family(name), made.tiled(text, count)) for count in (tokens, 4 * tokens))
        # Four times the tokens: 4 if linear, 16 if quadratic.
        assert long < 9 * short + 0.1, f"{text[:40]!r}: {short:.3f} s for {tokens} tokens, {long:.3f} s for {4 * tokens}"


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "glm-4.5", "kimi-k2"])
def test_reading_an_answer_made_of_one_text_over_and_over_takes_linear_time(name: str) -> None:
    _times(name, ("<tool_call></tool_call>", "{"), 4_000)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_no_text_over_and_over_takes_more_than_linear_time(name: str) -> None:
    made = Babble(family(name), SPECS)
    _times(
        name,
        (*TAGS, "<tool_call></tool_call>", "<think></think>", *'{}[\\<" \n0', '{"a":', made.call, made.call[:-9], made.call[9:]),
        16_000,
    )
