"""Server processes: leased, watched, replaced, never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hud.eval import Task, rollout
from hud.eval.run import Run

from tests.players import Mcp, Player
from turngrad.pool import PoolError, ServerPool

ENV = Path(__file__).parent / "envkit" / "bank.py"
ROOT = Path(__file__).parents[1]
SERVER = """
import os, sys, time
from hud.environment import Environment
{0}
env = Environment(name="odd")
@env.template(id="odd")
async def odd():
    {1}
    yield "prompt"
    yield 1.0
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


def odd(tmp_path: Path, at_import: str = "", in_task: str = "pass") -> Path:
    path = tmp_path / "odd_env.py"
    path.write_text(SERVER.format(at_import, in_task))
    return path


async def play(pool: ServerPool, script: Any) -> Run:
    task = Task(env="bank", id="bank", args={"start": 0, "amounts": [1]})
    return await rollout(task, Player(script), runtime=pool, rollout_timeout=60)


async def pay(mcp: Mcp, run: Run) -> str:
    return await mcp.call("pay_in", {"amount": 1})


async def test_warm_servers_are_shared_out_and_end_with_the_pool() -> None:
    async with ServerPool(ENV, procs=2, width=4) as pool:
        await pool.warm()
        pids = pool.pids
        assert len(set(pids)) == 2
        used: list[str] = []

        async def script(mcp: Mcp, run: Run) -> str:
            used.append(run.runtime or "")
            await asyncio.sleep(0.3)
            return await pay(mcp, run)

        runs = await asyncio.gather(*(play(pool, script) for _ in range(8)))
        assert [run.reward for run in runs] == [1.0] * 8
        assert sorted(used.count(url) for url in set(used)) == [4, 4]
    assert gone(pids, 1)


async def test_a_lease_beyond_the_width_waits_for_a_free_place() -> None:
    task = Task(env="bank", id="bank", args={})
    async with ServerPool(ENV, width=1) as pool:
        async with pool(task):
            second = asyncio.create_task(pool(task).__aenter__())
            await asyncio.sleep(0.2)
            assert not second.done()
        runtime = await asyncio.wait_for(second, 1)
        assert runtime.url.startswith("tcp://127.0.0.1:")


async def test_a_killed_server_costs_its_own_rollouts_and_is_back_within_five_seconds() -> None:
    async with ServerPool(ENV) as pool:
        await pool.warm()
        (pid,) = pool.pids

        async def killer(mcp: Mcp, run: Run) -> str:
            os.kill(pid, signal.SIGKILL)
            return await pay(mcp, run)

        lost = await play(pool, killer)
        started = time.monotonic()
        run = await play(pool, pay)
        # 5 s on a quiet machine, nearly all of it hud's import; more where other work shares the processors.
        assert time.monotonic() - started < 5 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        assert lost.grade.is_error
        assert (run.trace.error, run.reward) == (None, 1.0)
        assert pool.replaced == 1
        assert pool.pids != [pid]


async def test_a_server_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngrad.server_process.PING_SECONDS", 0.2)
    source = odd(tmp_path, in_task="time.sleep(300)")
    async with ServerPool(source, hang_seconds=4) as pool:
        await pool.warm()
        (pid,) = pool.pids
        run = await rollout(Task(env="odd", id="odd"), Player(pay), runtime=pool, rollout_timeout=30)
        assert run.grade.is_error
        assert gone([pid], 10)
        await pool.warm()
        assert pool.replaced >= 1


async def test_a_file_that_does_not_load_is_refused_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngrad.pool.START_ATTEMPTS", 1)
    async with ServerPool(odd(tmp_path, at_import="import no_such_module")) as pool:
        with pytest.raises(PoolError, match="No module named 'no_such_module'"):
            await pool.warm()
        with pytest.raises(PoolError, match="No module named 'no_such_module'"):
            async with pool(Task(env="odd", id="odd")):
                pass


async def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngrad.pool.START_ATTEMPTS", 1)
    async with ServerPool(odd(tmp_path, at_import="bytearray(3 * 2**30)"), memory_mb=2048) as pool:
        with pytest.raises(PoolError, match="MemoryError"):
            await pool.warm()


async def test_what_a_server_prints_stays_out_of_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with ServerPool(odd(tmp_path, at_import="print('to stdout'); print('to stderr', file=sys.stderr)")) as pool:
        await pool.warm()
    captured = capfd.readouterr()
    assert "to std" not in captured.out + captured.err


async def test_a_closed_pool_and_a_task_with_its_own_runtime_are_refused() -> None:
    pool = ServerPool(ENV)
    with pytest.raises(PoolError, match="closed"):
        async with pool(Task(env="bank", id="bank")):
            pass
    with pytest.raises(FileNotFoundError, match="no environment file"):
        ServerPool("nowhere.py")
    with pytest.raises(ValueError, match="at least one"):
        ServerPool(ENV, procs=0)


async def test_a_pool_that_closes_while_it_starts_leaves_no_process() -> None:
    def servers() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes()
            except OSError:
                continue
            # Of this file's environment: a fixture of the whole session may keep a pool of another.
            if all(part in command for part in (b"server_child.py", str(os.getpid()).encode(), str(ENV).encode())):
                found.append(int(path.parent.name))
        return found

    for pause in (0, 0, 0.001, 0.01, 0.1):
        async with ServerPool(ENV, procs=3):
            await asyncio.sleep(pause)
    assert gone(servers(), 5)
    async with ServerPool(ENV) as pool:
        await pool.warm()
        assert servers() == pool.pids


def parent(body: str) -> subprocess.Popen[str]:
    code = f"""
import asyncio, threading, time
from turngrad.pool import ServerPool
async def serve(seconds):
    pool = await ServerPool({str(ENV)!r}).__aenter__()
    await pool.warm()
    print(*pool.pids, flush=True)
    await asyncio.sleep(seconds)
{body}
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_servers_die_with_a_killed_parent(how: signal.Signals) -> None:
    with parent("asyncio.run(serve(60))") as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert pids
        process.send_signal(how)
    assert gone(pids, 5)


def test_servers_started_from_a_side_thread_outlive_the_thread_and_not_the_program() -> None:
    body = """
thread = threading.Thread(target=lambda: asyncio.new_event_loop().run_until_complete(serve(0)))
thread.start(); thread.join()
time.sleep(60)
"""
    with parent(body) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        time.sleep(1)
        assert all(map(alive, pids))
        process.kill()
    assert gone(pids, 5)


def test_nothing_of_the_pool_needs_the_main_thread() -> None:
    outcome: list[float] = []

    async def one() -> None:
        async with ServerPool(ENV) as pool:
            outcome.append((await play(pool, pay)).reward)

    thread = threading.Thread(target=lambda: asyncio.run(one()))
    thread.start()
    thread.join()
    assert outcome == [1.0]
