"""The devices that a DeviceTaintRule taints, for everything that reads rules: serve and explain, and `allocate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cli.allocate_command import answers_of
from extender.cli.cluster_objects import dump_of

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "taint_rules.yaml").read_text())
POOLS = [("a", "one"), ("a", "two"), ("b", "one")]
DEVICES = [f"{driver}/{pool}/{device}" for driver, pool in POOLS for device in "xy"]


def fleet() -> list[Json]:
    """A node and the slices of its pools."""
    api = {"apiVersion": "resource.k8s.io/v1"}
    found: list[Json] = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}]
    for driver, pool in POOLS:
        key = {"name": pool, "generation": 1, "resourceSliceCount": 1}
        spec: Json = {"driver": driver, "pool": key, "nodeName": "n"}
        devices = [{"name": name, "attributes": {"pool": {"string": pool}}} for name in "xy"]
        slice_ = {
            "kind": "ResourceSlice",
            "metadata": {"name": f"{driver}-{pool}"},
            "spec": {**spec, "devices": devices},
        }
        found.append({**api, **slice_})
    return found


def rule(case: Json) -> Json:
    spec = {"taint": {"key": "t", "effect": "NoSchedule"}, **case["spec"]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec}


def all_but(tainted: list[str]) -> list[Json]:
    """A class of every device, and a claim for all devices that have no taint."""
    wanted = len(DEVICES) - len(tainted)
    exactly = {"deviceClassName": "any", "count": wanted}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    api = {"apiVersion": "resource.k8s.io/v1"}
    return [
        {**api, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}},
        {**api, "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "d"}, "spec": spec},
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_cache_taints_these_devices(case: Json) -> None:
    objects = fleet()
    for order in ([*objects, rule(case)], [rule(case), *objects]):  # a slice may come after the rule
        cache = dump_of(order)
        inventory = cache.snapshot().node_infos["n"].inventory
        blocking = [str(one.id) for one in inventory.devices if any(t.effect != "None" for t in one.device.taints)]
        assert sorted(blocking) == case["tainted"]
        cache.apply_rule("r", None)
        assert not any(one.device.taints for one in cache.snapshot().node_infos["n"].inventory.devices)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("order", ["in-tree", "preferred"])
def test_allocate_gives_the_others(case: Json, order: str) -> None:
    objects = [rule(case), *fleet(), *all_but(case["tainted"])]
    (answer,) = answers_of([("", obj) for obj in objects], order, None)
    if len(case["tainted"]) == len(DEVICES):
        assert answer["allocations"] is None
        assert any("has a taint" in line for line in answer["why"])
        return
    (allocation,) = answer["allocations"]
    results = allocation["devices"]["results"]
    given = sorted("{driver}/{pool}/{device}".format(**result) for result in results)
    assert given == sorted(set(DEVICES) - set(case["tainted"]))
