"""An MCP server that makes folders, and dies with its secrets on its lips where a file is asked for: `python echo_server.py`."""

import os
import sys

from mcp.server.fastmcp import FastMCP

server = FastMCP("echo", log_level="ERROR")


@server.tool()
def mkdir(dir_name: str) -> str:
    """Create a new directory."""
    return f"created {dir_name}"


@server.tool()
def touch(file_name: str) -> str:
    """Create a new empty file."""
    print(f"cannot log in with {os.environ['SHELF_TOKEN']} at {os.environ['SHELF_DSN']}", file=sys.stderr, flush=True)
    os._exit(3)


server.run()
