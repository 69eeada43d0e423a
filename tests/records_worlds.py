"""A console's endpoint for records with an API server behind it, and batches for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from extender.cluster import ApiClient, Credentials
from extender.console import TokenReviewer
from extender.console.authentication import ReviewLimits
from extender.console.ingest import Ingest
from extender.model import DEFAULT_MIX
from extender.records import Batch, PolicyState, Record
from extender.records.encoding import encode
from extender.sandbox import listening
from extender.sandbox.apiserver.api_server import ApiServer
from extender.sandbox.apiserver.tokens import TokenUser
from extender.sandbox.apiserver.versioned_store import ObjectStore
from extender.web.record_routes import Records
from tests.eventually import HANG_SECONDS

BERTH = "system:serviceaccount:berth-system:berth"
TOKENS = {
    "good": TokenUser(BERTH, ("berth-console",)),
    "both": TokenUser(BERTH, ("other", "berth-console")),
    "other-account": TokenUser("system:serviceaccount:default:default", ("berth-console",)),
    "wrong-audience": TokenUser(BERTH, ("https://kubernetes.default.svc",)),
}


def body(sequence: int = 1, *records: Record, epoch: str = "e1") -> bytes:
    return encode(Batch("berth-0", epoch, sequence, sequence, 0, PolicyState(1, "d"), DEFAULT_MIX, records))


@dataclass
class Clock:
    now: float = 0.0


@dataclass
class World:
    """A console's endpoint with an API server behind it."""

    api: ApiServer
    tokens: dict[str, TokenUser]
    records: Records
    reviewer: TokenReviewer
    ingest: Ingest
    applied: list[str]
    url: str
    client: httpx.AsyncClient
    clock: Clock

    async def post(self, content: bytes | None = None, token: str = "good", **headers: str) -> httpx.Response:
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {token}".strip(), **headers}
        return await self.client.post("/v1/records", content=body() if content is None else content, headers=given)

    @property
    def reviews(self) -> int:
        return self.api.requests.get("POST tokenreviews", 0)


def taker(ingest: Ingest) -> Callable[[Batch], Awaitable[None]]:
    async def take(batch: Batch) -> None:
        ingest.take(batch)

    return take


@asynccontextmanager
async def console(limits: ReviewLimits | None = None) -> AsyncIterator[World]:
    tokens = dict(TOKENS)
    api = ApiServer(ObjectStore(), tokens=tokens)
    applied: list[str] = []
    ingest = Ingest(
        lambda epoch, record: applied.append(getattr(record, "claim_uid", "")), lambda epoch: None, lambda: 0.0
    )
    async with listening(api, "127.0.0.1", 0) as address, ApiClient(Credentials(address, None, lambda: None)) as client:
        clock = Clock()
        reviewer = TokenReviewer(client, "berth-console", frozenset({BERTH}), lambda: clock.now, limits)
        records = Records(reviewer, taker(ingest))
        async with (
            listening(records, "127.0.0.1", 0) as url,
            httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False) as http,
        ):
            yield World(api, tokens, records, reviewer, ingest, applied, url, http, clock)
