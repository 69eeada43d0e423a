"""Which pools a node has: the order in which slices arrive does not matter."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from extender.allocation import Features, Search
from extender.allocation.nodes import WholePool, gather
from extender.allocation.what_if import problem_of, usage_of
from extender.api.device_classes import decode_class
from extender.api.nodes import decode_node
from extender.api.quantity import NANO
from extender.api.resource_claims import decode_claim
from extender.api.resource_slices import DeviceId, Slice, SliceDecoder
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from tests.worlds.dra_worlds import asks, custom, place
from tests.worlds.running_berth import berthing, pod

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
    "and the old one is complete": ([published("a", 1), published("c", 1, 2, "m")], []),
    "and the new one is not": ([published("a", 1), published("c", 2, 2, "m")], []),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_pool_is_the_same_in_every_order_of_its_slices(name: str) -> None:
    """The reference takes resourceSliceCount from the first slice that it sees."""
    slices, expected = PUBLISHED[name]
    for order in permutations(slices):
        whole = WholePool(order)
        pools = gather(NODE, order, lambda _, whole=whole: whole, Features())  # type: ignore[misc]  # binds the pool
        assert [(pool.incomplete, pool.trouble, len(pool.slices)) for pool in pools] == expected


def test_allocated_devices_consume_counters_until_the_node_has_the_new_generation() -> None:
    """A driver that replaces a pool began with another node. The counters of this node once looked unused.

    A node uses an old generation with the rules of 1.36 alone.
    """
    cache, decoder = ClusterCache(replace(Features(), corrected=False)), SliceDecoder()
    use = [{"counterSet": "s", "counters": {"c": {"value": "2"}}}]
    both = [{"name": name, "consumesCounters": use} for name in ("a", "b")]
    counters = [{"name": "s", "counters": {"c": {"value": "3"}}}]
    for name, generation, count, spec in (
        ("devices", 1, 2, {"nodeName": "n", "devices": both}),
        ("counters", 1, 2, {"nodeName": "n", "sharedCounters": counters}),
        ("next", 2, 3, {"nodeName": "m", "devices": [{"name": "c"}]}),
    ):
        pool = {"name": "p", "generation": generation, "resourceSliceCount": count}
        slice_ = {"metadata": {"name": name}, "spec": {"driver": "d", "pool": pool, **spec}}
        cache.apply_slice(name, decoder.decode(slice_))
    cache.apply_node("n", NODE)
    results = [{"driver": "d", "pool": "p", "device": "a", "request": "r"}]
    taken = {"metadata": {"namespace": "x", "name": "c", "uid": "u"}, "spec": {"devices": {"requests": []}}}
    claim = decode_claim({**taken, "status": {"allocation": {"devices": {"results": results}}}})
    cache.apply_claim(claim.key, claim)
    found = cache.snapshot().node_infos["n"]
    offline = usage_of(list(cache.slices.published.values()), [DeviceId("d", "p", "a")], {})
    (used,) = found.inventory.pools
    assert found.allocated_state.left(used) == offline.left(used) == {("s", "c"): NANO}


def test_a_device_with_counters_is_not_shared_without_the_gate_of_counters() -> None:
    decoder = SliceDecoder()
    use = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]
    device = {"name": "a", "allowMultipleAllocations": True, "consumesCounters": use}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": "n", "pool": pool, "devices": [{**device, "capacity": {"m": {"value": "4"}}}]}
    slices = [decoder.decode({"metadata": {"name": "s"}, "spec": spec})]
    asked = {"exactly": {"deviceClassName": "any", "capacity": {"requests": {"m": "1"}}}, "name": "r"}
    claim = decode_claim({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [asked]}}})
    state = usage_of(slices, [], {DeviceId("d", "p", "a"): {"m": NANO}})
    classes = {"any": decode_class({"metadata": {"name": "any"}, "spec": {}})}
    features = Features.from_gates(["DRAConsumableCapacity"])
    problem = problem_of(NODE, slices, classes, [("c", claim.spec)], state, features, Masks())
    assert Search(problem).run() is None


async def test_a_pod_is_told_which_counts_disagree() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [{"name": "a"}])
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": "d.example.com", "nodeName": "n1", "pool": pool, "devices": [{"name": "b"}]}
        await b.create(
            {"kind": "ResourceSlice", "metadata": {"name": "another"}, "spec": spec}, asks("c"), pod("p", "c")
        )
        assert await place(b, "p") == f"resource pool is invalid: {BOTH}"


def test_recorded_cases_have_the_rules_of_their_version() -> None:
    assert Features().corrected
    assert Features.from_gates(["1.38"]).corrected
    assert not Features.from_gates(["DRAAdminAccess"]).corrected
