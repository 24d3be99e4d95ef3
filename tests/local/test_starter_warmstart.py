"""The warm start: loss on sampled tokens alone, rates that rise and fall, and a model that learns what it is shown."""

import importlib
from collections.abc import Iterator
from random import Random

import pytest
import torch
import torch.nn.functional as F

from turngrad.local.models import resolve_model
from turngrad.local.starter import warmstart
from turngrad.local.starter.plan import Schedule, Shape, Stage
from turngrad.local.starter.warmstart import batch_loss, new_model, train

SMALL = Shape(layers=1, width=64, heads=1, kv_heads=1, feed_forward=64)
EPISODE = ([5, 6, 7, 8, 9, 2], [False, False, True, True, False, True])


def model(seed: int = 0):
    return new_model(SMALL, 16, eos=2, pad=0, seed=seed)


def episodes() -> Iterator[tuple[list[int], list[bool]]]:
    while True:
        yield EPISODE


def test_the_loss_is_that_of_sampled_tokens_whatever_the_padding() -> None:
    policy = model()
    ids, mask = warmstart._pad([EPISODE, (EPISODE[0][:4], EPISODE[1][:4])])
    loss = batch_loss(policy, ids, mask)
    expected = 0.0
    for tokens, sampled in (EPISODE, (EPISODE[0][:4], EPISODE[1][:4])):
        logprobs = F.log_softmax(policy(torch.tensor([tokens])).logits[0].detach().float(), -1)
        expected -= sum(float(logprobs[i - 1, tokens[i]]) for i in range(1, len(tokens)) if sampled[i])
    # The training path runs in bf16.
    assert float(loss.detach()) == pytest.approx(expected, rel=0.01)


def test_padding_is_never_sampled_and_lengths_come_in_steps_of_64() -> None:
    ids, mask = warmstart._pad([([1] * 70, [True] * 70), ([1], [True])])
    assert ids.shape == mask.shape == (2, 129)
    assert mask.sum(1).tolist() == [70, 1]


def test_a_draw_holds_at_least_the_tokens_asked_for_sorted_by_length() -> None:
    lengths = iter([5, 90, 7, 80, 6])
    stream = (([1] * n, [True] * n) for n in lengths)
    batches, tokens = warmstart._draw(stream, 180)
    assert tokens == 182
    assert [ids.shape for ids, _ in batches] == [(2, 65), (2, 129)]


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.01), (0.01, 0.51), (0.1, 1.0), (0.5, 1.0), (0.75, 0.5), (1.0, 0.0)])
def test_rates_rise_stay_and_fall(progress: float, share: float) -> None:
    schedule = Schedule(tokens=1, warm_share=0.02, cool_share=0.5)
    assert warmstart._rate_share(progress, schedule) == pytest.approx(share)


def test_gradients_become_a_mean_over_sampled_tokens() -> None:
    policy = model()
    ids, mask = warmstart._pad([EPISODE])
    batch_loss(policy, ids, mask).backward()
    before = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    assert warmstart._share(policy, [7.0, 4.0]) == [7.0, 4.0]
    after = [p.grad for p in policy.parameters() if p.grad is not None]
    assert all(torch.allclose(new, old / 4) for new, old in zip(after, before, strict=True))


def test_a_model_learns_the_episode_it_is_shown_and_reports_on_the_way() -> None:
    policy = model()
    ids, mask = warmstart._pad([EPISODE])
    before = float(batch_loss(policy, ids, mask).detach())
    lines: list[str] = []
    saved: list[int] = []
    train(policy, episodes(), Schedule(tokens=40 * 6, batch_tokens=6), lines.append, lambda: saved.append(1))
    assert float(batch_loss(policy, ids, mask).detach()) < before / 10
    assert [line.split("  ")[0] for line in lines] == ["step 20", "step 40"]
    assert len(saved) == 2


def test_a_stage_ends_when_its_minutes_are_over() -> None:
    policy = model()
    lines: list[str] = []
    train(policy, episodes(), Schedule(tokens=10**12, minutes=0.01, batch_tokens=6), lines.append)
    assert not policy.training
    last = lines[-1] if lines else "0 s"
    assert int(last.split()[-2].replace(",", "")) <= 2


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second, other = model(1), model(1), model(2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("haste", [0.0, 0.4])
def test_the_script_that_makes_the_starter_learns_from_whole_episodes_and_hasty_ones(
    monkeypatch: pytest.MonkeyPatch, haste: float
) -> None:
    """Its parts are loaded late, so that --help needs no torch: this loads them, and takes from its stream what a stage would."""
    monkeypatch.syspath_prepend("scripts")
    making = importlib.import_module("starter.making")
    folder = resolve_model("bfcl-starter")
    renderer = making.CompactRenderer(making.PreTrainedTokenizerFast.from_pretrained(folder))
    stage = Stage(Schedule(tokens=1), generated=0.0, substituted=0.0, haste=haste)
    entries = making.training_entries()[:20]
    stream = making._examples(entries, renderer, stage, iter(()), Random(0))
    drawn = [next(stream) for _ in range(200)]
    for ids, sampled in drawn:
        assert len(ids) == len(sampled)
        assert 0 < sum(sampled) < len(ids) / 2
    # An episode is whole where no turn was taken for done too early.
    played = {tuple(renderer.render(messages, tools=tools).token_ids) for tools, messages in map(making.play, entries)}
    whole = sum(tuple(ids) in played for ids, _ in drawn) / len(drawn)
    turns = [sum(bool(calls) for calls in entry["ground_truth"]) for entry in entries]
    expected = sum((1 - haste) ** count for count in turns) / len(turns)
    assert whole == pytest.approx(expected, abs=0.08)
