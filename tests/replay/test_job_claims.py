"""Jobs with claims: their GPUs are counted whatever the class is called, also while they wait."""

from __future__ import annotations

from typing import Any

import pytest

from extender.base.berth_errors import WireError
from extender.policy import Policy
from extender.replay import Job, fleet_of, placer_of, run_replay
from extender.replay.placers import Rule
from extender.sandbox import DEVICE_CLASSES, MachineNode, carried_machines, machine_objects
from extender.tune import AIMS, tune
from tests.worlds.replay_worlds import replayed
from tests.worlds.vendor_worlds import cpx, mi300x, node_and_slice

Json = dict[str, Any]
EIGHT: Json = {"deviceClassName": "gpu.nvidia.com", "count": 8}
OWN_CLASS = {
    **DEVICE_CLASSES[0],
    "metadata": {"name": "team-gpus"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver.endsWith('.nvidia.com')"}}]},
}


def claim(**request: Any) -> Json:
    return {"devices": {"requests": [{"name": "g", **request}]}}


@pytest.mark.parametrize(
    "asked",
    [
        claim(exactly=EIGHT),
        claim(exactly={"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}),
        claim(firstAvailable=[{"name": "many", **EIGHT, "count": 16}, {"name": "x", **EIGHT}]),
    ],
    ids=["exactly", "All", "firstAvailable"],
)
@pytest.mark.parametrize("rule", ["berth", "first fit"])
def test_gpus_of_a_claim_count_when_it_runs_and_while_it_waits(asked: Json, rule: Rule) -> None:
    jobs = [Job("runs", 0, 50, claim=asked), Job("waits", 0, 50, claim=asked), Job("end", 100, 1, cpu=1)]
    found = replayed(jobs, "1xhgx-h100-8", rule)
    assert (found.allocated, {size: count for size, (count, *_) in found.waits.items()}) == (1, {"no GPU": 1, "5-8": 2})
    assert (found.samples[1].allocated, found.samples[1].waiting, found.samples[-1].waiting) == (8, 8, 0)


def fleet_with_own_class(jobs: list[Job]) -> Any:
    return fleet_of(
        [], [*machine_objects(MachineNode("n", carried_machines()["hgx-h100-8"], {})), OWN_CLASS], jobs=jobs
    )


def test_gpus_of_a_class_of_the_cluster_count_as_those_of_the_driver() -> None:
    """`berth tune` knows before any replay that these jobs are large, and pods with several GPUs."""
    asked = claim(exactly={**EIGHT, "deviceClassName": "team-gpus"})
    jobs = [Job(f"j{number}", number, 100, claim=asked) for number in range(3)]
    fleet = fleet_with_own_class(jobs)
    found = run_replay(fleet, [*jobs, Job("end", 300, 1, cpu=1)], placer_of("berth"))
    assert (round(found.allocated, 2), {size: count for size, (count, *_) in found.waits.items()}) == (
        1,
        {"no GPU": 1, "5-8": 3},
    )
    for name in ("bandwidth", "large-jobs"):
        assert any(map(AIMS[name].needs, fleet.counted(jobs))), name


def test_parts_and_nics_and_devices_with_admin_access_are_no_gpus() -> None:
    nic = {"name": "nic-0", "attributes": {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}}
    objects = node_and_slice("a", gpu_amd_com=[mi300x(0), mi300x(1), cpx(1)], gce_dra_net=[nic])
    classes = [
        {**OWN_CLASS, "metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        for name, expression in (
            ("any-amd", "device.driver == 'gpu.amd.com'"),
            ("parts", "device.driver == 'gpu.amd.com' && device.attributes['gpu.amd.com'].type == 'amdgpu-partition'"),
            ("nics", "device.driver == 'gce.dra.net'"),
        )
    ]
    requests = {
        "whole": {"deviceClassName": "any-amd"},
        "part": {"deviceClassName": "parts"},
        "nic": {"deviceClassName": "nics"},
        "admin": {"deviceClassName": "any-amd", "adminAccess": True},
    }
    jobs = [Job(name, 0, claim=claim(exactly=request)) for name, request in requests.items()]
    fleet = fleet_of([], [*objects, *classes])
    assert {one.name: one.pod_gpus for one in fleet.counted(jobs)} == {"whole": 1, "part": 0, "nic": 0, "admin": 0}
    found = run_replay(fleet, [*jobs, Job("end", 100, 1, cpu=1)], placer_of("first fit"))
    assert found.allocated == pytest.approx(1 / 2)
    assert set(found.never) == {"admin"}, "the namespace of jobs does not allow it"


def test_a_fleet_without_gpus_for_the_claims_is_no_fault_of_the_aim() -> None:
    with pytest.raises(WireError, match="no job has more than 4 GPUs"):
        tune(fleet_with_own_class([]), [Job("a", 0, cpu=1)], Policy(), AIMS["large-jobs"], 1, 5)


@pytest.mark.parametrize("obj", [{"kind": "DeviceClass"}, {"kind": "DeviceClass", "metadata": {"namespace": "x"}}])
def test_a_class_without_a_name_is_a_fault_of_the_snapshot(obj: Json) -> None:
    with pytest.raises(WireError, match=r"DeviceClass null: \.metadata\.name: is missing"):
        fleet_of([], [*node_and_slice("a", gpu_amd_com=[mi300x(0)]), obj])
