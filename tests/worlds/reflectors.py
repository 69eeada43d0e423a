"""A reflector that runs during a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extender.cluster import Reflector


@asynccontextmanager
async def running(reflector: Reflector) -> AsyncIterator[Reflector]:
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
