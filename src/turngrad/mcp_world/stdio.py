"""MCP over a command's standard input and output, the command on a leash.

In: a server with a command. Out: the pair of streams that an `mcp.ClientSession` speaks over, and the command's last words.
Invariants: the process, all it started and its folder are gone when the context ends, and when this process dies however
it dies (C12); nothing the server prints reaches the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage
from pydantic import ValidationError

from turngrad.mcp_http import Streams
from turngrad.mcp_world.server import WORKDIR, McpServer

CLOSE_SECONDS = 1.0
"""What a server gets to end by itself when its input closes."""
MAX_LINE_BYTES = 64 * 1024 * 1024
_LAST_WORDS = 20
_LEASH = Path(__file__).with_name("leash.py")


class Process:
    """A server's process: the folder it started in, how it ended, what it said last on standard error."""

    def __init__(self, process: asyncio.subprocess.Process, workdir: str) -> None:
        self.workdir = workdir
        self._process = process
        self._words: deque[str] = deque(maxlen=_LAST_WORDS)

    @property
    def pid(self) -> int:
        """Of the leash, whose child the command is."""
        return self._process.pid

    async def obituary(self) -> str:
        """How the process ended, once its input is closed or it has ended by itself."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._process.wait()
        status = self._process.returncode
        ended = "said nothing more" if status is None else f"ended with status {status}"
        return f"{ended}; its last words: {' / '.join(self._words) or '(none)'}"

    async def hear(self, stream: asyncio.StreamReader) -> None:
        """Keep the last lines of standard error."""
        while chunk := await stream.read(65536):
            self._words.extend(line[-500:] for line in chunk.decode("utf-8", "replace").splitlines() if line.strip())


@asynccontextmanager
async def stdio(server: McpServer) -> AsyncIterator[tuple[Streams, Process]]:
    """Start the command in a fresh folder. Enter and leave in one task, as anyio's streams want it."""
    workdir = await asyncio.to_thread(_fresh_folder, server.files)
    held, lifeline = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_LEASH), str(held), workdir),
            *(word.replace(WORKDIR, workdir) for word in server.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=workdir,
            env=server.environment(workdir),
            pass_fds=(held,),
            start_new_session=True,
            limit=MAX_LINE_BYTES,
        )
    except BaseException:
        os.close(lifeline)
        shutil.rmtree(workdir, ignore_errors=True)
        raise
    finally:
        os.close(held)
    watched = Process(process, workdir)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    hearing = asyncio.create_task(watched.hear(process.stderr))
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](64)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    listening = asyncio.create_task(_listen(process.stdout, incoming))
    speaking = asyncio.create_task(_speak(process.stdin, outgoing))
    try:
        yield (read, write), watched
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            os.close(lifeline)
            await process.wait()
            # What it said last is read before it is forgotten.
            await asyncio.wait({hearing}, timeout=0.5)
            for task in (hearing, listening, speaking):
                task.cancel()
            await asyncio.gather(hearing, listening, speaking, return_exceptions=True)
            for stream in (incoming, read, write, outgoing):
                stream.close()


async def _listen(output: asyncio.StreamReader, incoming: anyio.abc.ObjectSendStream[SessionMessage | Exception]) -> None:
    """Pass on each line that is a message; other lines are a server's chatter. The stream closes with the output."""
    async with incoming:
        with contextlib.suppress(ValueError, anyio.BrokenResourceError, ConnectionError):
            while line := await output.readline():
                try:
                    message = JSONRPCMessage.model_validate_json(line)
                except ValidationError:
                    continue
                await incoming.send(SessionMessage(message))


async def _speak(input_: asyncio.StreamWriter, outgoing: anyio.abc.ObjectReceiveStream[SessionMessage]) -> None:
    async with outgoing:
        with contextlib.suppress(ConnectionError):
            async for message in outgoing:
                input_.write(message.message.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n")
                await input_.drain()


def _fresh_folder(files: Path | None) -> str:
    folder = tempfile.mkdtemp(prefix="turngrad-mcp-")
    if files is not None:
        shutil.copytree(files, folder, dirs_exist_ok=True, symlinks=True)
    return folder
