"""Many episodes played at once against a model folder, in process: how a warm start is judged without a server.

In: a folder, and episodes that give whole prompts and take completions. Out: the episodes, played to their ends. Sampling
is the embedded engine's own, so the figures are those that training starts from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from turngrad.local.basemodel import load_base_model
from turngrad.local.kvcache import KVCache
from turngrad.local.sampler import Sampled, Sampler
from turngrad.local.stops import StopTable
from turngrad.local.wire import Completion

_CACHE_BYTES = 1 << 30


class Player(Protocol):
    """An episode in progress."""

    def prompt(self) -> list[int] | None:
        """The whole prompt of the next completion, or None when the episode is over."""
        ...

    def take(self, completion: list[int]) -> None:
        """The sampled tokens, with the stop token if it was sampled."""
        ...


def play_all(
    folder: Path,
    players: Sequence[Player],
    *,
    temperature: float,
    seed: int = 0,
    max_tokens: int = 192,
    max_length: int = 2_048,
    at_once: int = 64,
) -> None:
    """Play every episode to its end, `at_once` at a time; temperature 0 takes the likeliest token.

    An episode whose next completion would not fit `max_length` tokens is left as it stands. Raises what the engine raises.
    """
    device = torch.device("cpu")
    base = load_base_model(folder.name, folder, device)
    cache = KVCache(base.spec, device, torch.float32, _CACHE_BYTES)
    stops = StopTable(base.tokenizer, base.end_ids, base.spec.vocab)
    sampler = Sampler(base.freeze(base.weights), cache, stops, device, max_running=at_once)
    waiting = deque(players)
    asked = 0

    def ask(player: Player) -> bool:
        nonlocal asked
        prompt = player.prompt()
        if prompt is None or len(prompt) + max_tokens > max_length:
            return False
        asked += 1
        body = Completion("", prompt, max_tokens, temperature=temperature, seed=seed + asked)
        sampler.submit(body, lambda sampled: answer(player, sampled))
        return True

    def answer(player: Player, sampled: Sampled | Exception) -> None:
        if isinstance(sampled, Exception):
            raise sampled
        player.take(sampled.output_ids)
        if not ask(player):
            start()

    def start() -> None:
        while waiting and not ask(waiting.popleft()):
            pass

    for _ in range(at_once):
        start()
    while sampler.busy:
        sampler.step()
