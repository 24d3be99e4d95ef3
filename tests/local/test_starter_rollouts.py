"""Playing episodes in process: every player to its end, with the engine's tokens."""

import torch
from transformers import Qwen3ForCausalLM

from turngrad.local.models import BFCL_STARTER, resolve_model
from turngrad.local.starter.rollouts import play_all

FOLDER = resolve_model(BFCL_STARTER)


class Repeats:
    """Asks `turns` times for a continuation of its own prompt and everything sampled so far."""

    def __init__(self, prompt: list[int], turns: int) -> None:
        self.tokens = list(prompt)
        self.left = turns
        self.completions: list[list[int]] = []

    def prompt(self) -> list[int] | None:
        return self.tokens if self.left else None

    def take(self, completion: list[int]) -> None:
        self.completions.append(completion)
        self.tokens = self.tokens + completion
        self.left -= 1


def test_more_players_than_places_are_all_played_to_their_ends() -> None:
    players = [Repeats([1, 300 + i], turns=1 + i % 3) for i in range(7)]
    play_all(FOLDER, players, temperature=1.0, max_tokens=5, at_once=2)
    assert [len(player.completions) for player in players] == [1, 2, 3, 1, 2, 3, 1]
    assert all(1 <= len(completion) <= 5 for player in players for completion in player.completions)


def test_temperature_zero_takes_the_likeliest_token() -> None:
    player = Repeats([1, 300, 301, 302], turns=1)
    play_all(FOLDER, [player], temperature=0.0, max_tokens=4)
    model = Qwen3ForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([player.tokens])).logits[0]
    assert player.completions == [logits[3 : 3 + len(player.completions[0])].argmax(-1).tolist()]


def test_a_seed_fixes_the_samples() -> None:
    first, again, other = (Repeats([1, 300], turns=2) for _ in range(3))
    play_all(FOLDER, [first], temperature=1.0, max_tokens=8, seed=5)
    play_all(FOLDER, [again], temperature=1.0, max_tokens=8, seed=5)
    play_all(FOLDER, [other], temperature=1.0, max_tokens=8, seed=6)
    assert first.completions == again.completions
    assert first.completions != other.completions


def test_an_episode_that_would_not_fit_is_left_as_it_stands() -> None:
    player = Repeats([1] * 60, turns=3)
    play_all(FOLDER, [player], temperature=1.0, max_tokens=8, max_length=64)
    assert player.completions == []


def test_nobody_to_play_is_nothing_to_do() -> None:
    play_all(FOLDER, [], temperature=1.0)
