"""An MCP server that knows a secret and dies with it on its lips at the first call: `python echo_server.py`."""

import os
import sys

from mcp.server.fastmcp import FastMCP

server = FastMCP("echo", log_level="ERROR")


def _die() -> str:
    print(f"cannot log in with {os.environ['SHELF_TOKEN']} at {os.environ['SHELF_DSN']}", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def mkdir(dir_name: str) -> str:
    """Create a new directory."""
    return _die()


@server.tool()
def touch(file_name: str) -> str:
    """Create a new file."""
    return _die()


server.run()
