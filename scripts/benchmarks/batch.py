"""The batch builder against tinker-cookbook's, and merged datums against one datum per turn.

The peer cannot share our environment (it pins other versions of transformers), so `batch_peer.py` runs in one that uv makes
for it, and both sides take turns within one run. Equality comes first: every field of every datum of 1,000 random
trajectories. Two differences are allowed, counted and shown: the peer also sends masked tokens after the last trained
one, and datums in which nothing trains.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._row import row

from turngrad.advantages import GroupAdvantages
from turngrad.batch import build_batch
from turngrad.conversation import Conversation
from turngrad.diagnostics import unmerged_tokens
from turngrad.episodes import Break, Episode, StopReason, Turn, logprob_array, token_array

_ROOT = Path(__file__).parents[2]
sys.path += [str(_ROOT), str(_ROOT / "envs" / "bfcl")]

from bfcl_backends import Backends  # noqa: E402  # pyright: ignore[reportMissingImports]
from bfcl_data import Entry, TruthCall, function_documents, load_category  # noqa: E402  # pyright: ignore[reportMissingImports]

from tests.families import family  # noqa: E402

PEER = "tinker-cookbook==0.5.8"
VOCABULARY = 150_000
REPEATS = 7

Trajectory = tuple[float, list[tuple[list[int], list[int], list[float]]]]
"""The peer's view: an advantage, and per turn the whole prompt, the sampled ids and their logprobs."""


def run() -> list[dict[str, Any]]:
    """One row a comparison; the first run takes the peer's installation on top (about 10 s from a warm cache)."""
    with tempfile.TemporaryDirectory() as folder, _peer() as peer:
        return [
            *_equality(peer, Path(folder)),
            *_speed(peer, Path(folder)),
            _bfcl_tokens(),
        ]


# ---------------------------------------------------------------------------------------------------- the same datums


def _equality(peer: _Peer, folder: Path) -> list[dict[str, Any]]:
    rng = random.Random(0)
    trajectories = [_random_trajectory(rng) for _ in range(1000)]
    theirs = peer.ask("datums", folder / "random.pickle", trajectories)
    equal, ours_sent, theirs_sent = 0, 0, 0
    for trajectory, peers in zip(trajectories, theirs, strict=True):
        ours = [
            [datum.model_input.to_ints(), *(value.tolist() for value in datum.loss_fn_inputs.values())]
            for datum in _datums([_episode(trajectory)], [trajectory[0]])
        ]
        equal += ours == [_without_untrained_tail(fields) for fields in peers if any(fields[-1])]
        ours_sent += sum(len(fields[0]) for fields in ours)
        theirs_sent += sum(len(fields[0]) for fields in peers)
    return [
        row("datums equal in every field, of 1,000 random trajectories", equal, 1000, "trajectories", equal / 1000, 1.0),
        row("positions sent for them", ours_sent, theirs_sent, "tokens", theirs_sent / ours_sent, 1.0),
    ]


def _without_untrained_tail(fields: list[list[Any]]) -> list[list[Any]]:
    """The peer's model input, targets, logprobs and advantages up to the last trained target."""
    *kept, mask = fields
    end = len(mask) - mask[::-1].index(1.0)
    return [values[:end] for values in kept]


def _random_trajectory(rng: random.Random) -> Trajectory:
    """Up to twelve turns: empty and one-token outputs, turns without new context, prompts that are rewritten or shrink."""
    turns, history = [], []
    for index in range(rng.randint(1, 12)):
        context = _ids(rng, rng.choice([0, 1, 2, 40]) if index else 40)
        if index and rng.random() < 0.2:
            # A first token that differs, so that it extends nothing; and two tokens, the least that the peer takes.
            history = [(history[0] + 1) % VOCABULARY, 0]
        history = history + context
        output = _ids(rng, rng.choice([0, 1, 5, 20]))
        turns.append((history, output, [-rng.expovariate(1.0) for _ in output]))
        history = history + output
    return rng.choice([-1, 1]) * rng.uniform(0.1, 2.0), turns


# ------------------------------------------------------------------------------------------------------------- speed


