"""What happens in the sandbox's API server at a request (for `intercept`), or after it (for `intercept_reply`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from math import inf

from extender.sandbox import ApiError
from extender.serve.undo import IN_FLIGHT_GRACE_SECONDS

NO = ApiError(403, "Forbidden", "no")
CUT = ApiError(502, "BadGateway", "the connection was cut")


class Refusing:
    """The first `times` requests with such a path and method get an error. `count` counts all of them."""

    def __init__(self, ending: str, error: ApiError = NO, times: float = inf, *, method: str = "") -> None:
        self._ending, self._error, self._times, self._method = ending, error, times, method
        self.count = 0

    async def __call__(self, method: str, path: str) -> ApiError | None:
        if not path.endswith(self._ending) or self._method not in ("", method):
            return None
        self.count += 1
        return self._error if self.count <= self._times else None


class Once:
    """At the first request with such a path and method something happens, and then the error is answered, if any.

    `if_`: the first one for which this is true.
    """

    def __init__(
        self,
        method: str,
        ending: str,
        act: Callable[[], object],
        error: ApiError | None = None,
        *,
        if_: Callable[[], object] = lambda: True,
    ) -> None:
        self._method, self._ending, self._act, self._error, self._if = method, ending, act, error, if_
        self.done = False

    async def __call__(self, method: str, path: str) -> ApiError | None:
        if self.done or method != self._method or not path.endswith(self._ending) or not self._if():
            return None
        self.done = True
        found = self._act()
        if isawaitable(found):
            await found
        return self._error


class SlowWrite:
    """A bind is slow at its write to such a path, so that it reads its claims again; then something happens, once."""

    def __init__(self, write: str, read: str, act: Callable[[], object]) -> None:
        self._write, self._is_slow = write, False
        self._at_read = Once("GET", read, act, if_=lambda: self._is_slow)

    async def __call__(self, method: str, path: str) -> ApiError | None:
        if method == "PATCH" and path.endswith(self._write):
            await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
            self._is_slow = True
        return await self._at_read(method, path)


class Holding:
    """Requests with such a path wait until `go_on`; `sent` is set when the first one comes."""

    def __init__(self, ending: str, method: str = "") -> None:
        self._ending, self._method = ending, method
        self.sent, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, method: str, path: str) -> None:
        if path.endswith(self._ending) and self._method in ("", method):
            self.sent.set()
            await self.go_on.wait()
