"""Waiting for a condition, and work meanwhile. The limits only end a test that hangs: a busy machine must not reach
them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

import httpx

T = TypeVar("T")
HANG_SECONDS = 240.0
_POLL_SECONDS = 0.01
_SLOWEST_POLL_SECONDS = 0.1


# The overloads take any callable, as mypy infers no lambda that binds a loop variable by a default argument.
@overload
async def eventually(condition: Callable[..., Coroutine[Any, Any, T | None]], what: object = ...) -> T: ...
@overload
async def eventually(condition: Callable[..., T | None], what: object = ...) -> T: ...
async def eventually(condition: Callable[..., Any], what: object = "the condition") -> Any:
    """Call the condition, a function or a coroutine function, until its value is true; return that value.

    `what` names the condition in the error; a function is called for its text at the end.
    """
    loop, pause = asyncio.get_running_loop(), _POLL_SECONDS
    end = loop.time() + HANG_SECONDS
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert loop.time() < end, f"never came true: {what() if callable(what) else what}"
        await asyncio.sleep(pause)
        pause = min(1.2 * pause, _SLOWEST_POLL_SECONDS)


async def answers(url: str, status: int, words: str = "", **options: Any) -> None:
    """Ask until the answer has this status and these words."""
    last: list[str] = []
    async with httpx.AsyncClient(timeout=HANG_SECONDS, **{"verify": False, **options}) as client:

        async def answered() -> bool:
            try:
                reply = await client.get(url)
            except httpx.HTTPError as error:
                last[:] = [repr(error)]
                return False
            last[:] = [f"{reply.status_code} {reply.text[:500]}"]
            return reply.status_code == status and words in reply.text

        await eventually(answered, lambda: f"{url} answers {status} {words}; the last answer was {last}")


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Meanwhile run a coroutine, which is cancelled at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
