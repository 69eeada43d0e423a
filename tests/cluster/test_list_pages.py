"""The pages of a list: as many objects as a page may have, fewer if they are large, and an end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, cycle, repeat
from typing import Any, cast

import pytest

from extender.api.fields import Json
from extender.cluster import ApiClient, Unavailable, pages
from extender.cluster.api_errors import TooLong

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
