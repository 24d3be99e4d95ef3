"""The transport of samples: connections used again, and released whatever becomes of a request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from turngrad.connections import OneEach

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Counts connections; holds answers back until `go`; cuts the connection for a request to /broken."""

    def __init__(self) -> None:
        self.connections = 0
        self.waiting = 0
        self.go = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET /broken"):
                    break
                self.waiting += 1
                await self.go.wait()
                writer.write(ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def client() -> AsyncIterator[tuple[Server, OneEach, httpx.AsyncClient]]:
    server = Server()
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    transport = OneEach(ssl.create_default_context())
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(transport=transport, base_url=url) as opened:
        yield server, transport, opened
    listener.close()


async def test_requests_one_after_another_share_a_connection() -> None:
    async with client() as (server, _, http):
        server.go.set()
        assert [(await http.get("/")).text for _ in range(5)] == ["ok"] * 5
        assert server.connections == 1


async def test_requests_at_once_have_one_each_and_the_next_wave_uses_them_again() -> None:
    async with client() as (server, _, http):
        for wave in (1, 2):
            server.go.clear()
            requests = [asyncio.create_task(http.get("/")) for _ in range(70)]
            while server.waiting < 70 * wave:
                await asyncio.sleep(0.005)
            server.go.set()
            assert [answer.status_code for answer in await asyncio.gather(*requests)] == [200] * 70
        assert server.connections == 70


async def test_a_request_that_breaks_or_is_cancelled_costs_its_connection_and_no_more() -> None:
    async with client() as (server, transport, http):
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get("/broken")
        cancelled = asyncio.create_task(http.get("/"))
        while not server.waiting:
            await asyncio.sleep(0.005)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        server.go.set()
        assert (await http.get("/")).text == "ok"
        assert len(transport._all) == len(transport._free) == 1


async def test_a_response_closed_unread_gives_its_connection_back() -> None:
    async with client() as (server, transport, http):
        server.go.set()
        async with http.stream("GET", "/"):
            assert not transport._free
        assert len(transport._free) == 1
        assert (await http.get("/")).text == "ok"


async def test_closing_the_client_closes_every_connection() -> None:
    async with client() as (server, transport, http):
        server.go.set()
        await asyncio.gather(*(http.get("/") for _ in range(3)))
        await http.aclose()
        assert transport._all == transport._free == []
