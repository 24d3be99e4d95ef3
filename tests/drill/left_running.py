"""That nothing is left running: every process that started below this one, its process group, and every port it listened on."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_LOOK_SECONDS = 0.25
_LISTEN = "0A"


@dataclass
class Started:
    """What was seen since: process ids with their start times, process groups, and ports; `before` is none of its business."""

    before: set[tuple[int, str]] = field(default_factory=set)
    processes: set[tuple[int, str]] = field(default_factory=set)
    groups: set[int] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)

    def look(self) -> None:
        for pid, parent_line in _below(os.getpid()).items():
            if (pid, parent_line) in self.before:
                continue
            if (pid, parent_line) not in self.processes:
                self.processes.add((pid, parent_line))
                with suppress(ProcessLookupError):
                    self.groups.add(os.getpgid(pid))
            self.ports |= _listening(pid)

    def remains(self) -> list[str]:
        """What is still there, in words."""
        own = os.getpgid(0)
        living = [f"process {pid}" for pid, started in self.processes if _start(pid) == started]
        grouped = [f"group {group}" for group in self.groups if group != own and _has_members(group)]
        return [*living, *grouped, *(f"port {port}" for port in self.ports if _answers(port))]


@contextmanager
def nothing_left(within: float = 10.0) -> Iterator[Started]:
    """Watch what the block starts; at its end all of it must be gone `within` that many seconds."""
    started = Started(before=set(_below(os.getpid()).items()))
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_LOOK_SECONDS):
            started.look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield started
        started.look()
    finally:
        stop.set()
        watcher.join()
    deadline = time.monotonic() + within
    while (remains := started.remains()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not remains, f"left running: {', '.join(remains)}"


def alive(pid: int) -> bool:
    return _start(pid) is not None


def _below(root: int) -> dict[int, str]:
    """The living processes below `root`: when each started, by its id."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            children.setdefault(int(entry.read_text().rpartition(")")[2].split()[1]), []).append(int(entry.parent.name))
    found, pending = [], [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return {pid: start for pid in found if (start := _start(pid)) is not None}


def _start(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None for none and for a zombie. Ids are used again, these pairs are not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _has_members(group: int) -> bool:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                return True
    return False


def _listening(pid: int) -> set[int]:
    inodes = set()
    with suppress(OSError):
        for handle in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                inodes.add(os.readlink(f"/proc/{pid}/fd/{handle}").removeprefix("socket:[").removesuffix("]"))
    ports = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                ports.add(int(fields[1].partition(":")[2], 16))
    return ports


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
