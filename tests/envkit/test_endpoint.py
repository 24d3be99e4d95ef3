"""The endpoint is MCP: the real clients speak to it, and what is wrong is said in JSON-RPC."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import fastmcp
import httpx
import pytest
import pytest_asyncio
from fastmcp.client.transports import StreamableHttpTransport
from mcp import ClientSession
from mcp import McpError as SdkMcpError
from mcp.client.streamable_http import streamablehttp_client

from tests.envkit.bank import Bank
from tests.players import Mcp, McpError
from turngrad.envkit.client import EpisodeClient
from turngrad.envkit.endpoint import Endpoint
from turngrad.envkit.live import Episodes


class Served:
    """An endpoint with one episode."""

    def __init__(self, episodes: Episodes, url: str, token: str) -> None:
        self.episodes, self.url, self.token = episodes, url, token


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    episodes = Episodes(60)
    endpoint = Endpoint(episodes, "bank")
    url = await endpoint.start()
    episode = await episodes.open(Bank, {"start": 10, "amounts": [5, 7]})
    yield Served(episodes, url, episode.token)
    await episodes.close_all()
    await endpoint.stop()


async def test_the_mcp_sdks_client_lists_and_calls(served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.token}"}
    async with streamablehttp_client(served.url, headers=headers) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        await session.send_ping()
        assert [tool.name for tool in (await session.list_tools()).tools] == ["pay_in", "look"]
        paid = await session.call_tool("pay_in", {"amount": 5})
        assert (paid.content[0].text, paid.isError) == ("balance 15", False)  # type: ignore[union-attr]
        assert (await session.call_tool("look", {})).structuredContent == {"balance": 15}
        assert (await session.call_tool("pay_in", {"amount": -5})).isError


async def test_fastmcps_client_lists_and_calls(served: Served) -> None:
    async with fastmcp.Client(StreamableHttpTransport(served.url, auth=served.token)) as client:
        assert len(await client.list_tools()) == 2
        assert (await client.call_tool("pay_in", {"amount": 2, "times": 3})).content[0].text == "balance 16"  # type: ignore[union-attr]


async def test_the_kits_own_client_lists_calls_and_reports_errors(served: Served) -> None:
    async with EpisodeClient(served.url, served.token, 10) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["pay_in", "look"]
        paid = await client.call_tool("pay_in", {"amount": 5}, meta={"turngrad/call-id": "a"})
        again = await client.call_tool("pay_in", {"amount": 5}, meta={"turngrad/call-id": "a"})
        assert (paid.content[0].text, paid) == ("balance 15", again)  # type: ignore[union-attr]
        assert (await client.call_tool("look")).structuredContent == {"balance": 15}
        with pytest.raises(SdkMcpError) as refused:
            await client.call_tool(7)  # type: ignore[arg-type]
        assert refused.value.error.code == -32602
    async with EpisodeClient(served.url, "nobodys", 10) as client:
        with pytest.raises(SdkMcpError, match="no live episode"):
            await client.list_tools()


async def test_the_kits_own_client_reads_no_answer_that_belongs_to_an_earlier_request() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            request = json.loads(await reader.readexactly(length))
            params = request["params"]
            await asyncio.sleep(params["arguments"]["seconds"])
            request_id = "another's" if params["name"] == "crossed" else request["id"]
            text = json.dumps({"id": request_id, "result": {"content": [{"type": "text", "text": params["name"]}]}}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            if params["name"] == "break":
                writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with EpisodeClient(url, "t", 10) as client:
        with pytest.raises(SdkMcpError) as late:
            await client.call_tool("slow", {"seconds": 0.3}, timedelta(seconds=0.05))
        assert late.value.error.code == 408
        await asyncio.sleep(0.4)
        assert (await client.call_tool("next", {"seconds": 0})).content[0].text == "next"  # type: ignore[union-attr]
        assert (await client.call_tool("break", {"seconds": 0})).content[0].text == "break"  # type: ignore[union-attr]
        await asyncio.sleep(0.05)
        with pytest.raises(ConnectionError):
            await client.call_tool("lost", {"seconds": 0})
        assert (await client.call_tool("found", {"seconds": 0})).content[0].text == "found"  # type: ignore[union-attr]
        with pytest.raises(ConnectionError, match='an answer to request "another\'s"'):
            await client.call_tool("crossed", {"seconds": 0})
    server.close()


async def test_the_reserved_next_turn_is_not_listed_and_answers_as_agreed(served: Served) -> None:
    async with Mcp(served.url, served.token) as mcp:
        assert await mcp.names() == ["pay_in", "look"]
        assert await mcp.next_turn() == {
            "done": False,
            "messages": [{"role": "user", "content": "Pay in 7."}],
            "tools_changed": False,
        }
        assert await mcp.next_turn() == {"done": True, "messages": [], "tools_changed": False}


@pytest.mark.parametrize("token", [None, "nobodys"])
async def test_an_unknown_token_is_refused_cleanly(served: Served, token: str | None) -> None:
    async with Mcp(served.url, token) as mcp:
        with pytest.raises(McpError) as refused:
            await mcp.tools()
    assert (refused.value.status, refused.value.code) == (401, -32001)


async def test_the_token_of_an_ended_episode_is_refused_cleanly(served: Served) -> None:
    await served.episodes.close(served.episodes.find(served.token))
    async with Mcp(served.url, served.token) as mcp:
        with pytest.raises(McpError) as refused:
            await mcp.call("look")
    assert (refused.value.status, refused.value.code) == (401, -32001)


async def test_a_notification_gets_no_answer_and_other_http_methods_are_not_allowed(served: Served) -> None:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {served.token}"}) as http:
        noted = await http.post(served.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (noted.status_code, noted.content) == (202, b"")
        assert (await http.get(served.url)).status_code == 405
        assert (await http.delete(served.url)).status_code == 405


async def test_an_unknown_method_and_the_wrong_parameters_are_json_rpc_errors(served: Served) -> None:
    async with Mcp(served.url, served.token) as mcp:
        for method, params, code in (("resources/list", {}, -32601), ("tools/call", {"name": 5}, -32602)):
            with pytest.raises(McpError) as refused:
                await mcp.request(method, params)
            assert refused.value.code == code


async def test_a_call_takes_milliseconds_and_not_nagles_delay(served: Served) -> None:
    async with Mcp(served.url, served.token) as mcp:
        await mcp.call("look")
        loop = asyncio.get_running_loop()
        times = []
        for _ in range(50):
            started = loop.time()
            await mcp.call("look")
            times.append(loop.time() - started)
        # Nagle with delayed acknowledgements makes every single call 40 ms or more.
        assert min(times) < 0.02


async def test_an_endpoint_can_be_stopped_and_another_started_in_one_process() -> None:
    for _ in range(3):
        episodes = Episodes(60)
        endpoint = Endpoint(episodes, "bank")
        url = await endpoint.start()
        episode = await episodes.open(Bank, {"start": 0, "amounts": [1]})
        async with Mcp(url, episode.token) as mcp:
            assert await mcp.call("pay_in", {"amount": 1}) == "balance 1"
            await endpoint.stop()
        await episodes.close_all()
