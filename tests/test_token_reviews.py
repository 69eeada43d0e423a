"""The console has the API server review tokens of senders: it remembers reviews, and limits them by source."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from extender.console import ReviewResult
from extender.console.authentication import ReviewLimits
from extender.sandbox.apiserver.status_errors import ApiError
from tests.eventually import HANG_SECONDS, eventually
from tests.records_worlds import BERTH, console
from tests.test_wrong_answers import Answer


async def test_reviews_are_remembered_for_a_while() -> None:
    async with console() as w:
        for _ in range(3):
            await w.post(token="good")
            await w.post(token="forged")
        assert w.reviews == 2
        w.clock.now = 6.0
        await w.post(token="good")
        await w.post(token="forged")
        assert w.reviews == 3
        w.clock.now = 61.0
        await w.post(token="good")
        assert w.reviews == 4


async def test_a_token_that_is_taken_back_is_refused_once_its_review_is_old() -> None:
    async with console() as w:
        assert (await w.post()).status_code == 204
        del w.tokens["good"]
        assert (await w.post()).status_code == 204
        w.clock.now = 61.0
        assert (await w.post()).status_code == 401


@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 503])
async def test_no_sender_is_accepted_while_the_api_server_fails(code: int) -> None:
    async def failing(method: str, path: str) -> ApiError:
        return ApiError(code, "Failed", "secret words of the API server")

    async with console() as w:
        w.api.intercept = failing
        reply = await w.post()
        assert reply.status_code == 503
        assert "secret" not in reply.text
        w.api.intercept = None
        assert (await w.post()).status_code == 204  # a failure is not remembered


async def test_a_review_that_does_not_name_the_audience_of_the_console_is_no_proof() -> None:
    """An authenticator that knows no audiences accepts a token that is meant for another program."""
    status = {"authenticated": True, "user": {"username": BERTH}, "audiences": []}

    async def unaware(method: str, path: str) -> ApiError:
        return Answer({"status": status})

    async with console() as w:
        w.api.intercept = unaware
        assert (await w.post()).status_code == 401
        status["audiences"] = ["other", "berth-console"]
        w.clock.now = 6.0
        assert (await w.post()).status_code == 204


async def test_unknown_tokens_neither_flood_the_api_server_nor_block_serve() -> None:
    async with console(ReviewLimits(burst=5.0, per_second=1.0, tokens=8)) as w:
        assert (await w.post()).status_code == 204
        statuses = [(await w.post(token=f"guess-{n}")).status_code for n in range(50)]
        assert statuses == [401] * 4 + [429] * 46
        assert w.reviews == 5
        w.clock.now = 61.0  # Berth's review is too old now, and the bucket is full again
        for n in range(50):
            await w.post(token=f"guess-again-{n}")
        assert (await w.post()).status_code == 204
        assert w.reviews == 5 + 5 + 1


async def test_unknown_tokens_from_another_address_leave_serve_its_reviews() -> None:
    """The console does not know serve's token: it has restarted, or the token was rotated."""
    async with console(ReviewLimits(burst=5.0)) as w:
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=w.url, transport=transport, timeout=HANG_SECONDS, verify=False) as http:
            other_sender = replace(w, client=http)
            statuses = [(await other_sender.post(token=f"guess-{n}")).status_code for n in range(50)]
        assert statuses == [401] * 5 + [429] * 45
        assert (await w.post()).status_code == 204
        assert w.reviewer.sources == 2


async def test_reviews_and_sources_that_are_remembered_are_limited() -> None:
    async with console(ReviewLimits(tokens=8, sources=4)) as w:
        for n in range(40):
            await w.reviewer.review(f"guess-{n}", f"10.0.0.{n}")
        assert w.reviews == 40
        assert (w.reviewer.remembered, w.reviewer.sources) == (8, 4)


async def test_few_reviews_are_under_way_at_once_and_fewer_of_one_source() -> None:
    async with console(ReviewLimits(in_flight=3, in_flight_per_source=2)) as w:
        arrived, go = 0, asyncio.Event()

        async def slow(method: str, path: str) -> None:
            nonlocal arrived
            arrived += 1
            await go.wait()

        w.api.intercept = slow
        waiting = [asyncio.create_task(w.reviewer.review(f"guess-{n}", "10.0.0.9")) for n in range(2)]
        await eventually(lambda: arrived == 2)
        assert (await w.reviewer.review("guess", "10.0.0.9")).result is ReviewResult.BUSY
        waiting.append(asyncio.create_task(w.reviewer.review("good", "serve")))
        await eventually(lambda: arrived == 3)
        assert (await w.reviewer.review("both", "serve")).result is ReviewResult.BUSY
        go.set()
        await asyncio.gather(*waiting)
        w.api.intercept = None
        assert (await w.reviewer.review("good", "serve")).result is ReviewResult.ALLOWED
