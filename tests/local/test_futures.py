"""Operations run once, in the client's order; results wait to be fetched."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngrad.local import futures as futures_module
from turngrad.local.futures import Futures, Sequencer


@given(order=st.permutations(range(1, 8)), repeats=st.lists(st.integers(1, 7), max_size=5))
def test_operations_run_once_and_in_order_however_they_arrive(order: list[int], repeats: list[int]) -> None:
    sequencer, ran = Sequencer(), []
    for seq_id in [*order, *repeats]:
        if sequencer.known(seq_id) is None:
            sequencer.add(seq_id, f"request-{seq_id}", lambda seq_id=seq_id: ran.append(seq_id))
        assert sequencer.known(seq_id) == f"request-{seq_id}"
    assert ran == [1, 2, 3, 4, 5, 6, 7]


def test_a_refused_operation_does_not_hold_up_the_next() -> None:
    sequencer, ran = Sequencer(), []
    sequencer.skip(1)
    sequencer.add(2, "two", lambda: ran.append(2))
    assert ran == [2]


def test_refusing_a_repeat_of_an_operation_that_waits_keeps_it() -> None:
    sequencer, ran = Sequencer(), []
    sequencer.add(2, "two", lambda: ran.append(2))
    sequencer.skip(2)
    sequencer.add(1, "one", lambda: ran.append(1))
    assert ran == [1, 2]


def test_an_operation_without_a_number_runs_at_once() -> None:
    sequencer, ran = Sequencer(), []
    sequencer.add(None, "unnumbered", lambda: ran.append("unnumbered"))
    assert ran == ["unnumbered"]


async def test_a_result_reaches_whoever_waits_and_whoever_asks_again() -> None:
    futures = Futures()
    request_id = futures.create()
    waiting = asyncio.create_task(futures.wait(request_id))
    await asyncio.sleep(0)
    await asyncio.to_thread(futures.finish_threadsafe, request_id, b"done")
    assert await waiting == b"done"
    assert await futures.wait(request_id) == b"done"


async def test_waiting_ends_without_a_result_after_the_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures_module, "POLL_SECONDS", 0.01)
    futures = Futures()
    request_id = futures.create()
    assert await futures.wait(request_id) is None
    futures.finish(request_id, b"late")
    assert await futures.wait(request_id) == b"late"


async def test_an_id_never_handed_out_is_an_error() -> None:
    with pytest.raises(KeyError):
        await Futures().wait("unknown")


async def test_a_fetched_result_is_forgotten_after_a_while_and_an_unfetched_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures_module, "_KEPT_SECONDS", 0.05)
    futures = Futures()
    ids = [futures.create() for _ in range(100)]
    for request_id in ids:
        futures.finish(request_id, request_id.encode())
    for _ in range(2):
        for request_id in ids[:98]:
            assert await futures.wait(request_id) == request_id.encode()
    await asyncio.sleep(0.1)
    assert await futures.wait(ids[98]) == ids[98].encode()
    with pytest.raises(KeyError):
        await futures.wait(ids[0])
    assert await futures.wait(ids[99]) == ids[99].encode()
