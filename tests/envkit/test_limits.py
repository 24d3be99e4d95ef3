"""Threads that can be stopped."""

import asyncio
import threading
import time

import pytest

from turngrad.envkit import limits
from turngrad.envkit.limits import StuckError, in_thread


async def test_a_result_and_an_exception_come_back() -> None:
    assert await in_thread(divmod, 7, 2, seconds=5) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0, seconds=5)


async def test_a_loop_without_end_is_stopped_at_its_time_out() -> None:
    stopped = threading.Event()

    def spin() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            stopped.set()

    started = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        await in_thread(spin, seconds=0.2)
    assert time.monotonic() - started < 5.0
    assert not isinstance(caught.value, StuckError)
    assert stopped.is_set()


async def test_a_broad_except_does_not_save_a_runaway() -> None:
    def stubborn() -> None:
        while True:
            try:
                time.sleep(0.001)
            except Exception:
                continue

    with pytest.raises(TimeoutError):
        await in_thread(stubborn, seconds=0.1)


async def test_what_cannot_be_stopped_is_called_stuck_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_GRACE", 0.1)
    with pytest.raises(StuckError):
        await in_thread(time.sleep, 1.5, seconds=0.1)
    assert await in_thread(lambda: "next", seconds=5) == "next"


async def test_64_blocking_calls_do_not_queue_behind_each_other() -> None:
    started = time.monotonic()
    await asyncio.gather(*(in_thread(time.sleep, 0.3, seconds=5) for _ in range(64)))
    assert time.monotonic() - started < 10.0  # one after another they would take 19 s


async def test_stopping_hits_its_own_thread_alone_however_close_to_its_end() -> None:
    async def bystander() -> int:
        return await in_thread(sum, range(20_000), seconds=5)

    async def hurried(seconds: float) -> str:
        try:
            await in_thread(time.sleep, 0.01, seconds=seconds)
        except TimeoutError:
            return "stopped"
        return "returned"

    outcomes = []
    for round_ in range(20):
        stopped = [hurried(0.0095 + 0.0001 * (index + round_ % 3)) for index in range(10)]
        together = await asyncio.gather(*(bystander() for _ in range(10)), *stopped)
        assert set(together[:10]) == {199_990_000}
        outcomes += together[10:]
    assert set(outcomes) <= {"stopped", "returned"}


async def test_a_cancelled_caller_stops_its_call() -> None:
    stopped = threading.Event()

    def spin() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            stopped.set()

    task = asyncio.create_task(in_thread(spin, seconds=60))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(stopped.wait, 5)
