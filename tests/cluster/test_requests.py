"""Requests for lists and watches: the pages of a list, and the lines of a watch of the API server alone."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, cycle, repeat
from typing import Any, cast

import pytest

from extender.api.fields import Json
from extender.cluster import ApiClient, ClusterError, Credentials, Unavailable, pages
from extender.cluster.api_errors import Gone, TooLong
from extender.sandbox import listening
from extender.web.asgi import Answer
from tests.worlds.eventually import HANG_SECONDS

KIB, MIB, MAX_BYTES = 1 << 10, 1 << 20, 10 << 20


class Server:
    """Has objects of these sizes in bytes. `asked` has the limit of each request, and whether it had an answer."""

    def __init__(self, kind: str, sizes: Sequence[int]) -> None:
        self.kind, self.sizes = kind, sizes
        self.asked: list[tuple[int, bool]] = []
        self.sent: list[Json] = []

    async def get(self, path: str, params: Mapping[str, str], most_bytes: int = MAX_BYTES) -> Json:
        assert not any(self.sent), "only one page is kept"
        limit, start = int(params["limit"]), int(params.get("continue", "0"))
        found = self.sizes[start : start + limit]
        self.asked.append((limit, sum(found) <= most_bytes))
        if sum(found) > most_bytes:
            raise TooLong(f"the response has more than {most_bytes} bytes")
        left = start + limit < len(self.sizes)
        metadata = {"resourceVersion": "1", "continue": str(start + limit) if left else ""}
        self.sent.append({"kind": self.kind, "items": found, "metadata": metadata})
        return self.sent[-1]

    async def list(self) -> list[int]:
        """The sizes of the objects of all pages, with at most 8 objects each."""
        found = pages(cast("ApiClient", self), "/path", self.kind, 8)
        return [size async for page in found for size in page["items"]]


CASES: dict[str, tuple[str, list[int], list[tuple[int, bool]]]] = {
    "small ones": ("PodList", [KIB] * 20, [(8, True)] * 3),
    "none": ("PodList", [], [(8, True)]),
    "2 MiB a page": ("ResourceClaimList", [MIB] * 4, [(8, False), (4, False), (2, True), (4, True)]),
    "large ones, then small ones": (
        "ResourceClaimList",
        [MIB] * 2 + [KIB] * 20,
        [(8, False), (4, False), (2, True), (4, True), (8, True), (8, True)],
    ),
    "one of more than 2 MiB": ("ResourceClaimList", [3 * MIB], [(8, False), (4, False), (2, False), (1, True)]),
    "8 MiB a page of slices": ("ResourceSliceList", [MIB] * 8, [(8, True)]),
}


@pytest.mark.parametrize("case", CASES)
async def test_pages_of_large_objects_have_fewer(case: str) -> None:
    """Claims of 1.4 MB, 200 in a page, once kept Berth from starting; and a few large ones once left small pages to
    all that followed."""
    kind, sizes, asked = CASES[case]
    server = Server(kind, sizes)
    assert await server.list() == sizes
    assert server.asked == asked


async def test_an_object_that_is_too_long_ends_the_list() -> None:
    with pytest.raises(TooLong):
        await Server("ResourceClaimList", [MAX_BYTES + 1]).list()


@pytest.mark.parametrize(
    ("tokens", "problem", "pages"),
    [
        (map(str, count(1)), "it has more than 10000 pages", 10_000),
        (repeat("again"), "two pages have the same continue token", 2),
        (cycle(("a", "b")), "two pages have the same continue token", 3),
    ],
    ids=["ever new tokens", "one token", "two tokens"],
)
async def test_a_list_that_does_not_end_is_an_error(tokens: Iterator[str], problem: str, pages: int) -> None:
    class Endless(Server):
        asked_for = 0

        async def get(self, path: str, params: Mapping[str, str], most_bytes: int = MAX_BYTES) -> Any:
            self.asked_for += 1
            return {"kind": self.kind, "items": [], "metadata": {"resourceVersion": "1", "continue": next(tokens)}}

    server = Endless("NodeList", [])
    with pytest.raises(Unavailable, match=f"the list does not end; {problem}"):
        await server.list()
    assert server.asked_for == pages


def credentials(url: str) -> Credentials:
    return Credentials(url, None, lambda: None)


async def test_a_watch_follows_no_redirect() -> None:
    """Else another address could show its objects as those of the cluster."""
    asked: list[str] = []

    async def redirecting(scope: Any, receive: Any, send: Any) -> None:
        del receive
        if scope["type"] == "http":
            asked.append(scope["path"])
            where = ((b"location", b"/elsewhere"),) if scope["path"] == "/watched" else ()
            await Answer(302 if where else 200, b"{}", more=where).to(send)

    async with listening(redirecting, "127.0.0.1", 0) as url, ApiClient(credentials(url)) as client:
        with pytest.raises(ClusterError, match="302"):
            _ = [line async for line in client.lines("/watched", {}, HANG_SECONDS)]
    assert asked == ["/watched"]


async def test_a_watch_that_the_server_does_not_open_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.cluster.client._OPEN_SECONDS", 0.05)
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)  # it sends nothing
    port = server.sockets[0].getsockname()[1]
    async with server, ApiClient(credentials(f"http://127.0.0.1:{port}")) as client:
        with pytest.raises(Unavailable, match="watch /watched: TimeoutError"):
            _ = [line async for line in client.lines("/watched", {}, silence_seconds=20.0)]


async def test_a_watch_whose_lines_do_not_end_ends() -> None:
    """A proxy that sends a byte now and then keeps the connection busy, and shows nothing."""

    async def dripping(scope: Any, receive: Any, send: Any) -> None:
        del receive
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for part in (b"{}\n", *[b" "] * 2000):
                await send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.sleep(0.01)

    async with listening(dripping, "127.0.0.1", 0) as url, ApiClient(credentials(url)) as client:
        lines = client.lines("/watched", {}, silence_seconds=0.5)
        assert [line async for line in lines] == [b"", b"{}\n"], "none of the spaces, which take 20 s"


async def lines_of(parts: Iterable[bytes]) -> list[bytes]:
    """The lines of a watch whose server sends these parts and ends."""

    async def sending(scope: Any, receive: Any, send: Any) -> None:
        del receive
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b""})

    async with listening(sending, "127.0.0.1", 0) as url, ApiClient(credentials(url)) as client:
        return [line async for line in client.lines("/watched", {}, HANG_SECONDS)]


async def test_a_line_is_whole_however_it_arrives() -> None:
    """Only a line that the end of the response cuts lacks its newline."""
    lines = [b'{"a":1}\n', b"\n", b'{"b":2}\n', b"x" * 600_000 + b"\n", b'{"c":']
    text = b"".join(lines)
    assert await lines_of([text]) == [b"", *lines]
    assert await lines_of(text[at : at + 50_001] for at in range(0, len(text), 50_001)) == [b"", *lines]
    assert await lines_of([text[:20], text[20:]]) == [b"", *lines]


async def test_a_line_that_does_not_end_takes_little_memory() -> None:
    """Only a list can show the object that it is about."""
    with pytest.raises(Gone, match="watch /watched: an event is longer than 10485760 bytes"):
        await lines_of([b"{}\n", *[b"x" * (1 << 20)] * 40])


async def test_a_long_line_is_not_copied_with_each_of_its_parts() -> None:
    """In parts of 16 KiB such a line took 1.8 s of CPU. The memory shows the copies: one was beside line and rest."""
    part, parts = b"x" * 65_536, 144
    tracemalloc.start()
    try:
        lines = await lines_of([*[part] * parts, b"\n"])
        assert tracemalloc.get_traced_memory()[1] < 2.5 * len(part) * parts
    finally:
        tracemalloc.stop()
    assert lines == [b"", part * parts + b"\n"]
