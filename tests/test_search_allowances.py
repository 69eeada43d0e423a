"""A node whose devices change again and again does not have each search use up its steps."""

from __future__ import annotations

import pytest

from extender.model import DeviceId, Result, members
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice
from tests.budget_worlds import Fleet

PRODUCT = "gpu.nvidia.com/productName"


def publish(fleet: Fleet, version: int, products: int = 128) -> None:
    """The driver of n0 publishes 128 GPUs."""
    obj = gpu_slice("n0", carried_machines()["t4-4"])
    first = obj["spec"]["devices"][0]
    obj["spec"]["devices"] = [
        {
            **first,
            "name": f"gpu-{number}",
            "attributes": {
                **first["attributes"],
                "productName": {"string": f"{number % products}"},
                "version": {"int": version},
            },
        }
        for number in range(128)
    ]
    fleet.cache.apply_slice("n0", fleet.decoder.decode(obj))


def reason(fleet: Fleet) -> str:
    """The reason of n0 for a pod that needs two GPUs of one product; empty if the node passes."""
    pod = fleet.pod("a", constraint=PRODUCT, count=2)
    result = fleet.filter_service.filter(pod, fleet.names)
    assert not result.error
    fleet.gone(pod)
    return result.failed.get("n0", "")


def test_a_driver_that_changes_devices_again_and_again_has_only_the_first_searches_use_up_their_steps() -> None:
    """1,024 GPUs of ever new products, changed 20 times a second, left pods with matchAttribute 13 % of their rate."""
    fleet = Fleet(nodes=1)
    assert not reason(fleet)
    reasons = []
    for version in range(8):
        publish(fleet, version)
        reasons.append(reason(fleet))
    assert all("agree on" in text for text in reasons[:2])
    assert all("gave up" in text for text in reasons[2:])


def test_the_allowance_is_full_again_after_some_time() -> None:
    fleet = Fleet(nodes=1)
    for version in range(8):
        fleet.clock.now += 10
        publish(fleet, version)
        assert "agree on" in reason(fleet)


def test_a_node_whose_use_alone_changes_has_no_such_limit() -> None:
    fleet = Fleet(nodes=1)
    publish(fleet, 0)
    for number in range(8):
        result = Result("r", DeviceId("gpu.nvidia.com", "n0", f"gpu-{number}"))
        fleet.cache.hold(f"other-{number}", "other", "n0", (result,), 1e9)
        assert "agree on" in reason(fleet)


def test_a_node_with_easy_searches_may_change_as_often_as_it_likes() -> None:
    fleet = Fleet(nodes=1)
    for version in range(50):
        publish(fleet, version, products=64)
        assert not reason(fleet)


@pytest.mark.parametrize("bits", [0, 1, 8, 300, 5000])
def test_members_of_small_and_large_masks(bits: int) -> None:
    mask = sum(1 << (3 * number) for number in range(bits))
    assert members(mask) == [3 * number for number in range(bits)]
