"""A proxy before an engine that records its samples, and answers the same request of a later run with the same sample.

A request is the same when prompt, seed, limits and number of optimizer steps behind its weights are: the name of the snapshot
holds that number. In `replay` nothing is sampled: a request that was never recorded is counted in `misses`, and refused.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
from aiohttp import web

Key = tuple[Any, ...]


class Recorder:
    """`samples` by request, in the engine's own bytes; `asked` are the samples asked for, `paths` all requests.

    With `echo`, every twelfth request for a sample is refused with the key it came with.
    """

    def __init__(self, upstream: str) -> None:
        self.replay = False
        self.echo = False
        self.samples: dict[Key, tuple[bytes, str]] = {}
        self.asked: set[Key] = set()
        self.paths: list[str] = []
        self.misses = 0
        self.url = ""
        self._upstream = upstream.partition("/training/")[0]

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/training/v1/serverless"
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as self._client:
            ready.set()
            await stop.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        self.paths.append(request.path)
        if not request.path.endswith("/completions"):
            status, answer, kind = await self._pass_on(request, data)
            return web.Response(body=answer, status=status, content_type=kind)
        if self.echo and sum(path.endswith("/completions") for path in self.paths) % 12 == 0:
            return web.json_response({"error": {"message": f"refused: {_keys_of(request)}"}}, status=400)
        key = _key(json.loads(data))
        self.asked.add(key)
        if not self.replay:
            status, answer, kind = await self._pass_on(request, data)
            if status == 200:
                self.samples[key] = answer, kind
            return web.Response(body=answer, status=status, content_type=kind)
        if key not in self.samples:
            self.misses += 1
            return web.json_response({"error": {"message": "this was never sampled", "code": 400}}, status=400)
        answer, kind = self.samples[key]
        return web.Response(body=answer, content_type=kind)

    async def _pass_on(self, request: web.Request, data: bytes) -> tuple[int, bytes, str]:
        headers = {"content-type": request.content_type} if data else {}
        url = self._upstream + request.path_qs
        async with self._client.request(request.method, url, data=data or None, headers=headers) as answer:
            return answer.status, await answer.read(), answer.content_type


def _keys_of(request: web.Request) -> list[str]:
    return [value for name, value in request.headers.items() if "key" in name.lower() or "auth" in name.lower()]


def _key(body: dict[str, Any]) -> Key:
    # The SDK ends the name with a random part of its own.
    snapshot = body["model"].rpartition("/")[2].rpartition("-")[0]
    return snapshot, body["seed"], tuple(body["prompt"]), body["max_tokens"], body["temperature"], body["top_p"]


@contextmanager
def recorder(upstream: str) -> Iterator[Recorder]:
    """A recorder before the engine at `upstream`, on a thread with a loop of its own, until the end of the block."""
    made, ready, stop = Recorder(upstream), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(made.serve(ready, stop),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
