"""POST /v1/records over real HTTP: records come from serve processes only."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from extender.console.ingest import Ingest
from extender.extension import Poster
from extender.extension.outbox import Outbox
from extender.model import DEFAULT_MIX
from extender.records import MAX_BODY, PolicyState, Released
from extender.runtime import Supervisor
from extender.sandbox import listening
from extender.web.record_routes import Records
from tests.eventually import eventually
from tests.records_worlds import body, console, taker


async def test_a_batch_of_berth_is_taken() -> None:
    async with console() as w:
        reply = await w.post(body(1, Released("a"), Released("b")))
        assert (reply.status_code, reply.content) == (204, b"")
        assert (await w.post(body(3, Released("c")), token="both")).status_code == 204
        assert w.applied == ["a", "b", "c"]
        assert w.records.counts == {"204": 2}


async def test_the_outbox_reaches_the_console(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("expired\n")
    async with console() as w, Poster(w.url, token) as post:
        box = Outbox(post, "berth-0", lambda: (PolicyState(1, "d"), DEFAULT_MIX), period=0.0)
        supervisor = Supervisor()
        supervisor.start("outbox", box.run)
        for n in range(600):
            box.put(partial(Released, str(n)))
        await eventually(lambda: w.records.counts["401"])
        token.write_text("good\n")  # as the kubelet renews it
        await eventually(lambda: box.sent == 600)
        await supervisor.stop()
        assert w.applied == [str(n) for n in range(600)]
        assert w.ingest.counts["gaps"] == 0
        assert box.lost == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"token": ""}, 401),
        ({"token": "forged"}, 401),
        ({"token": "x" * 9000}, 401),
        ({"Authorization": "Basic Z29vZA=="}, 401),
        ({"Authorization": ""}, 401),
        ({"token": "wrong-audience"}, 401),
        ({"token": "other-account"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
async def test_other_senders_are_rejected_before_their_body_is_read(headers: dict[str, str], status: int) -> None:
    async with console() as w:
        reply = await w.post(b"{" * 100, **headers)
        assert reply.status_code == status
        assert reply.json()["error"]
        assert ("www-authenticate" in reply.headers) == (status == 401)
        assert not w.applied
        assert not w.ingest.streams()
        assert w.records.counts == {str(status): 1}


async def test_only_post_is_answered() -> None:
    async with console() as w:
        assert (await w.client.get("/v1/records")).status_code == 405
        assert w.reviews == 0


async def test_an_unauthenticated_body_is_not_read_at_all() -> None:
    """The server answers although the body never arrives."""
    async with console() as w:
        port = int(w.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/records HTTP/1.1\r\nHost: c\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        assert b" 401 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 400, "batch: is no JSON"),
        (b"[" * 100_000, 400, "depth limit"),
        (
            body().replace(b'"version":2', b'"version":1'),
            400,
            "version: 1 is not known here: this Berth reads version 2",
        ),
        (body().replace(b'"sequence":1', b'"sequence":' + b"9" * 400), 400, "number is infinity"),
        (body().replace(b'"lost":0', b'"lost":-1'), 400, "lost: "),
        (b" " * (MAX_BODY + 1), 413, "larger than 1048576 bytes"),
    ],
)
async def test_bad_batches_are_refused_with_their_fault(content: bytes, status: int, words: str) -> None:
    async with console() as w:
        reply = await w.post(content)
        assert reply.status_code == status
        assert words in reply.json()["error"]
        assert not w.ingest.streams()
        assert w.records.counts == {"version" if "version" in words else str(status): 1}


async def test_records_of_an_ended_process_are_rejected() -> None:
    async with console() as w:
        await w.post(body(1, epoch="old"))
        await w.post(body(1, epoch="new"))
        reply = await w.post(body(2, Released("a"), epoch="old"))
        assert reply.status_code == 409
        assert "epoch old of berth-0 has ended" in reply.json()["error"]
        assert not w.applied


def fails(*_: object) -> None:
    raise ZeroDivisionError


async def test_a_bug_of_the_console_is_no_success() -> None:
    async with console() as w:
        w.ingest = Ingest(fails, lambda epoch: None, lambda: 0.0)
        records = Records(w.reviewer, taker(w.ingest))
        async with listening(records, "127.0.0.1", 0) as url:
            headers = {"Content-Type": "application/json", "Authorization": "Bearer good"}
            reply = await w.client.post(f"{url}/v1/records", content=body(1, Released("a")), headers=headers)
            assert reply.status_code == 500
            assert records.counts == {"500": 1}
