"""World: what an environment's author writes; one instance is one episode.

An author subclasses `World` with state, tools, user turns and a grade; `environment` makes a hud environment of it. The
invariant the kit keeps in return: an instance is reached by its own episode alone, one call at a time, and every call
the policy makes names a tool the instance lists at that moment (C9).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turngrad.envkit.schema import bind_tools, validated

Messages = str | list[dict[str, Any]]
"""What the user says at the start of a turn: text, or messages of `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as the model sees it; `input_schema` is a JSON Schema of type object."""

    name: str
    description: str
    input_schema: dict[str, Any]

    def to_mcp(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "inputSchema": self.input_schema}


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the policy. `step` counts the assistant messages of the episode, where the client says so."""

    id: str
    name: str
    arguments: dict[str, Any]
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Grade:
    """The reward of an episode, finite, and what to report beside it (plain JSON)."""

    reward: float
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawResult:
    """A tool's answer in MCP's own shape, passed on as it is: content blocks of any kind, structured content, error flag."""

    content: list[dict[str, Any]]
    structured: dict[str, Any] | None = None
    is_error: bool = False


class WorldLost(Exception):
    """Raised by a tool when what the world stands on is gone, such as a server that died: the episode is void, not graded."""


class ToolError(Exception):
    """Raised by a tool to answer the call with this text, flagged as an error; the episode goes on."""


class World:
    """One episode: state in `self`, tools, user turns, a grade.

    The constructor's keyword arguments are the task's arguments (plain JSON). Methods may be plain or `async`: plain
    ones run in a thread of their own, so that they block no other episode, and are interrupted at `call_timeout`;
    `async` ones run on the server's event loop.
    """

    call_timeout: ClassVar[float] = 30.0
    """Seconds after which a tool call is stopped and answered with an error."""
    user_turns: bool = True
    """False when the user's turns do not arrive by themselves (a tool of the world's own brings them)."""
    over: bool = False
    """Set to True to end the episode early: the client is told with the next answer."""

    def turns(self) -> Iterator[Messages] | AsyncIterator[Messages]:
        """The user's side: a generator, one yield a turn; the first is the prompt.

        The code after a yield runs when the policy has ended that turn, or when the episode ends in it: the place to
        judge the turn. Returning ends the conversation.
        """
        raise NotImplementedError(f"{type(self).__name__} needs turns(): yield the prompt, then further user turns")

    def grade(self, answer: str) -> float | Grade | Awaitable[float | Grade]:
        """The reward; `answer` is the policy's last text."""
        raise NotImplementedError(f"{type(self).__name__} needs grade(): return a reward or a Grade")

    def tools(self) -> Sequence[Tool]:
        """The tools listed now; by default, every method marked `@tool`. May differ from turn to turn."""
        return [Tool(bound.name, bound.description, bound.input_schema) for bound in bind_tools(type(self)).values()]

    def call(self, call: Call) -> Any | Awaitable[Any]:
        """Execute one call: text, or a value to be shown as JSON; raise `ToolError` for an error text.

        By default the `@tool` method of that name, with arguments validated against its annotations.
        """
        bound = bind_tools(type(self)).get(call.name)
        if bound is None:
            raise ToolError(f"unknown tool {call.name!r}")
        try:
            arguments = validated(bound, call.arguments)
        except ValueError as error:
            raise ToolError(str(error)) from error
        return bound.function(self, **arguments)

    def unknown_tool(self, call: Call) -> str:
        """What a call of a tool that is not listed is told; it never reaches `call`."""
        return f"unknown tool {call.name!r}"

    def stopped(self, call: Call) -> str:
        """What a call that was stopped at `call_timeout` is told; what it did until then stays done."""
        return f"{call.name} was stopped after {self.call_timeout:g} s"

    def close(self) -> Awaitable[None] | None:
        """Free what the episode holds outside of memory; called once, whatever ended the episode."""
