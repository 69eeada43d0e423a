"""Metrics as text for whoever scrapes: made between calls, answered by a process of its own."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from extender.model.errors import WireError
from extender.service.service import Service
from extender.web.metrics import Metrics

_SECONDS = 1.0  # between two texts
_SCRIPT = Path(__file__).with_name("exporter.py")


class Published:
    """The metrics as they were a moment ago: a scrape takes what lies there."""

    def __init__(self, service: Service) -> None:
        self._metrics, self._turns = Metrics(service), service.turns
        self._fresh = asyncio.Event()
        self.text = next(text for text in self._metrics.text() if text is not None)

    async def run(self) -> None:
        """Make the text again and again, until cancelled."""
        while True:
            self.text = await self._turns.run(self._metrics.text(), chore=True)
            self._fresh.set()
            await asyncio.sleep(_SECONDS)

    async def next(self) -> bytes:
        """The text that is made next."""
        self._fresh.clear()
        await self._fresh.wait()
        return self.text


class Exporting:
    """Keeps the process that answers scrapes alive, and writes each text to it."""

    def __init__(self, published: Published, host: str, port: int) -> None:
        """Raises WireError where the address cannot be had."""
        self._published = published
        try:
            self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", "") or error
            raise WireError("--metrics", f"cannot listen on {host}:{port}: {reason}") from error
        self._log = structlog.get_logger("berth.metrics")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                code = await self._one_life()
                self._log.warning("the process that answers scrapes ended; another is started", code=code)
            except OSError as error:
                self._log.warning("the process that answers scrapes cannot be started; tried again", problem=str(error))
            await asyncio.sleep(_SECONDS)

    def close(self) -> None:
        """Give the address back, once `run` has ended."""
        self._socket.close()

    async def _one_life(self) -> int:
        """Start a process and write to it until it ends: its exit code. Raises OSError where it cannot be started."""
        async with self._process() as process:
            text = self._published.text
            while await self._written(process, text):
                text = await self._published.next()
            return await process.wait()

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        number = self._socket.fileno()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(_SCRIPT), str(number), stdin=subprocess.PIPE, pass_fds=(number,)
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

    async def _written(self, process: asyncio.subprocess.Process, text: bytes) -> bool:
        """Whether the process still takes texts."""
        if process.stdin is None or process.stdin.is_closing():
            return False
        process.stdin.write(len(text).to_bytes(4) + text)
        with suppress(BrokenPipeError, ConnectionResetError):
            await process.stdin.drain()
        return not process.stdin.is_closing()
