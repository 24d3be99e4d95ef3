"""Calls in child processes with limits."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turngrad.envkit import Guard, GuardStopped

SOURCE = """
import os, time
calls = 0
def work(kind, value):
    global calls
    calls += 1
    if kind == "power":
        return len(str(9 ** value % 10 ** 50))
    if kind == "sleep":
        time.sleep(value)
    if kind == "memory":
        return len(bytearray(value * 2**20))
    if kind == "raise":
        raise KeyError(value)
    if kind == "print":
        print(value); os.write(1, b"noise"); return os.read(0, 10).decode()
    if kind == "exit":
        os._exit(3)
    return [os.getpid(), calls]
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(SOURCE)
    return path


def test_calls_share_a_warm_child(source: Path) -> None:
    guard = Guard(source, "work")
    first, second = guard.call("id", 0), guard.call("id", 0)
    assert first[0] == second[0] != os.getpid()
    assert (first[1], second[1]) == (1, 2)
    guard.close()


@pytest.mark.parametrize(("kind", "value"), [("power", 10**9), ("memory", 4000), ("exit", 0)])
def test_a_call_over_its_limits_is_stopped_and_the_next_gets_a_new_child(source: Path, kind: str, value: int) -> None:
    guard = Guard(source, "work", cpu_seconds=0.5, memory_mb=512)
    before = guard.call("id", 0)[0]
    with pytest.raises((GuardStopped, RuntimeError), match=r"stopped: more than 0\.5 s|MemoryError"):
        guard.call(kind, value)
    assert guard.call("id", 0)[1] >= 1
    assert kind == "memory" or guard.call("id", 0)[0] != before
    guard.close()


def test_a_sleep_is_stopped_by_the_wall_clock(source: Path) -> None:
    guard = Guard(source, "work", wall_seconds=0.5)
    with pytest.raises(GuardStopped):
        guard.call("sleep", 30)
    guard.close()


def test_an_exception_comes_back_in_words_and_keeps_the_child(source: Path) -> None:
    guard = Guard(source, "work")
    pid = guard.call("id", 0)[0]
    with pytest.raises(RuntimeError, match="KeyError: 5"):
        guard.call("raise", 5)
    assert guard.call("id", 0)[0] == pid
    guard.close()


def test_what_the_function_prints_or_reads_does_not_touch_the_protocol(source: Path) -> None:
    guard = Guard(source, "work")
    assert guard.call("print", "hello") == ""
    assert guard.call("id", 0)[1] == 2
    guard.close()


def test_a_stuck_call_does_not_hold_up_others(source: Path) -> None:
    guard = Guard(source, "work", cpu_seconds=3, workers=2)
    with ThreadPoolExecutor() as threads:
        stuck = threads.submit(guard.call, "power", 10**9)
        time.sleep(0.3)
        assert guard.call("id", 0)[1] == 1
        assert not stuck.done()
        with pytest.raises(GuardStopped):
            stuck.result()
    guard.close()


def test_children_end_with_a_killed_parent(source: Path) -> None:
    code = f"""
import pathlib, time
from turngrad.envkit.guard import Guard
guard = Guard(pathlib.Path({str(source)!r}), "work")
print(guard.call("id", 0)[0], flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
