"""`--mcp` and `--tasks-file` become rows and a placement; the server is tried once before a run starts.

In: a config. Out: what `turngrad.tasksets` splits. Invariant: a server that does not start, a tool that a task names and the
server lacks, a grader that does not load are told before the first rollout.
"""

from __future__ import annotations

from pathlib import Path

from turngrad.config import TrainConfig
from turngrad.envkit.world import Tool, WorldLost
from turngrad.errors import UserError
from turngrad.mcp_world.connection import Connection
from turngrad.mcp_world.server import ENVIRONMENT, TEMPLATE, VARIABLE, McpServer, Served, server_from_flags
from turngrad.mcp_world.tasks import McpTask, load_mcp_tasks
from turngrad.runtimes import Placement
from turngrad.task_files import Loaded
from turngrad.tasksets import TaskRow

_ENV_FILE = Path(__file__).with_name("env.py")
_SHARE_OF_TIMEOUT = 0.9
"""The world gives a call up before its client does, so that it can say so."""


def load_mcp(config: TrainConfig) -> Loaded:
    """The tasks and the placement of `--mcp`.

    Raises:
        UserError: a flag or a line of the tasks file that cannot be read.
    """
    assert config.mcp is not None
    assert config.tasks_file is not None
    served = Served(server=server_of(config), tasks_file=config.tasks_file)
    tasks = load_mcp_tasks(config.tasks_file)
    rows = [
        TaskRow(task.id, ENVIRONMENT, TEMPLATE, {"task": task.id}, task.scenario or task.id, task.situation) for task in tasks
    ]
    placement = Placement(
        "pool",
        env_file=_ENV_FILE,
        env=ENVIRONMENT,
        env_vars={VARIABLE: served.model_dump_json()},
        # The limit would be the server's too, and node reserves more address space than it will ever use.
        limit_memory=False,
        before=lambda: attempt(served.server, tasks),
    )
    return Loaded(config.taskset, rows, placement, has_tools=True)


def server_of(config: TrainConfig) -> McpServer:
    """The server of a config with `mcp`."""
    return server_from_flags(
        config.mcp or "",
        headers=config.mcp_header,
        variables=config.mcp_env,
        files=config.mcp_files,
        shared=config.mcp_shared,
        call_timeout=config.tool_timeout * _SHARE_OF_TIMEOUT,
    )


async def attempt(server: McpServer, tasks: list[McpTask]) -> list[Tool]:
    """Start the server once, which also lets uvx or npx download it once; its tools.

    Raises:
        UserError: a server that fails, lists no tools, or lacks one that a task's set-up or grader calls.
    """
    try:
        connection = await Connection.open(server)
    except WorldLost as error:
        raise UserError(f"--mcp: {error}") from error
    tools = connection.tools
    await connection.close()
    if not tools:
        raise UserError(f"--mcp: the server {server.name} lists no tools")
    names = {tool.name for tool in tools}
    for task in tasks:
        for name in task.tools_called():
            if name not in names:
                raise UserError(f"task {task.id!r} calls {name!r}, the server {server.name} has {', '.join(sorted(names))}")
    return tools
