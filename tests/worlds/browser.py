"""Headless Chromium by its DevTools protocol: open, evaluate, press keys, take pictures."""

from __future__ import annotations

import asyncio
import atexit
import base64
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp

from tests.worlds.eventually import HANG_SECONDS, eventually

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), "")


class Page:
    """One tab. `errors` are what the console and the page itself complained about."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self.errors: list[str] = []
        self.received = 0  # bytes over the network
        self.requested: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                self._waiting.pop(event["id"]).set_result(event)
            elif event["method"] == "Runtime.exceptionThrown":
                self.errors.append(event["params"]["exceptionDetails"].get("exception", {}).get("description", "?"))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.errors.append(event["params"]["entry"]["text"])
            elif event["method"] == "Network.dataReceived":
                self.received += max(event["params"]["encodedDataLength"], 0)
            elif event["method"] == "Network.requestWillBeSent":
                self.requested.append(event["params"]["request"]["url"])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self._waiting[self._number] = future = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        answer = await asyncio.wait_for(future, HANG_SECONDS)
        assert "error" not in answer, answer
        return answer["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        found = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        await eventually(lambda: self.run(script), lambda: f"{script}; {self.errors}")

    async def press(self, key: str) -> None:
        """One key, by its name or letter."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40}
        await self.send(
            "Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=codes.get(key, 0), **text
        )
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    async def size(self, width: int, height: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def dark(self, on: bool) -> None:
        await self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}],
        )

    async def picture(self, path: Path) -> None:
        found = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))  # noqa: ASYNC240 - a few kilobytes, and nothing else runs


@cache
def _chromium() -> int:
    """The DevTools port of a Chromium that runs as long as this process. It is ended by its own pid."""
    folder = tempfile.mkdtemp()
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end() -> None:
        process.terminate()
        process.wait()
        last = time.monotonic() + HANG_SECONDS
        while Path(folder).exists() and time.monotonic() < last:
            shutil.rmtree(folder, ignore_errors=True)  # its helpers may still write when it has ended

    atexit.register(end)
    file, last = Path(folder) / "DevToolsActivePort", time.monotonic() + HANG_SECONDS
    while not file.exists() or "\n" not in file.read_text():
        assert time.monotonic() < last, "Chromium listens"
        time.sleep(0.02)
    return int(file.read_text().splitlines()[0])


# Targets of tabs that no test uses. A new tab takes a process, and so a second of CPU.
_idle: list[str] = []


@asynccontextmanager
async def _connected(session: aiohttp.ClientSession, address: str) -> AsyncIterator[Page]:
    async with session.ws_connect(address, max_msg_size=0) as socket:
        page = Page(socket)
        listener = asyncio.create_task(page.listen())
        yield page
        listener.cancel()


@asynccontextmanager
async def browsing(url: str, width: int = 1280, height: int = 800) -> AsyncIterator[Page]:
    """A tab at this address, with empty storage."""
    async with tabs(url, 1, width, height) as (page,):
        yield page


@asynccontextmanager
async def tabs(url: str, count: int, width: int = 1280, height: int = 800) -> AsyncIterator[list[Page]]:
    """Tabs of one browser at this address: they share its connections and storage. Each believes that it is seen."""
    root = f"127.0.0.1:{await asyncio.to_thread(_chromium)}"
    async with aiohttp.ClientSession() as session, AsyncExitStack() as stack:
        async with session.get(f"http://{root}/json/version") as reply:
            address = (await reply.json())["webSocketDebuggerUrl"]
        browser = await stack.enter_async_context(_connected(session, address))
        targets = [_idle.pop() if _idle else await _created(browser) for _ in range(count)]
        pages = []
        for target in targets:
            pages.append(await stack.enter_async_context(_connected(session, f"ws://{root}/devtools/page/{target}")))
            await _show(pages[-1], url, width, height)
        yield pages
        for page in pages:
            await _leave(page)
        _idle.extend(targets)


async def _created(browser: Page) -> str:
    return (await browser.send("Target.createTarget", url="about:blank"))["targetId"]


async def _show(page: Page, url: str, width: int, height: int) -> None:
    for domain in ("Runtime", "Log", "Network", "Page"):
        await page.send(f"{domain}.enable")
    await page.send("Emulation.setFocusEmulationEnabled", enabled=True)  # else elements get no focus events
    await page.size(width, height)
    await page.send("Page.navigate", url=url)
    await page.until(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")


async def _leave(page: Page) -> None:
    """As a new tab. Sizes and the like end with the connection to it."""
    await page.send("Runtime.evaluate", expression="localStorage.clear(); sessionStorage.clear()")
    await page.send("Page.navigate", url="about:blank")
    await page.until("location.href === 'about:blank'")
    await page.send("Page.resetNavigationHistory")
