"""The API server of the sandbox without HTTP: replies are late, lost or refused by seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

import orjson

from extender.cluster import Unavailable
from extender.cluster.api_errors import error_for
from extender.sandbox import ApiError, Cluster
from extender.sandbox.apiserver.registry import RESOURCES
from extender.serve.undo import IN_FLIGHT_GRACE_SECONDS

Json = dict[str, Any]
CLAIMS = RESOURCES["resource.k8s.io", "resourceclaims"]
# Seconds until a Binding is stored, and any write whose connection was cut (docs/limits.md).
_TIMEOUT = 15.0  # of a request
_RISK = 3  # times as many faults of the most delicate request
_MAX_IN_FLIGHT_SECONDS = 0.45 * IN_FLIGHT_GRACE_SECONDS


@dataclass(slots=True)
class Faults:
    """The shares of the requests that have a fault; 0 for a server without faults."""

    lost: float = 0.0  # the write is stored, and its reply is lost
    cut: float = 0.0  # the connection ends at once, and the write is stored later
    refused: float = 0.0  # nothing is stored
    denied: float = 0.0  # a policy of the server forbids the Binding
    conflicts: float = 0.0  # another client writes the claim before
    slow: float = 0.0  # takes seconds, in place of some milliseconds

    def stop(self) -> None:
        """From now on the server has no faults."""
        self.lost = self.cut = self.refused = self.denied = self.conflicts = self.slow = 0.0


class Reply(NamedTuple):
    """A response of the API server."""

    status: int
    content: bytes


class FaultyApi:
    """In place of ApiClient. After `die`, no request has an outcome, but the server stores what was sent before.

    What happens to a request depends on `seed`, its path, and the requests before with this path: the order of two
    requests at one time changes nothing.
    """

    def __init__(self, cluster: Cluster, faults: Faults, seed: str) -> None:
        self._cluster = cluster
        self._faults = faults
        self._seed = seed
        self._requests: Counter[str] = Counter()
        self._serving: set[asyncio.Task[Any]] = set()
        self._watches: list[asyncio.Queue[tuple[float, Json]]] = []
        self._dead = False
        self.late_until = 0.0  # no watch shows an event before

    def die(self) -> None:
        self._dead = True

    def cut_watches(self) -> None:
        """End the watches of this replica, with the events on their way."""
        for queue in self._watches:
            queue.put_nowait((0.0, {"type": "cut"}))

    async def get(self, path: str, params: Mapping[str, str] | None = None, _most: int = 0) -> Json:
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: Json) -> Json:
        return await self._request("POST", path, body)

    async def patch(self, path: str, body: Json, content_type: str = "application/merge-patch+json") -> Json:
        return await self._request("PATCH", path, body, content_type)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        return await self._request("DELETE", path, body)

    async def lines(self, path: str, params: Mapping[str, str], _: float) -> AsyncGenerator[bytes, None]:
        """The lines of a watch. Events come in order, each some time after it was sent."""
        rng, queue = self._rng(f"WATCH {path}"), asyncio.Queue[tuple[float, Json]]()
        loop = asyncio.get_running_loop()

        async def send(message: Json) -> None:
            queue.put_nowait((loop.time(), message))

        task = self._serve(self._cluster.api(_scope("GET", path, params), _body(None), send))
        self._watches.append(queue)
        try:
            await self._until(0.0, rng)
            _, start = await queue.get()
            yield b""
            while True:
                sent, message = await queue.get()
                if message["type"] == "cut":
                    raise Unavailable("the watch was cut")
                if start["status"] != 200:
                    raise error_for(start["status"], message["body"].decode(), 0.0)
                await self._until(sent, rng)
                if message["body"]:
                    yield message["body"]
                if not message.get("more_body"):
                    return
        finally:
            self._watches.remove(queue)
            task.cancel()

    async def _until(self, sent: float, rng: random.Random) -> None:
        now = asyncio.get_running_loop().time()
        await self._sleep(max(sent + self._seconds(rng), self.late_until) - now)

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            await asyncio.sleep(seconds)
        if self._dead:
            await asyncio.get_running_loop().create_future()

    def _rng(self, request: str) -> random.Random:
        self._requests[request] += 1
        return random.Random(f"{self._seed}/{request}/{self._requests[request]}")

    def _seconds(self, rng: random.Random, most: float = 60.0) -> float:
        slow = rng.random() < self._faults.slow
        return min(rng.uniform(0.2, 3.0) if slow else rng.expovariate(100), most)

    async def _request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Json:
        rng, faults = self._rng(f"{method} {path}"), self._faults
        is_binding = path.endswith("/binding")
        shares = (faults.lost, faults.cut, faults.refused, faults.conflicts)
        lost, cut, refused, conflicts = (rng.random() < share * (_RISK if is_binding else 1) for share in shares)
        before, rejection = self._seconds(rng, _MAX_IN_FLIGHT_SECONDS if cut else 60.0), None
        if refused:
            rejection = Reply(rng.choice((429, 503)), b'{"message": "not now"}')
        if is_binding:
            before = rng.uniform(0.0, _MAX_IN_FLIGHT_SECONDS) if faults.slow else min(before, _MAX_IN_FLIGHT_SECONDS)
            rejection = Reply(403, b'{"message": "denied"}') if rng.random() < faults.denied else rejection
        scope, after = _scope(method, path, params or {}, content_type), self._seconds(rng)
        served = self._serve(self._answer(scope, body, before, rejection, conflicts=conflicts))
        if cut:
            await self._sleep(min(before, after) / 2)
            raise Unavailable(f"{method} {path}: the connection was cut")
        reply = await asyncio.shield(served)
        await self._sleep(after)
        if lost:
            await self._sleep(rng.choice((0.0, 0.0, _TIMEOUT)))
            raise Unavailable(f"{method} {path}: the reply was lost")
        found: Json = orjson.loads(reply.content)
        if reply.status >= 300:
            raise error_for(reply.status, found["message"], 0.5)
        return found

    async def _answer(
        self, scope: Json, body: Json | None, before: float, rejection: Reply | None, *, conflicts: bool
    ) -> Reply:
        await asyncio.sleep(before)
        if rejection is not None:
            return rejection
        if conflicts:
            disturb(self._cluster, scope["path"])
        messages: list[Json] = []

        async def send(message: Json) -> None:
            messages.append(message)

        await self._cluster.api(scope, _body(body), send)
        return Reply(messages[0]["status"], b"".join(one["body"] for one in messages[1:]))

    def _serve(self, work: Any) -> asyncio.Task[Any]:
        """The server continues a request whose client has gone."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return task


def disturb(cluster: Cluster, path: str) -> None:
    """Another client writes the claim: its version is not the one that Berth knows."""
    parts = path.split("/")
    if "resourceclaims" not in parts[:-1]:
        return
    key = (parts[parts.index("namespaces") + 1], parts[parts.index("resourceclaims") + 1])
    if cluster.store.get("resourceclaims", key) is not None:
        change = {"metadata": {"annotations": {"disturbed": str(cluster.store.version)}}}
        cluster.api.registry.patch(CLAIMS, key, change, "", strategic=False)


def _scope(method: str, path: str, params: Mapping[str, str], content_type: str = "application/json") -> Json:
    headers = [(b"content-type", content_type.encode())]
    query = urlencode(params).encode()
    return {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}


def _body(body: Json | None) -> Any:
    async def receive() -> Json:
        return {"type": "http.request", "body": b"" if body is None else orjson.dumps(body)}

    return receive


class Answer(ApiError):
    """This content, in place of the server's answer."""

    def __init__(self, content: Json, status: int = 200) -> None:
        super().__init__(status, "", "")
        self._content = content

    def body(self) -> Json:
        return self._content
