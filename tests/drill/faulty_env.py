"""The environment of the drill: accounts that say whose they are, in a server that fails as it is told to.

The variable DRILL is JSON. `ledger`: a file that gets a line for every call that ran. `share`: of the requests to the endpoint,
how many fail, drawn by `seed`, each in one of the ways `kinds` and with a line in `faults`. `slow`: seconds that loading takes.
`handles`: the limit on file handles. What a call's `harm` names, the call does to the server.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Iterator
from typing import Any

from turngrad.envkit import Call, Grade, Tool, World, endpoint, environment

DRILL = json.loads(os.environ["DRILL"])
DRAW = random.Random(DRILL.get("seed", 0))
PAY_IN = Tool(
    "pay_in",
    "Pay an amount in.",
    {
        "type": "object",
        "properties": {"by": {"type": "string"}, "amount": {"type": "integer"}, "harm": {"type": "string"}},
        "required": ["by"],
    },
)
kept: list[Any] = []


class Account(World):
    """The user wants amounts paid in. Every call names its episode; the grade tells all the names this account has seen."""

    def __init__(self, amounts: list[int], leak: int = 0) -> None:
        self.balance = 0
        self.amounts = amounts
        self.right: list[bool] = []
        self.seen: set[str] = set()
        kept.append(bytearray(leak * 2**20))

    def tools(self) -> list[Tool]:
        return [PAY_IN]

    def call(self, call: Call) -> str:
        by = call.arguments["by"]
        self.seen.add(by)
        _note(DRILL["ledger"], f"{by} {call.id}")
        if (harm := call.arguments.get("harm")) is not None:
            _do(harm)
        self.balance += call.arguments.get("amount", 0)
        return f"{by} has {self.balance}"

    def turns(self) -> Iterator[str]:
        total = 0
        for amount in self.amounts:
            yield f"Pay in {amount}."
            total += amount
            self.right.append(self.balance == total)

    def grade(self, answer: str) -> Grade:
        return Grade(sum(self.right) / len(self.amounts), {"seen": sorted(self.seen)})


def _do(harm: str) -> None:
    """`huge` asks for more memory than there is, `greedy` takes it all and gives it back, the others keep what they take."""
    mine: list[Any] = [] if harm == "greedy" else kept
    if harm == "huge":
        bytearray(2**40)
    while True:
        mine.append(os.open(os.devnull, os.O_RDONLY) if harm == "handles" else bytearray(2**21))


def _note(file: str, line: str) -> None:
    with open(file, "a") as notes:
        notes.write(line + "\n")


def _failing(app: Any) -> Any:
    """The endpoint's application, with the share of its requests that DRILL says broken."""

    async def broken(self: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or DRAW.random() >= DRILL.get("share", 0.0):
            await app(self, scope, receive, send)
            return
        kind = DRAW.choice(DRILL["kinds"])
        _note(DRILL["faults"], kind)
        if kind == "unheard":
            await _drop(send)
        elif kind == "status":
            await _answer(send, 503, b"the server is busy")
        elif kind == "garbage":
            await _answer(send, 200, b"<html>Sign in</html>")
        elif kind == "internal":
            error = {"code": -32603, "message": "something broke"}
            await _answer(send, 200, json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode())
        else:
            # It ran, and the client does not hear of it: nothing, half of it, or what belongs to another's request.
            sent: list[dict[str, Any]] = []

            async def keep(message: dict[str, Any]) -> None:
                sent.append(message)

            await app(self, scope, receive, keep)
            body = sent[-1]["body"]
            if kind == "lost":
                await _drop(send)
            elif kind == "half":
                await _drop(send, body[: len(body) // 2])
            elif kind == "crossed":
                await _answer(send, 200, json.dumps({**json.loads(body), "id": "another's"}).encode())

    return broken


async def _answer(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _drop(send: Any, body: bytes = b"") -> None:
    """Less than what was promised: the server closes the connection."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body) + 9).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


endpoint.Endpoint.app = _failing(endpoint.Endpoint.app)
time.sleep(DRILL.get("slow", 0.0))
if "handles" in DRILL:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DRILL["handles"], DRILL["handles"]))
env = environment("bank", account=Account)
