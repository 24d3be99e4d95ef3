"""The environment file that `turngrad.pool` serves for `--mcp`: which server and which tasks stand in TURNGRAD_MCP.

They come by the process's environment and not by a task's arguments, so that nobody who can reach the server's port can
name a command to start.
"""

import os
import sys

from turngrad.envkit import environment
from turngrad.mcp_world.connection import SharedConnection
from turngrad.mcp_world.graders import load_function
from turngrad.mcp_world.server import ENVIRONMENT, VARIABLE, Served
from turngrad.mcp_world.tasks import PythonGrader, load_mcp_tasks
from turngrad.mcp_world.world import McpWorld

served = Served.model_validate_json(os.environ[VARIABLE])
tasks = {task.id: task for task in load_mcp_tasks(served.tasks_file)}
# The user's grading functions stand beside the tasks; one that is missing is missed now.
sys.path.insert(0, str(served.tasks_file.parent))
for task in tasks.values():
    for grader in task.graders():
        if isinstance(grader, PythonGrader):
            load_function(grader.function)


class Play(McpWorld):
    """A task of the tasks file."""

    server = served.server
    by_id = tasks
    shared = SharedConnection(served.server) if served.server.shared else None
    call_timeout = served.server.call_timeout


env = environment(ENVIRONMENT, play=Play)


@env.shutdown
async def stop() -> None:
    if Play.shared is not None:
        await Play.shared.close()
