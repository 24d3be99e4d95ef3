"""Environment servers broken in every way, under the real loop: each case says what must be lost, and measures it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.drill.accounts import MODEL, Bank, Played, Policy, open_bank, pay, play, two_turns
from tests.scripted import Line
from turngrad.episodes import Failure

KINDS = ["unheard", "lost", "half", "status", "garbage", "internal", "crossed"]


@pytest.fixture(autouse=True)
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngrad.server_process.PING_SECONDS", 0.3)


@pytest.mark.parametrize("retries", [1, pytest.param(0, marks=pytest.mark.long)])
async def test_requests_that_fail_at_random_cost_their_own_rollouts_and_teach_nothing(tmp_path: Path, retries: int) -> None:
    """Lost: a rollout whose every try met a fault, under its class, and nothing else."""
    async with open_bank(tmp_path, drill={"share": 0.05, "kinds": KINDS}) as bank:
        played = await play(bank, Policy(MODEL, two_turns), tasks=25, size=8, retries=retries)
        pids = bank.pool.pids
        assert bank.pool.replaced == 0
    played.check(25, 8)
    played.check_ledger(bank.notes("ledger"))
    faults = bank.notes("faults")
    assert set(faults) == set(KINDS)
    # A try ends at its first fault, and nothing but a fault ends one.
    assert dict(played.counts.failures) == {Failure.TOOL_SERVER.value: len(faults)}
    assert played.counts.started == 200 + (len(faults) - played.lost.total() if retries else 0)
    assert 20 < len(faults) < 90
    assert len(pids) == 1


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        (signal.SIGKILL, 5),
        pytest.param(signal.SIGSTOP, 8, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 5, marks=pytest.mark.long),
    ],
)
async def test_a_server_that_is_killed_or_frozen_is_replaced_and_its_rollouts_are_played_again(
    tmp_path: Path, how: signal.Signals, seconds: float
) -> None:
    """Lost: nothing."""
    async with open_bank(tmp_path, hang_seconds=2) as bank:
        played, back = await _struck(bank, how, after=20)
        assert bank.pool.replaced == 1
    played.check(2, 8)
    played.check_ledger(bank.notes("ledger"))
    assert played.lost.total() == 0
    assert set(played.counts.failures) <= {Failure.TOOL_SERVER.value, Failure.GRADER.value, Failure.PROVISION.value}
    # A try that finds the port refused before the pool knows of the death costs no sample: it is counted, and not bounded here.
    assert 1 <= sum(played.counts.failures.values()) - played.counts.failures[Failure.PROVISION.value] <= 16
    assert back < seconds * _load()


@pytest.mark.long
async def test_from_the_second_death_on_a_spare_takes_over_at_once(tmp_path: Path) -> None:
    """Lost: nothing."""
    async with open_bank(tmp_path) as bank:
        _, first = await _struck(bank, signal.SIGKILL, after=20)
        await asyncio.sleep(6 * _load())
        played, second = await _struck(bank, signal.SIGKILL, after=20)
    print(f"back after {first:.1f} s, with a spare {second:.1f} s")
    assert played.lost.total() == 0
    assert second < first / 2


async def _struck(bank: Bank, how: signal.Signals, *, after: int) -> tuple[Played, float]:
    """Sixteen rollouts whose server gets a signal at a sample; and how many seconds there was none to take its place."""
    (pid,) = bank.pool.pids
    back: list[float] = []

    async def strike(n: int) -> None:
        if n == after:
            os.kill(pid, how)
            returning.append(asyncio.create_task(_note_return(bank, pid, time.monotonic(), back)))

    returning: list[asyncio.Task[None]] = []
    played = await play(bank, Policy(MODEL, two_turns, before=strike), tasks=2, size=8)
    await asyncio.gather(*returning)
    return played, back[0]


@pytest.mark.long
async def test_a_server_out_of_file_handles_is_replaced_and_blames_no_policy(tmp_path: Path) -> None:
    """Lost: nothing; the tries that it could not serve are played again."""
    await _harmed(tmp_path, "handles", handles=60)


@pytest.mark.long
async def test_a_server_out_of_memory_is_replaced_and_blames_no_policy(tmp_path: Path) -> None:
    """Lost: nothing."""
    await _harmed(tmp_path, "memory")


async def _harmed(tmp_path: Path, harm: str, **drill: int) -> None:
    def script(n: int) -> list[Line]:
        return [pay("e0", 5, harm), "paid"] if n == 0 else two_turns(n)

    async with open_bank(tmp_path, drill=drill, hang_seconds=2, memory_mb=1536) as bank:
        (pid,) = bank.pool.pids
        played = await play(bank, Policy(MODEL, script), tasks=4, size=8, retries=2, concurrent=8)
        assert bank.pool.replaced == 1
        assert bank.pool.pids != [pid]
    played.check(4, 8)
    assert played.lost.total() == 0
    assert played.counts.failures[Failure.TOOL_SERVER.value] >= 1
    assert not any(call.is_error for episode in played.sound for call in episode.tool_calls)


@pytest.mark.long
async def test_a_call_that_asks_for_more_memory_than_there_is_fails_alone(tmp_path: Path) -> None:
    """Lost: nothing, and nothing is played again: the policy is told, as of any other mistake."""
    played = await _greedy(tmp_path, "huge")
    assert not played.counts.failures
    (greedy,) = [episode for episode in played.sound if len(list(episode.tool_calls)) == 3]
    assert [call.is_error for call in greedy.tool_calls] == [True, False, False]
    assert "MemoryError" in next(greedy.tool_calls).result


@pytest.mark.long
async def test_a_call_that_takes_all_memory_bit_by_bit_voids_the_tries_it_hit(tmp_path: Path) -> None:
    """Lost: nothing; its own try and those beside it are played again, on a new server; the others end where they are."""
    played = await _greedy(tmp_path, "greedy")
    assert set(played.counts.failures) == {Failure.TOOL_SERVER.value}
    assert not any(call.is_error for episode in played.sound for call in episode.tool_calls)


async def _greedy(tmp_path: Path, harm: str) -> Played:
    def script(n: int) -> list[Line]:
        return [pay("e0", 5, harm), *two_turns(0)] if n == 0 else two_turns(n)

    async with open_bank(tmp_path, memory_mb=1536) as bank:
        played = await play(bank, Policy(MODEL, script), tasks=2, size=8)
        assert bank.pool.replaced == (harm == "greedy")
    played.check(2, 8)
    assert played.lost.total() == 0
    return played


@pytest.mark.long
async def test_a_server_that_leaks_is_replaced_before_it_fails(tmp_path: Path) -> None:
    """Lost: nothing, and no try fails: the rollouts on the worn server end there while the next one starts."""
    async with open_bank(tmp_path, memory_mb=1536) as bank:
        played = await play(bank, Policy(MODEL, two_turns, before=_pause), tasks=4, size=8, concurrent=2, leak=64)
        assert bank.pool.replaced >= 1
    played.check(4, 8)
    assert not played.counts.failures


@pytest.mark.long
async def test_a_server_that_is_slow_to_start_is_waited_for(tmp_path: Path) -> None:
    """Lost: nothing."""
    async with open_bank(tmp_path, drill={"slow": 6.0}, warm=False) as bank:
        started = time.monotonic()
        played = await play(bank, Policy(MODEL, two_turns), tasks=2, size=4)
        assert time.monotonic() - started > 6
    played.check(2, 4)
    assert not played.counts.failures


@pytest.mark.long
async def test_a_server_killed_while_rollouts_start_on_it_holds_none_of_them_up(tmp_path: Path) -> None:
    """Lost: nothing. The moments are spread over the start of the rollouts, where hud's client connects and asks."""
    async with open_bank(tmp_path) as bank:
        for moment in (0.0, 0.01, 0.03, 0.1, 0.2):
            (pid,) = bank.pool.pids
            asyncio.get_running_loop().call_later(moment, os.kill, pid, signal.SIGKILL)
            started = time.monotonic()
            played = await play(bank, Policy(MODEL, two_turns), tasks=4, size=8, retries=2)
            assert time.monotonic() - started < 20 * _load()
            played.check(4, 8)
            assert played.lost.total() == 0
            while bank.pool.pids in ([], [pid]):
                await asyncio.sleep(0.1)


async def _note_return(bank: Bank, pid: int, struck: float, back: list[float]) -> None:
    while bank.pool.pids in ([], [pid]):
        await asyncio.sleep(0.02)
    back.append(time.monotonic() - struck)


async def _pause(n: int) -> None:
    await asyncio.sleep(0.3)


def _load() -> float:
    """How much longer work takes on this machine now than on a quiet one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
