"""A small note-taking MCP server on standard input and output, as anyone would write one: nothing in it knows of training.

Run it by itself with `python envs/notes/server.py`, or give it to any MCP client.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mcp.server.fastmcp import FastMCP
from mcp.server.fastmcp.exceptions import ToolError

server = FastMCP("notes")


@dataclass
class Note:
    """One note and its tags."""

    text: str
    tags: list[str] = field(default_factory=list)


notes: dict[str, Note] = {}


def _note(title: str) -> Note:
    if title not in notes:
        raise ToolError(f"there is no note called {title!r}")
    return notes[title]


@server.tool()
def create_note(title: str, text: str) -> str:
    """Write a new note under a title that is not taken."""
    if title in notes:
        raise ToolError(f"there is a note called {title!r} already; use append_note to add to it")
    notes[title] = Note(text)
    return f"created {title!r}"


@server.tool()
def append_note(title: str, text: str) -> str:
    """Add a line to a note."""
    note = _note(title)
    note.text += f"\n{text}"
    return f"added to {title!r}"


@server.tool()
def read_note(title: str) -> str:
    """Read a note."""
    return _note(title).text


@server.tool()
def tag_note(title: str, tag: str) -> str:
    """Tag a note."""
    note = _note(title)
    if tag not in note.tags:
        note.tags.append(tag)
    return f"{title!r} is tagged {', '.join(note.tags)}"


@server.tool()
def list_notes(tag: str | None = None) -> dict[str, list[str]]:
    """List the titles of all notes, or of those with a tag, and the tags of each."""
    return {title: note.tags for title, note in sorted(notes.items()) if tag is None or tag in note.tags}


@server.tool()
def delete_note(title: str) -> str:
    """Delete a note."""
    _note(title)
    del notes[title]
    return f"deleted {title!r}"


if __name__ == "__main__":
    server.run()