def _speed(peer: _Peer, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    per_token: dict[int, float] = {}
    trajectories: list[Trajectory] = []
    for turns, tokens, count, bar in ((8, 4_000, 40, 5.0), (32, 14_000, 12, 4.0), (128, 67_000, 3, 3.0)):
        rng = random.Random(turns)
        trajectories = [_growing_trajectory(rng, turns, tokens) for _ in range(count)]
        ours, theirs = _times(peer, folder / f"{turns}.pickle", trajectories)
        rows.append(row(f"trajectory of {turns} turns, {tokens // 1000}k tokens", ours, theirs, "ms", theirs / ours, bar))
        per_token[turns] = ours / tokens
    rows.append(
        row("time per token at 67k tokens (other: at 4k)", per_token[128] * 1e6, per_token[8] * 1e6, "ns",
            per_token[8] / per_token[128], 0.5)
    )  # fmt: skip
    # The ids of our datums become lists only as the SDK writes the request; the peer's are lists already.
    ours, theirs = _times(peer, folder / "128.pickle", trajectories, as_lists=True)
    rows.append(row("trajectory of 128 turns, our ids turned into lists too", ours, theirs, "ms", theirs / ours, 3.0))
    rng = random.Random(1)
    broken = [_growing_trajectory(rng, 32, 14_000, breaks=True) for _ in range(3)]
    ours, theirs = _times(peer, folder / "broken.pickle", broken)
    rows.append(row("trajectory of 32 turns that all break the prefix", ours, theirs, "ms", theirs / ours, 20.0))
    return rows


def _times(peer: _Peer, path: Path, trajectories: list[Trajectory], *, as_lists: bool = False) -> tuple[float, float]:
    """Medians in milliseconds a trajectory, wire objects included, both sides in turn."""
    episodes = [_episode(trajectory) for trajectory in trajectories]
    advantages = [advantage for advantage, _ in trajectories]
    peer.ask("time", path, trajectories)
    ours, theirs = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        datums = _datums(episodes, advantages)
        if as_lists:
            _ = [list(datum.model_input.chunks[0].tokens) for datum in datums]
        ours.append(time.perf_counter() - started)
        theirs.append(peer.ask("time", path))
    return 1e3 * statistics.median(ours) / len(episodes), 1e3 * statistics.median(theirs) / len(episodes)


def _growing_trajectory(rng: random.Random, turns: int, tokens: int, *, breaks: bool = False) -> Trajectory:
    """A quarter of each turn's new tokens is sampled; with `breaks`, every prompt has another first token."""
    new = tokens // turns
    listed, history = [], []
    for index in range(turns):
        history = history + _ids(rng, new - new // 4)
        if breaks:
            history = [index, *history[1:]]
        output = _ids(rng, new // 4)
        listed.append((history, output, [-rng.expovariate(1.0) for _ in output]))
        history = history + output
    return 1.0, listed


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def _episode(trajectory: Trajectory) -> Episode:
    """The same trajectory as this project records it: only what each turn adds, breaks named."""
    turns, history = [], []
    for index, (prompt, output, logprobs) in enumerate(trajectory[1]):
        extends = prompt[: len(history)] == history
        turns.append(
            Turn(
                context_ids=token_array(prompt[len(history) :] if extends else prompt),
                output_ids=token_array(output),
                logprobs=logprob_array(logprobs),
                finish_reason="stop",
                segment_break=None if extends or index == 0 else Break.HISTORY_REWRITE,
            )
        )
        history = prompt + output
    return Episode("task", "group", 0, tuple(turns), 1.0, StopReason.DONE)


def _datums(episodes: list[Episode], advantages: list[float]) -> list[Any]:
    return build_batch([(episodes, GroupAdvantages(tuple(advantages), None, 0.0, 1.0))], normalize="token").datums()


# -------------------------------------------------------------------------------------------------------------- BFCL


def _bfcl_tokens() -> dict[str, Any]:
    """Positions sent for all 200 ground-truth episodes of multi_turn_base, in Qwen3.5's format and vocabulary."""
    merged = unmerged = 0
    for entry in load_category("base"):
        episode = asyncio.run(_ground_truth(entry))
        batch = build_batch([([episode], GroupAdvantages((1.0,), None, 0.0, 1.0))], normalize="token")
        merged += sum(len(segment.target_mask) for segment in batch.sent)
        unmerged += unmerged_tokens(episode)
    return row(
        "tokens trained on BFCL base: merged (other: one datum per turn)", merged, unmerged, "tokens", unmerged / merged, 8.0
    )


async def _ground_truth(entry: Entry) -> Episode:
    """The episode of a policy that makes one ground-truth call a message and ends each user turn with a word."""
    documents = {name: document for owner in entry.involved_classes for name, document in function_documents(owner).items()}
    tools = [{"type": "function", "function": document} for document in documents.values()]
    backends = Backends(entry)
    qwen = family("qwen3.5")
    conversation = Conversation(qwen, entry.turns[0], tools)
    await conversation.open()
    turns: list[Turn] = []
    seen = 0
    for user_turn, (_, calls) in enumerate(zip(entry.turns, entry.ground_truth, strict=True)):
        if user_turn:
            await conversation.extend(entry.turns[user_turn])
        for call in (*calls, None):
            prompt = conversation.prompt_ids
            text = "Done." if call is None else _qwen_call(call, documents)
            output = qwen.tokenizer.encode(text + "<|im_end|>")
            opens = conversation.segment_break
            turns.append(
                Turn(
                    context_ids=token_array(prompt[seen:] if opens is None else prompt),
                    output_ids=token_array(output),
                    logprobs=logprob_array([-1.0] * len(output)),
                    finish_reason="stop",
                    segment_break=opens,
                    user_turn=user_turn,
                )
            )
            await conversation.answer(output)
            seen = len(prompt) + len(output)
            if call is not None:
                await conversation.extend([{"role": "tool", "content": backends.execute_truth(call)}])
    return Episode(entry.id, entry.id, 0, tuple(turns), 1.0, StopReason.DONE)


def _qwen_call(call: TruthCall, documents: dict[str, dict[str, Any]]) -> str:
    """A ground-truth call as Qwen3.5 writes it."""
    names = list(documents[call.name]["parameters"]["properties"])
    arguments = {**dict(zip(names, call.positional, strict=False)), **call.arguments}
    parameters = "".join(
        f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for name, value in arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


# ---------------------------------------------------------------------------------------------------------- plumbing


class _Peer:
    """The peer's process: one question, one answer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, verb: str, path: Path, trajectories: list[Trajectory] | None = None) -> Any:
        if trajectories is not None:
            path.write_bytes(pickle.dumps(trajectories))
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb} {path}\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with status {self._process.wait()}; its environment needs uv and {PEER}")
        return json.loads(line)


@contextmanager
def _peer() -> Iterator[_Peer]:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = ["uv", "run", "--quiet", "--isolated", "--no-project", "--python", python, "--with", PEER, "python"]
    with subprocess.Popen(
        [*command, str(Path(__file__).with_name("batch_peer.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tempfile.gettempdir(),
    ) as process:
        try:
            peer = _Peer(process)
            peer.answer()
            yield peer
        finally:
            process.kill()
