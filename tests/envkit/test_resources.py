"""Whose failure it is: the call's that asked for too much, or the process's that has nothing left."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

import pytest

from turngrad.envkit import resources
from turngrad.envkit.live import Episodes
from turngrad.envkit.resources import exhausted
from turngrad.envkit.world import Call, Tool, ToolError, World, WorldLost


def test_an_error_of_the_calls_own_is_no_exhaustion() -> None:
    for error in (
        MemoryError(),
        OSError(errno.EMFILE, "too many"),
        OSError(errno.ENOENT, "none"),
        RuntimeError("no"),
        ToolError("x"),
    ):
        assert exhausted(error) is None


def test_file_handles_are_out_when_none_can_be_had() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as raised:
            taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(10_000))
        assert exhausted(raised.value) == "file handles"
    finally:
        for handle in taken:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert exhausted(raised.value) is None


def test_memory_is_out_when_others_hold_it_and_not_when_the_failed_call_did() -> None:
    program = """
import resource, runpy, sys
exhausted = runpy.run_path(sys.argv[1])["exhausted"]

def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def greedy(held):
    while True:
        held.append(bytearray(2**20))

resource.setrlimit(resource.RLIMIT_AS, (size() + 2**28, -1))
kept = []
for lasting in (False, True):
    try:
        greedy(kept if lasting else [])
    except MemoryError as error:
        print(exhausted(error))
"""
    command = [sys.executable, "-c", program, resources.__file__]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["None", "memory"]


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
