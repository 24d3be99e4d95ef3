"""Whose failure it is: the call's that asked for too much, or the process's that has nothing left."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from turngrad.envkit import resources
from turngrad.envkit.live import Episodes
from turngrad.envkit.resources import Shortage
from turngrad.envkit.world import Call, Tool, ToolError, World, WorldLost


def test_an_error_of_the_calls_own_is_no_shortage() -> None:
    for error in (MemoryError(), OSError(errno.ENOENT, "none"), RuntimeError("no"), ToolError("x")):
        assert Shortage().behind(error) is None


def test_no_file_handle_and_no_thread_is_the_processs_shortage() -> None:
    assert Shortage().behind(OSError(errno.EMFILE, "Too many open files")) == "file handles"
    assert Shortage().behind(RuntimeError("can't start new thread")) == "memory or threads"


def test_memory_is_short_while_it_is_held_and_for_those_who_report_a_little_late() -> None:
    program = """
import resource, runpy, sys
shortage = runpy.run_path(sys.argv[1])["Shortage"]()

def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def fill(held):
    while True:
        held.append(bytearray(2**20))

resource.setrlimit(resource.RLIMIT_AS, (size() + 2**28, -1))
try:
    bytearray(2**29)
except MemoryError as error:
    print(shortage.behind(error))
held = []
try:
    fill(held)
except MemoryError as error:
    print(shortage.behind(error))
held.clear()
print(shortage.behind(MemoryError()))
"""
    command = [sys.executable, "-c", program, resources.__file__]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["None", "memory", "memory"]


class Spent(World):
    """A tool that fails as it is told."""

    def turns(self):
        yield "go"

    def grade(self, answer: str) -> float:
        return 0.0

    def tools(self):
        return [Tool("work", "", {"type": "object"})]

    def call(self, call: Call) -> str:
        raise RuntimeError("can't start new thread")


async def test_a_call_that_fails_because_the_process_is_spent_voids_the_episode() -> None:
    episodes = Episodes(60)
    episode = await episodes.open(Spent, {})
    with pytest.raises(WorldLost, match="out of memory or threads"):
        await episode.answer(Call("1", "work", {}))
    await episodes.close_all()
