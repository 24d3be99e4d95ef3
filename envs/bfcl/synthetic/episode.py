"""A task played by its ground truth: the messages that a perfect policy would leave behind.

In: an entry with structured ground truth. Out: its tools and chat messages, one call per assistant message, the results as
the backends give them, and an empty assistant message where a turn has nothing left to do.
"""

from __future__ import annotations

from typing import Any

from .world import World, tool_names

CLOSING = ""
"""What the policy says when a turn is done: nothing, so that it costs one token."""


def play(entry: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(tools, messages) of `entry` in OpenAI's shapes. Tools carry their names only."""
    world = World(entry["involved_classes"], entry["initial_config"])
    messages: list[dict[str, Any]] = []
    for requests, calls in zip(entry["question"], entry["ground_truth"], strict=True):
        messages.extend(requests)
        for call in calls:
            messages.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]})
            messages.append({"role": "tool", "content": world.call(call["name"], call["arguments"])})
        messages.append({"role": "assistant", "content": CLOSING})
    return tools_of(entry), messages


def tools_of(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools of `entry` in the official order, by name only: all that the starter's renderer shows of them."""
    return [{"type": "function", "function": {"name": name}} for name in tool_names(entry["involved_classes"])]
