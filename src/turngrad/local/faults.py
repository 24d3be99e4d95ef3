"""Faults on demand, for tests of what happens when the service misbehaves. Off unless the server is given `--faults`.

In: rules, from the file or from POST /faults. Out: at most one fault per request. A rule is
`{"match": "completions", "action": "status", "status": 503, "skip": 1, "times": 2, "seconds": 0.5, "headers": {}}`: of the
requests whose path ends in `match`, pass `skip`, then break `times`, each after a wait of `seconds`. Actions:
    status         answer with `status` and `headers` instead of doing anything
    drop           close the connection without a byte
    lose           do the work, then close the connection without a byte: the answer is lost
    truncate       send half of the answer, then close the connection
    null_logprobs  a completion whose logprobs are null
    delay          only the wait
    die            end the process at once, as kill -9 would
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from turngrad.local.transport import Send

Action = Literal["status", "drop", "lose", "truncate", "null_logprobs", "delay", "die"]


class Dropped(Exception):
    """The fault has closed the connection: there is nobody left to answer."""


@dataclass(slots=True)
class Rule:
    """One rule; `skip` and `times` count down."""

    match: str
    action: Action
    status: int = 503
    skip: int = 0
    times: int = 1
    seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise ValueError(f"fault action {self.action!r} is not one of {', '.join(get_args(Action))}")


class Faults:
    """The rules in force."""

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = rules

    @classmethod
    def read(cls, path: Path) -> Faults:
        """Rules of a JSON list. Raises ValueError where it is not one."""
        return cls(parse_rules(json.loads(path.read_text(encoding="utf-8"))))

    def take(self, path: str) -> Rule | None:
        """The rule that breaks this request, counted down; None lets it pass."""
        for rule in self.rules:
            if path.endswith(rule.match) and rule.times:
                if rule.skip:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                return rule
        return None


def parse_rules(content: Any) -> list[Rule]:
    """A JSON list of rules. Raises ValueError."""
    try:
        return [Rule(**item) for item in content]
    except TypeError as error:
        raise ValueError(f"faults must be a list of rules with {', '.join(Rule.__slots__)}: {error}") from error


async def before(rule: Rule, send: Send) -> None:
    """What a rule does before the request is handled. Raises Dropped."""
    if rule.seconds:
        await asyncio.sleep(rule.seconds)
    if rule.action == "die":
        os._exit(9)
    if rule.action == "drop":
        _hang_up(send)
        raise Dropped


def broken(rule: Rule, send: Send) -> Send:
    """`send`, as it is for a request under this rule."""
    if rule.action not in ("lose", "truncate"):
        return send

    async def faulty(message: dict[str, Any]) -> None:
        if rule.action == "truncate" and message["type"] == "http.response.start":
            await send(message)
            return
        if rule.action == "truncate":
            body = message.get("body", b"")
            await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
            # Let what was sent reach the socket before it closes.
            await asyncio.sleep(0.05)
        _hang_up(send)
        raise Dropped

    return faulty


def _hang_up(send: Send) -> None:
    """Closes the connection at once. ASGI has no word for that, so this reaches uvicorn's own object for the request."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is None:
        raise RuntimeError("faults that close connections need uvicorn's h11 or httptools server")
    transport.abort()
