"""A taskset of the HUD platform, against a local stand-in of the requests it needs: list, export, lease, tunnel."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import WSMsgType, web
from hud.eval import Task
from hud.eval.runtime import LocalRuntime
from hud.settings import settings

from tests.own import play, resolved
from turngrad.errors import UserError
from turngrad.runtimes import open_runtime
from turngrad.tasksets import load_taskset

ARITHMETIC = Path(__file__).parents[1] / "envs" / "arithmetic" / "env.py"
SMALL = ("--tasks-per-step", "4", "--eval-tasks", "2")
KEY = "a-key"


@dataclass
class Platform:
    """The stand-in: one taskset called "products", one deployed environment called "arithmetic"."""

    url: str = ""
    taskset_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    sessions: dict[str, str] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    not_ready: bool = False
    environment: str = "arithmetic"

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.authorize])
        app.router.add_get("/v2/tasksets/by-name/{name}", self.by_name)
        app.router.add_get("/v2/tasksets/{id}/export", self.export)
        app.router.add_post("/runtime/sessions", self.lease)
        app.router.add_delete("/runtime/sessions/{id}", self.give_back)
        app.router.add_get("/runtime/tunnels/{id}", self.tunnel)
        app.router.add_route("*", "/{rest:.*}", self.telemetry)
        return app

    @web.middleware
    async def authorize(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"detail": "no"}, status=401)
        return await handler(request)

    async def by_name(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != "products":
            return web.json_response({"detail": "not found"}, status=404)
        return web.json_response({"taskset_id": self.taskset_id, "name": "products"})

    async def export(self, request: web.Request) -> web.Response:
        if request.match_info["id"] != self.taskset_id:
            return web.json_response({"detail": "not found"}, status=404)
        rows = [
            {"env": self.environment, "scenario": "multiply", "args": {"a": 6, "b": b}, "name": f"by-{b}"} for b in range(7, 15)
        ]
        return web.json_response({"name": "products", "tasks": rows})

    async def lease(self, request: web.Request) -> web.Response:
        wanted = (await request.json())["environment"]
        if wanted != "arithmetic":
            return web.json_response({"detail": "not found"}, status=404)
        if self.not_ready:
            return web.json_response({"detail": "starting"}, status=503)
        session = uuid.uuid4().hex
        self.sessions[session] = wanted
        return web.json_response({"id": session})

    async def give_back(self, request: web.Request) -> web.Response:
        self.ended.append(request.match_info["id"])
        return web.json_response({})

    async def tunnel(self, request: web.Request) -> web.WebSocketResponse:
        assert request.match_info["id"] in self.sessions
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async with LocalRuntime(ARITHMETIC)(Task(env="arithmetic", id="multiply")) as runtime:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(runtime.url.rpartition(":")[2]))

            async def back() -> None:
                while data := await reader.read(65536):
                    await socket.send_bytes(data)
                await socket.close()

            returning = asyncio.create_task(back())
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    writer.write(message.data)
            writer.close()
            returning.cancel()
        return socket

    async def telemetry(self, request: web.Request) -> web.Response:
        return web.json_response({})


@pytest_asyncio.fixture
async def platform(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Platform]:
    """Served from a thread of its own: hud's loader blocks the thread that calls it."""
    found, started = Platform(), threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        runner = web.AppRunner(found.app())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait(30)
    for name in ("hud_api_url", "hud_runtime_url", "hud_telemetry_url"):
        monkeypatch.setattr(settings, name, found.url)
    monkeypatch.setattr(settings, "api_key", KEY)
    monkeypatch.setattr(settings, "telemetry_enabled", True)
    yield found
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


async def test_a_hosted_taskset_plays_with_our_loop_and_gives_its_leases_back(platform: Platform) -> None:
    for name in ("products", platform.taskset_id):
        taskset = load_taskset(resolved("--taskset", name, *SMALL))
        assert (taskset.name, taskset.placement.kind, len(taskset.held_out)) == ("products", "hud", 2)
    episodes = await play(resolved("--taskset", "products", *SMALL), ["42"], tasks=["by-7", "by-8"])
    assert {name: (episode.reward, episode.excluded) for name, (episode,) in episodes.items()} == {
        "by-7": (1.0, None),
        "by-8": (0.0, None),
    }
    # One more than the rollouts: the lease that was tried first.
    assert sorted(platform.ended) == sorted(platform.sessions)
    assert len(platform.sessions) == 3


async def test_no_key_and_a_wrong_key_are_told_apart(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolved("--taskset", "products", *SMALL)
    monkeypatch.setattr(settings, "api_key", "another")
    with pytest.raises(UserError, match="refused HUD_API_KEY"):
        load_taskset(config)
    monkeypatch.setattr(settings, "api_key", None)
    with pytest.raises(UserError, match=r"unknown taskset 'products'.*needs HUD_API_KEY"):
        load_taskset(config)


@pytest.mark.parametrize("name", ["no-such", "3f0c2a52-2f6e-4c1e-9d4f-0a1b2c3d4e5f"])
async def test_an_unknown_taskset_is_named(platform: Platform, name: str) -> None:
    with pytest.raises(UserError, match=f"--taskset {name}: "):
        load_taskset(resolved("--taskset", name, *SMALL))


async def test_an_environment_that_is_not_there_or_not_ready_ends_the_run_before_it_starts(platform: Platform) -> None:
    task = Task(env="arithmetic", id="multiply", args={"a": 1, "b": 1})
    placement = load_taskset(resolved("--taskset", "products", *SMALL)).placement
    platform.not_ready = True
    with pytest.raises(UserError, match="'arithmetic' is not ready on the HUD platform"):
        async with open_runtime(placement, first=task):
            pass
    platform.not_ready = False
    with pytest.raises(UserError, match="no deployed environment 'elsewhere'"):
        async with open_runtime(placement, first=task.model_copy(update={"env": "elsewhere"})):
            pass
