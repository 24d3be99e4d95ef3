"""A task played by its ground truth: the messages that a perfect policy would leave behind, or a hasty one.

In: an entry with structured ground truth. Out: its tools and chat messages, one call per assistant message, the results as
the backends give them, and an empty assistant message where a turn has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .world import World, tool_names

CLOSING = ""
"""What the policy says when a turn is done: nothing, so that it costs one token."""


def play(
    entry: dict[str, Any], made: Callable[[int], int] = lambda calls: calls
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(tools, messages) of `entry` in OpenAI's shapes. Tools carry their names only.

    `made` says how many of a turn's calls are made before the policy takes the turn for done. Where that is not all of them
    the episode ends with the turn, since a grader would end it there.
    """
    world = World(entry["involved_classes"], entry["initial_config"])
    messages: list[dict[str, Any]] = []
    for requests, calls in zip(entry["question"], entry["ground_truth"], strict=True):
        messages.extend(requests)
        done = made(len(calls))
        for call in calls[:done]:
            messages.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]})
            messages.append({"role": "tool", "content": world.call(call["name"], call["arguments"])})
        messages.append({"role": "assistant", "content": CLOSING})
        if done < len(calls):
            break
    return tools_of(entry), messages


def tools_of(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools of `entry` in the official order, by name only: all that the starter's renderer shows of them."""
    return [{"type": "function", "function": {"name": name}} for name in tool_names(entry["involved_classes"])]
