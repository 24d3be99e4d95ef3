"""What stands between the genuine SDK and an engine: an HTTP server on loopback, on a thread with a loop of its own.

So a test's event loop may block or freeze without stopping it.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import aiohttp
from aiohttp import web


class Between(ABC):
    """Before the engine at `upstream`; `url` is where a client reaches it while it is `running`."""

    def __init__(self, upstream: str) -> None:
        self.url = ""
        self._upstream = upstream.partition("/training/")[0]
        self._ready = threading.Event()

    @abstractmethod
    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """What becomes of a request."""

    async def _pass_on(self, request: web.Request, data: bytes) -> web.Response:
        """The engine's answer, as it is."""
        headers = {"content-type": request.content_type} if data else {}
        url = self._upstream + request.path_qs
        async with self._client.request(request.method, url, data=data or None, headers=headers) as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)

    async def _serve(self, stop: asyncio.Event) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/training/v1/serverless"
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as self._client:
            self._ready.set()
            await stop.wait()
        await runner.cleanup()


Server = TypeVar("Server", bound=Between)


@contextmanager
def running(made: Server) -> Iterator[Server]:
    """`made`, serving until the end of the block."""
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(made._serve(stop),), daemon=True)
    thread.start()
    assert made._ready.wait(10)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
