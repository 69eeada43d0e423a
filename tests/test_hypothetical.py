"""The memory of workloads that end counts as drift no longer."""

from __future__ import annotations

import pytest

from extender.allocation import with_devices_released
from extender.model import ObjectKey, Result
from extender.sandbox import carried_machines, fabric_slice
from tests.gang_worlds import GangWorld
from tests.test_scoring import H100, use_memory


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
