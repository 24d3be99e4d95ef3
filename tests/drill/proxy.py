"""A proxy that breaks HTTP between the genuine SDK and the engine: what a status code cannot say, at the byte it should break.

In: requests on a loopback port, and a list of faults. Out: the engine's answers, each broken by at most one fault, and `seen`,
what passed: the path, what was done to it, and whether the engine did the work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from tests.drill.between import Between, running

How = Literal["status", "refuse", "lose", "cut", "stall", "freeze", "garbage", "twice", "late", "rewrite", "pass"]

_LATE_SECONDS = 0.3


@dataclass(slots=True)
class Fault:
    """Of the requests whose path ends in `path`, pass `skip`, then break `times`.

    status   answer `status` with `headers`; the engine never hears of the request
    refuse   close the connection without a byte; the engine never hears of the request
    lose     the engine does the work; close the connection without a byte
    cut      the engine does the work; close the connection after half of the answer
    stall    the engine does the work; half of the answer, then silence for `seconds`
    freeze   silence for `seconds`, then everything as it should be
    garbage  a page of HTML with status 200, as a proxy in between would; the engine never hears of the request
    twice    the engine gets the request two times; the second answer is passed on
    late     the request reaches the engine after those sent behind it
    rewrite  the engine does the work; `rewrite` of its answer is passed on
    """

    path: str
    how: How
    status: int = 503
    skip: int = 0
    times: int = 1
    seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    rewrite: Callable[[bytes], bytes] = lambda body: body


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: its path below /training/v1/serverless, its fault or "pass", its JSON body."""

    path: str
    how: How
    body: Any


class Proxy(Between):
    """Use `proxy(...)` to make one. `faults` may be replaced at any time."""

    def __init__(self, upstream: str, *faults: Fault) -> None:
        super().__init__(upstream)
        self.faults = list(faults)
        self.seen: list[Seen] = []

    def count(self, path: str, how: How | None = None) -> int:
        """How many requests for `path` passed, or met the fault `how`."""
        return sum(seen.path.endswith(path) and how in (None, seen.how) for seen in self.seen)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        fault = self._take(request.path)
        how = fault.how if fault else "pass"
        self.seen.append(Seen(request.path, how, json.loads(data) if data else None))
        if fault is None:
            return await self._pass_on(request, data)
        if how == "status":
            return web.json_response(
                {"error": {"message": "a fault", "code": fault.status}}, status=fault.status, headers=fault.headers
            )
        if how == "garbage":
            return web.Response(text="<html>Sign in</html>", content_type="text/html")
        if how == "refuse":
            return _hang_up(request)
        if how == "freeze":
            await asyncio.sleep(fault.seconds)
        if how == "late":
            await asyncio.sleep(_LATE_SECONDS)
        if how == "twice":
            await self._pass_on(request, data)
        answer = await self._pass_on(request, data)
        if how == "lose":
            return _hang_up(request)
        assert isinstance(answer.body, bytes)
        if how in ("cut", "stall"):
            half = web.StreamResponse(status=answer.status, headers=answer.headers)
            await half.prepare(request)
            await half.write(answer.body[: len(answer.body) // 2])
            # Let what was sent reach the socket before it closes.
            await asyncio.sleep(fault.seconds if how == "stall" else 0.05)
            return _hang_up(request)
        if how == "rewrite":
            return web.Response(body=fault.rewrite(answer.body), status=answer.status, content_type=answer.content_type)
        return answer

    def _take(self, path: str) -> Fault | None:
        for fault in self.faults:
            if path.endswith(fault.path) and fault.times:
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError


def proxy(upstream: str, *faults: Fault) -> AbstractContextManager[Proxy]:
    """A proxy before the engine at `upstream`, until the end of the block."""
    return running(Proxy(upstream, *faults))
