"""Micro-batches cover every scored position once, and share a prefix only where nothing in it is scored."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turngrad.local.packing import MIN_SHARED, MicroBatch, pack


def unpacked(micro: MicroBatch, row: int, length: int) -> list[int]:
    """The tokens that row of the micro-batch stands for."""
    start = micro.prefix + row * micro.width
    return [*micro.tokens[: micro.prefix], *micro.tokens[start : start + length - micro.prefix]]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_datum_is_in_one_row_with_its_tokens_positions_and_scored_places(data: st.DataObject) -> None:
    heads = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=0, max_size=120), min_size=1, max_size=3))
    tokens, active = [], []
    for _ in range(data.draw(st.integers(1, 12))):
        head = data.draw(st.sampled_from(heads))
        ids = np.array(head + data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=40)), np.int64)
        tokens.append(ids)
        scored = np.zeros(len(ids), bool)
        first = data.draw(st.integers(0, len(ids) - 1))
        scored[first:] = data.draw(st.booleans())
        active.append(scored)
    batches = pack(tokens, active, token_budget=data.draw(st.sampled_from([64, 400, 8192])), logit_budget=10_000)
    assert sorted(member for micro in batches for member in micro.members) == list(range(len(tokens)))
    for micro in batches:
        assert micro.prefix == 0 or micro.prefix >= MIN_SHARED
        for row, member in enumerate(micro.members):
            n = int(np.flatnonzero(active[member])[-1]) + 1 if active[member].any() else 1
            assert unpacked(micro, row, n) == tokens[member][:n].tolist()
            of_row = micro.kept_row == row
            assert micro.kept_offset[of_row].tolist() == np.flatnonzero(active[member]).tolist()
            places = micro.keep[of_row]
            assert micro.positions[places].tolist() == micro.kept_offset[of_row].tolist()
            assert (places >= micro.prefix).all()
            assert micro.tokens[places].tolist() == tokens[member][micro.kept_offset[of_row]].tolist()


def test_budgets_bound_every_micro_batch_that_holds_more_than_one_datum() -> None:
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, 100, int(n)) for n in rng.integers(10, 300, 40)]
    active = [np.ones(len(t), bool) for t in tokens]
    for micro in pack(tokens, active, token_budget=1000, logit_budget=500):
        assert len(micro.members) == 1 or (len(micro.tokens) <= 1000 and len(micro.keep) <= 500)


def test_a_group_with_one_long_prompt_computes_it_once() -> None:
    rng = np.random.default_rng(1)
    prompt = rng.integers(0, 100, 400)
    tokens = [np.concatenate([prompt, rng.integers(100, 200, 30)]) for _ in range(8)]
    active = [np.arange(430) >= 400 for _ in tokens]
    [micro] = pack(tokens, active, token_budget=8192, logit_budget=10_000)
    assert micro.prefix == 400
    assert len(micro.tokens) == 400 + 8 * 32


def test_two_groups_with_different_prompts_are_not_mixed() -> None:
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, 100, 200), rng.integers(0, 100, 200)]
    tokens = [np.concatenate([prompts[i % 2], rng.integers(100, 200, 20)]) for i in range(8)]
    active = [np.arange(220) >= 200 for _ in tokens]
    batches = pack(tokens, active, token_budget=8192, logit_budget=10_000)
    assert sorted(micro.prefix for micro in batches) == [200, 200]
    assert {frozenset(m % 2 for m in micro.members) for micro in batches} == {frozenset({0}), frozenset({1})}
