"""What is free once workloads end: their devices, and the memory in use on them."""

from __future__ import annotations

import pytest

from extender.allocation.what_if import with_devices_allocated, with_devices_released
from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Reservation, Result
from extender.api.resource_slices import DeviceId, PoolKey
from extender.sandbox import carried_machines, fabric_slice
from tests.worlds.dra_worlds import H100, use_memory
from tests.worlds.gang_worlds import GangWorld


def in_use(world: GangWorld) -> tuple[Result, ...]:
    allocation = world.cache.snapshot().claims[ObjectKey("default", "held-n")].allocation
    assert allocation is not None
    return allocation.results


@pytest.mark.parametrize(("idle", "drift"), [(True, 0), (False, 0b1111)])
def test_the_memory_of_workloads_that_end_is_no_drift(idle: bool, drift: int) -> None:
    world = GangWorld()
    world.add_node("n", H100, busy=4)
    report = fabric_slice("n", carried_machines()[H100])
    use_memory(*range(4), mib=20_000)(report["spec"]["devices"])
    world.add_slice(report)
    node_info = world.cache.snapshot().node_infos["n"]
    assert not node_info.drift, "the claim explains the memory"
    released = with_devices_released(node_info, in_use(world), idle=idle)
    assert not released.busy
    assert released.drift == drift


def test_a_device_is_shared_until_its_last_share_ends() -> None:
    """Shares without a capacity once all ended with the first one: the counters of the device looked free."""
    world, pool = GangWorld(), PoolKey("d.example.com", "n")
    world.add_node("n", H100)
    about = {"driver": pool.driver, "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 2}}
    consumes = [{"counterSet": "s", "counters": {"c": {"value": "4"}}}]
    device = {"name": "channel", "allowMultipleAllocations": True, "consumesCounters": consumes}
    counters = [{"name": "s", "counters": {"c": {"value": "4"}}}]
    world.add_slice({"metadata": {"name": "a"}, "spec": {**about, "devices": [device]}})
    world.add_slice({"metadata": {"name": "b"}, "spec": {**about, "sharedCounters": counters}})
    shares = [Result("r", DeviceId(*pool, "channel"), share_id=f"s{number}") for number in range(2)]
    for number, share in enumerate(shares):
        world.cache.hold({f"c{number}": Reservation("p", "n", (share,), 10.0)})
    node_info = world.cache.snapshot().node_infos["n"]
    counted = next(one for one in node_info.inventory.pools if one.key == pool)
    admin = shares[0]._replace(admin_access=True)
    for number, (one, left) in enumerate(((admin, 2), (shares[0], 1), (shares[1], 0))):
        node_info = with_devices_released(node_info, [one])
        state = node_info.allocated_state
        assert state.pools[pool].holds("channel") is bool(left), number
        assert bool(state.counters(counted).get(("s", "c"))) is bool(left), number
    node_info = with_devices_released(with_devices_allocated(node_info, shares), shares[:1])
    assert node_info.allocated_state.pools[pool].holds("channel")
