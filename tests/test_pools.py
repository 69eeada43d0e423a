"""Which pools a node has: the order in which slices arrive does not matter."""

from __future__ import annotations

from itertools import permutations

import pytest

from extender.allocation import Features
from extender.allocation.pools import gather
from extender.model import Slice
from extender.wire import SliceDecoder, decode_node
from tests.dra_worlds import asks, custom, place
from tests.running_berth import berthing, pod

NODE = decode_node({"metadata": {"name": "n"}})


def published(name: str, count: int, generation: int = 1, node: str = "n") -> Slice:
    pool = {"name": "p", "generation": generation, "resourceSliceCount": count}
    devices = [{"name": f"device-of-{name}"}]
    spec = {"driver": "d.example.com", "nodeName": node, "pool": pool, "devices": devices}
    return SliceDecoder().decode({"metadata": {"name": name}, "spec": spec})


BOTH = "ResourceSlices of one generation have resourceSliceCount 1 and 2"
PUBLISHED = {
    "the counts agree": ([published("a", 2), published("b", 2)], [(False, "", 2)]),
    "a slice is missing": ([published("a", 3), published("b", 3)], [(True, "", 0)]),
    "one count is that of the slices": ([published("a", 1), published("b", 2)], [(False, BOTH, 0)]),
    "no count is that of the slices": (
        [published("a", 1), published("b", 4), published("c", 2)],
        [(False, "ResourceSlices of one generation have resourceSliceCount 1 and 4", 0)],
    ),
    "an older generation said something else": ([published("a", 1, 2), published("b", 2, 1)], [(False, "", 1)]),
    "a slice of another node says something else": (
        [published("a", 2), published("b", 2), published("c", 3, node="m")],
        [(False, "", 2)],
    ),
    "the newest generation has no slice for the node": (
        [published("a", 1), published("b", 2), published("c", 1, 2, "m")],
        [],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_pool_is_the_same_in_every_order_of_its_slices(name: str) -> None:
    """The reference takes resourceSliceCount from the first slice that it sees."""
    slices, expected = PUBLISHED[name]
    for order in permutations(slices):
        pools = gather(NODE, order, lambda _, order=order: order, Features())  # type: ignore[misc]  # binds the order
        assert [(pool.incomplete, pool.trouble, len(pool.slices)) for pool in pools] == expected


async def test_a_pod_is_told_which_counts_disagree() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [{"name": "a"}])
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": "d.example.com", "nodeName": "n1", "pool": pool, "devices": [{"name": "b"}]}
        b.cluster.apply({"kind": "ResourceSlice", "metadata": {"name": "another"}, "spec": spec})
        b.cluster.apply(asks("c"))
        b.cluster.apply(pod("p", "c"))
        assert await place(b, "p") == f"resource pool is invalid: {BOTH}"
