"""A transport for many requests at once: one connection a request, a free one used again, nothing searched.

In: httpx requests. Out: responses. httpx's own pool looks at every connection for every other whenever a request begins or
ends: with 64 samples in flight that was four fifths of what a sample cost in processor time. A connection carries one request at
a time and is free again when its response has been read or closed.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from functools import cache

import httpx

_ONE = httpx.Limits(max_connections=1, keepalive_expiry=60.0)
_CONNECT_SECONDS, _SECONDS = 30.0, 600.0


def sampling_client(verify: bool = True) -> httpx.AsyncClient:
    """A client for samples, with the time-outs that the SDK's own has; a request may bring its own. `verify`: certificates."""
    return httpx.AsyncClient(transport=OneEach(_tls(verify)), timeout=httpx.Timeout(_SECONDS, connect=_CONNECT_SECONDS))


@cache
def _tls(verify: bool) -> ssl.SSLContext:
    return httpx.create_ssl_context(verify=verify)


class OneEach(httpx.AsyncBaseTransport):
    """As many connections as there were requests at once. `tls` is shared by all: making one costs more than a request."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._free: list[httpx.AsyncHTTPTransport] = []
        self._all: list[httpx.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        connection = self._free.pop() if self._free else self._open()
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            self._free.append(connection)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Releasing(response.stream, lambda: self._free.append(connection))
        return response

    async def aclose(self) -> None:
        connections, self._all, self._free = self._all, [], []
        for connection in connections:
            await connection.aclose()

    def _open(self) -> httpx.AsyncHTTPTransport:
        connection = httpx.AsyncHTTPTransport(verify=self._tls, limits=_ONE)
        self._all.append(connection)
        return connection


class _Releasing(httpx.AsyncByteStream):
    """A response's bytes; the connection is released once, when they are closed."""

    def __init__(self, stream: httpx.AsyncByteStream, release: Callable[[], None]) -> None:
        self._stream = stream
        self._release: Callable[[], None] | None = release

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            release, self._release = self._release, None
            if release is not None:
                release()
