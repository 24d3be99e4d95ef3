"""A headless chromium over its own debugging protocol: just enough to open a file, press keys, click and look."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = Path("/usr/bin/chromium")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")


class Browser:
    """One open page. `problems` are the errors that scripts raised and the loads that the page's policy refused."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._numbers = itertools.count(100)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            data = message.json()
            if data.get("id") in self._waiting:
                self._waiting.pop(data["id"]).set_result(data)
            elif data.get("method") == "Page.loadEventFired":
                self._loaded.set()
            elif data.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(data["params"]["exceptionDetails"]))
            elif data.get("method") == "Log.entryAdded":
                self.problems.append(str(data["params"]["entry"]["text"]))
            elif data.get("method") == "Network.requestWillBeSent":
                self.requests.append(data["params"]["request"]["url"])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        answer = self._waiting[number]
        await self._socket.send_json({"id": number, "sessionId": self._session, "method": method, "params": params})
        data = await asyncio.wait_for(answer, 120)
        assert "error" not in data, data
        return data["result"]

    async def open(self, path: Path, place: str = "", *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{domain}.enable")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.send("Emulation.setEmulatedMedia", features=scheme)
        await self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        # From an empty page, so that a change of the place alone loads the file again as well.
        for url in ("about:blank", path.resolve().as_uri() + place):
            self._loaded.clear()
            await self.send("Page.navigate", url=url)
            await asyncio.wait_for(self._loaded.wait(), 120)

    async def evaluate(self, code: str) -> Any:
        result = await self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, code: str) -> None:
        """Wait until `code` is true."""
        for _ in range(1200):
            # An element is true here and `{}` by value. A page that is being loaded may have nothing to ask yet.
            with contextlib.suppress(AssertionError):
                if await self.evaluate(f"Boolean({code})"):
                    return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never true: {code}")

    async def press(self, key: str, *, shift: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0, **text)

    async def point(self, x: float, y: float) -> None:
        await self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def screenshot(self, path: Path) -> None:
        shot = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """A chromium with a profile in `folder`, ended at the end."""
    process = await asyncio.create_subprocess_exec(
        *(str(CHROMIUM), *_FLAGS, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        url = await asyncio.wait_for(_debugger(process), 60)
        async with aiohttp.ClientSession() as http, http.ws_connect(url, max_msg_size=0) as socket:
            target = await _ask(socket, 1, "Target.createTarget", url="about:blank")
            session = await _ask(socket, 2, "Target.attachToTarget", targetId=target["targetId"], flatten=True)
            page = Browser(socket, session["sessionId"])
            yield page
            page._reader.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _debugger(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode(errors="replace"):
        if "DevTools listening on " in line:
            return line.split("DevTools listening on ")[1].strip()
    raise AssertionError("chromium ended before it listened")


async def _ask(socket: aiohttp.ClientWebSocketResponse, number: int, method: str, **params: Any) -> dict[str, Any]:
    await socket.send_json({"id": number, "method": method, "params": params})
    async for message in socket:
        data = message.json()
        if data.get("id") == number:
            return data["result"]
    raise AssertionError(f"no answer to {method}")
