"""Which MCP server: a command or a URL, as flags say it, and as it travels to the environment's own process.

Invariant: no secret stands in a flag, a run folder or a server's environment unless the user put it there by name.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from mcp.client.stdio import get_default_environment
from pydantic import BaseModel, ConfigDict

from turngrad.errors import UserError
from turngrad.redaction import keep_secret

ENVIRONMENT, TEMPLATE = "mcp", "play"
VARIABLE = "TURNGRAD_MCP"
WORKDIR = "{workdir}"
"""Stands for the fresh folder that a server process is started in."""
_REFERENCE = re.compile(r"\$\{(\w+)\}")
_PASSED_ON = re.compile(r"(UV|NPM|NODE|PIP|SSL|XDG|LC|NIX)_.*|npm_config_.*|LANG|TZ|TMPDIR|.*_PROXY|.*_proxy")
"""What starters such as uvx and npx need beside the MCP SDK's own safe list."""


class McpServer(BaseModel):
    """A server to start (`command`) or to connect to (`url`).

    `variables` are added to the command's environment and `headers` to every request; `${NAME}` in their values stands for
    an environment variable. `files` is a folder copied into every process's own. `call_timeout` is in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: tuple[str, ...] = ()
    url: str | None = None
    headers: dict[str, str] = {}
    variables: dict[str, str] = {}
    files: Path | None = None
    shared: bool = False
    call_timeout: float = 60.0

    @property
    def name(self) -> str:
        """What errors call it."""
        return repr(self.url or shlex.join(self.command))

    def environment(self, workdir: str) -> dict[str, str]:
        """The environment of the command: what is harmless of this process's, and what the user named."""
        passed = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
        named = {name: expand(value).replace(WORKDIR, workdir) for name, value in self.variables.items()}
        environment = get_default_environment()
        # `python server.py` is this Python, whether or not its folder was put on the path by `uv run`.
        environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment.get("PATH", os.defpath)])
        return {**environment, **passed, **named}

    def request_headers(self) -> dict[str, str]:
        return {name: expand(value) for name, value in self.headers.items()}


class Served(BaseModel):
    """What the environment's own process is told, in its variable `VARIABLE`."""

    model_config = ConfigDict(frozen=True)

    server: McpServer
    tasks_file: Path


def server_from_flags(
    mcp: str,
    *,
    headers: tuple[str, ...] = (),
    variables: tuple[str, ...] = (),
    files: Path | None = None,
    shared: bool = False,
    call_timeout: float = 60.0,
) -> McpServer:
    """The server that `--mcp` and its companions name. A command is split as a shell would, but no shell runs it.

    Raises:
        UserError: naming the flag that cannot be read.
    """
    if files is not None and not files.is_dir():
        raise UserError(f"--mcp-files {files}: there is no such folder")
    common: dict[str, Any] = {"call_timeout": call_timeout, "shared": shared}
    if mcp.startswith(("http://", "https://")):
        pairs = [_pair("--mcp-header", header, ":", "'Name: value'") for header in headers]
        _keep(pairs)
        return McpServer(url=mcp, headers=dict(pairs), **common)
    try:
        words = shlex.split(mcp)
    except ValueError as error:
        raise UserError(f"--mcp {mcp!r} cannot be split into words: {error}") from error
    if not words:
        raise UserError("--mcp is empty; give a command such as 'uvx mcp-server-time', or an https:// URL")
    named = {word: f"${{{word}}}" for word in variables if "=" not in word}
    pairs = [_pair("--mcp-env", word, "=", "NAME=value") for word in variables if "=" in word]
    _keep(pairs)
    for value in named.values():
        expand(value)
    resolved = files.resolve() if files is not None else None
    return McpServer(command=tuple(map(_absolute, words)), variables={**named, **dict(pairs)}, files=resolved, **common)


def expand(text: str) -> str:
    """The text with `${NAME}` replaced by that environment variable. Raises UserError for one that is not set."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise UserError(f"the environment variable {match[1]} is not set; --mcp-header or --mcp-env asks for it")
        return os.environ[match[1]]

    return _REFERENCE.sub(value, text)


def _absolute(word: str) -> str:
    """A server starts in a folder of its own: a file named relative to this one must be found from there. Links stay links."""
    return os.path.abspath(word) if ("/" in word or "." in word) and Path(word).exists() else word


def _pair(flag: str, text: str, separator: str, form: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        # Not what was found: it may be a key.
        raise UserError(f"{flag}: expected {form}; one has no {separator!r} after a name")
    return name.strip(), value.strip()


def _keep(pairs: list[tuple[str, str]]) -> None:
    """Keep what these flags say out of everything the run prints and writes. Raises UserError for a variable that is not set."""
    for name, value in pairs:
        keep_secret(name, expand(value))
