"""Headless Chromium by its DevTools protocol: open, evaluate, press keys, take pictures."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.eventually import HANG_SECONDS, eventually

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


@asynccontextmanager
async def browsing(url: str, folder: Path, width: int = 1280, height: int = 800) -> AsyncIterator[Page]:
    """A tab at this address. The process is ended by its own pid."""
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'profile'}",
        "about:blank",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        file = folder / "profile" / "DevToolsActivePort"
        await eventually(lambda: file.exists() and file.read_text().count("\n"), "Chromium listens")
        port = file.read_text().splitlines()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as reply:
                target = next(t for t in await reply.json() if t["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                listener = asyncio.create_task(page.listen())
                for domain in ("Runtime", "Log", "Network", "Page"):
                    await page.send(f"{domain}.enable")
                await page.send("Emulation.setFocusEmulationEnabled", enabled=True)  # else elements get no focus events
                await page.size(width, height)
                await page.send("Page.navigate", url=url)
                await page.until(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")
                yield page
                listener.cancel()
    finally:
        process.terminate()
        await process.wait()
