"""Ground truth replayed over MCP earns everything, silence earns nothing."""

import asyncio

import pytest
from bfcl_data import CATEGORIES, load_category

from tests.envs.bfcl_scripts import play, truth
from turngrad.pool import ServerPool

SAMPLE = range(3, 200, 20)
pytestmark = pytest.mark.asyncio(loop_scope="session")


async def check_category(pool: ServerPool, category: str, scenarios: range) -> None:
    entries = [load_category(category)[scenario] for scenario in scenarios]
    right = await asyncio.gather(*(play(pool, entry, truth(entry)) for entry in entries))
    silent = await asyncio.gather(*(play(pool, entry, [[] for _ in entry.turns]) for entry in entries))
    assert [run.slug for run in right if run.reward != 1.0 or not run.grade.info["strict"]] == []
    assert {run.grade.info["passed_turns"] == len(entry.turns) for run, entry in zip(right, entries, strict=True)} == {True}
    assert {run.reward for run in silent} == {0.0}
    assert {run.trace.error for run in [*right, *silent]} == {None}


@pytest.mark.parametrize("category", CATEGORIES)
async def test_ground_truth_earns_one_and_silence_zero_on_a_sample(bfcl_pool: ServerPool, category: str) -> None:
    await check_category(bfcl_pool, category, SAMPLE)


@pytest.mark.full
@pytest.mark.parametrize("category", CATEGORIES)
async def test_ground_truth_earns_one_and_silence_zero_on_all_entries(bfcl_pool: ServerPool, category: str) -> None:
    await check_category(bfcl_pool, category, range(200))


async def test_the_entry_whose_truth_needs_a_held_out_function_can_be_passed(bfcl_pool: ServerPool) -> None:
    entry = load_category("miss_func")[49]
    run = await play(bfcl_pool, entry, truth(entry))
    assert run.reward == 1.0
