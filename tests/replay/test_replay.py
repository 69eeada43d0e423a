"""A replay decides as serve does, in a time of its own, and says what it found."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from extender.api.reasons import FREEABLE_CODES, Code, Reason
from extender.base.berth_errors import BerthError, WireError
from extender.replay import Job, Task, fleet_of, large_shape, placer_of, run_replay, run_side_by_side
from extender.replay.jobs import MAX_SECONDS
from extender.replay.placers import BerthPlacing, Rule
from extender.replay.virtual_scheduler import likely_reason
from extender.sandbox import DEVICE_CLASSES, MachineNode, carried_machines, machine_objects, parse_nodes
from tests.worlds.replay_worlds import placed, placed_in_sandbox, replayed
from tests.worlds.vendor_worlds import cpx, mi300x, node_and_slice

HOUR = 3600.0
EXCLUDED = "node selector, node affinity, a taint or a cordon excludes the node"
MIXED = "2xa100-pcie-8-bridged,2xhgx-h100-8,4xgb200-nvl72-tray/2,1xt4-4"


@pytest.mark.loopback
async def test_pods_get_the_nodes_and_devices_that_the_sandbox_gives_them() -> None:
    jobs = [
        Job("pair", 0, gpus=2, topology="preferred"),
        Job("small", 100, gpus=1),
        Job("near", 200, gpus=2, nics=2, topology="preferred"),
        Job("rack", 400, pods=2, gpus=4, group_required="clique"),
        Job("other", 500, gpus=2, topology="required"),
        Job("tiny", 600, gpus=1, topology="none"),
        Job("rest", 700, pods=2, gpus=1),
    ]
    outcome = await asyncio.to_thread(replayed, jobs, MIXED)  # in a loop of its own
    assert placed(outcome, jobs) == await placed_in_sandbox(jobs, parse_nodes(MIXED))
    assert outcome.started == len(jobs)


HALF = Job("half", 0, 100, gpus=1, cpu=70_000)  # a node of a machine file has 128 cores
STARTS: dict[str, tuple[str, list[Job], dict[str, int]]] = {  # nodes, jobs, and when they start
    "jobs run and wait for exactly their time": (
        "1xt4-4",
        [Job("a", 0, 100, gpus=4), Job("b", 1, 50, gpus=4), Job("c", 2, 10, gpus=4), Job("d", 155, 10, gpus=4)],
        {"a": 0, "b": 100, "c": 150, "d": 160},
    ),
    "the pod that waits longest is first, whatever its shape": (
        "1xt4-4",
        [Job("run", 0, 100, gpus=4), Job("a", 1, 100, gpus=4), Job("b", 2, 100, gpus=3), Job("c", 3, 100, gpus=4)],
        {"run": 0, "a": 100, "b": 200, "c": 300},
    ),
    "a job ends while the next arrival is far away": (
        "1xt4-4",
        [*(Job(name, at, 100, gpus=4) for at, name in enumerate("abc")), Job("z", 99 * HOUR, 1, gpus=1)],
        {"a": 0, "b": 100, "c": 200, "z": 356400},
    ),
    "CPU and memory limit the nodes as GPUs do": (
        "1xt4-4",
        [HALF, Job("other", 1, 100, gpus=1, cpu=70_000), Job("plain", 2, 100, cpu=50_000)],
        {"half": 0, "plain": 2, "other": 100},
    ),
    "a gang starts with its last pod": (
        "2xgb200-nvl72-tray/2",
        [Job("single", 0, 500, gpus=4), Job("gang", 1, 100, pods=2, gpus=4)],
        {"single": 0, "gang": 500},
    ),
}


@pytest.mark.parametrize("rule", ["berth", "first fit", "emptiest node"])
@pytest.mark.parametrize("name", STARTS)
def test_when_jobs_start(name: str, rule: Rule) -> None:
    nodes, jobs, starts = STARTS[name]
    found = replayed(jobs, nodes, rule).started_jobs
    assert {name: round(job.at) for name, job in found.items()} == starts
    for job in jobs:
        nodes_of = {pod.node for pod in found[job.name].pods}
        assert (round(found[job.name].wait), len(nodes_of)) == (starts[job.name] - job.arrival, job.pods)


@pytest.mark.parametrize("rule", ["berth", "first fit"])
@pytest.mark.parametrize("later", [2.0**24, 1.7e9 + 0.1, MAX_SECONDS - HOUR])
def test_jobs_of_another_year_get_the_same_devices_after_the_same_waits(rule: Rule, later: float) -> None:
    """A float of seconds becomes coarse: after 2**24 s the resolution of the machine's clock is lost in it."""
    first = Job("first", 0, 1, gpus=1)
    jobs = [
        Job("run", 0, 100.5, gpus=4),
        Job("wait", 0.25, 1, gpus=2),
        Job("gang", 1, 50, pods=2, gpus=4),
        Job("half", 2, 1, pods=3, gpus=4),
        Job("last", 900, gpus=1),
    ]
    soon, late = (
        replayed([first, *(replace(job, arrival=job.arrival + by) for job in jobs)], "2xgb200-nvl72-tray/2", rule)
        for by in (HOUR, later)
    )
    assert placed(late, jobs[:3]) == placed(soon, jobs[:3])
    assert late.failures == soon.failures
    for name, job in soon.started_jobs.items():
        assert late.started_jobs[name].wait == pytest.approx(job.wait, abs=1e-4)


def test_a_half_placed_gang_rests_while_nothing_happens_for_years() -> None:
    """It starts again after the next event: then the devices are free that the other jobs had."""
    jobs = [
        Job("run", 0, MAX_SECONDS / 2, gpus=4),
        Job("gang", 1, HOUR, pods=3, gpus=4),
        Job("last", MAX_SECONDS, gpus=1),
    ]
    found = replayed(jobs, "3xgb200-nvl72-tray/3", "first fit")
    assert found.failures < 20
    assert found.started_jobs["gang"].at == pytest.approx(MAX_SECONDS / 2, abs=1)


def test_jobs_may_run_beyond_the_last_year_of_a_date() -> None:
    jobs = [Job(f"job-{number}", number, MAX_SECONDS, gpus=4) for number in range(30)]
    assert replayed(jobs, "1xt4-4").started == len(jobs)


def test_berth_joins_gpus_that_first_fit_splits() -> None:
    jobs = [Job("one", 0, HOUR, gpus=1), *(Job(f"pair-{i}", i + 1.0, HOUR, gpus=2) for i in range(3))]
    berth, first_fit = (replayed(jobs, "1xa100-pcie-8-bridged", rule) for rule in ("berth", "first fit"))
    assert (berth.joined, berth.ring) == (1.0, 1.0)
    assert first_fit.joined == 0.0
    assert first_fit.ring < 0.2
    assert berth.ring_gbps > 5 * first_fit.ring_gbps


def test_a_gang_is_in_one_clique_with_berth_and_half_placed_without() -> None:
    """Two gangs that each need three of four trays: pod by pod both hold trays, until one runs out of patience."""
    jobs = [Job("a", 0, HOUR, pods=2, gpus=4), Job("b", 1, HOUR, pods=4, gpus=4), Job("c", 2, HOUR, pods=4, gpus=4)]
    berth, first_fit = (replayed(jobs, "4xgb200-nvl72-tray/2", rule) for rule in ("berth", "first fit"))
    assert (berth.failures, berth.started, berth.domains) == (0, 3, (1 + 2 + 2) / 3)
    assert first_fit.failures > 0
    assert berth.held == 0
    assert first_fit.held > 0


def test_pods_of_a_gang_without_devices_are_in_no_domain() -> None:
    """A launcher may be anywhere: the figures of gangs leave it out, and a gang of one pod with devices, too."""
    field = {"key": "metadata.name", "operator": "In", "values": ["t4-4-00000"]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    launcher = Job("", 0, cpu=1, spec={"affinity": affinity})
    gang = Job("gang", 0, pods=2, gpus=4, group_required="clique", parts=(launcher,))
    jobs = [gang, Job("one", 1, gpus=4, parts=(launcher,)), Job("none", 2, pods=3, cpu=1)]
    found = replayed(jobs, "2xgb200-nvl72-tray/2,4xt4-4")
    used = {pod.node for pod in found.started_jobs["gang"].pods}
    assert found.started == 3
    assert len(used) == 3
    assert (found.gangs, found.in_one, found.domains) == (1, 1, 1)


def test_the_parts_of_a_gang_are_placed_together_and_start_with_the_last_pod() -> None:
    """One tray is in use: with Berth both parts go to the clique that has room, first fit spreads them over both."""
    gang = Job("gang", 1, 100, gpus=4, parts=(Job("gang", 0, pods=2, gpus=2),))
    alone = Job("alone", 2, 50, gpus=1, pods=1, group_required="rack")  # means nothing to a single pod
    jobs = [Job("single", 0, 500, gpus=4), gang, alone]
    berth, first_fit = (replayed(jobs, "4xgb200-nvl72-tray/2", rule) for rule in ("berth", "first fit"))
    for found in (berth, first_fit):
        assert [pod.gpus for pod in found.started_jobs["gang"].pods] == [4, 2, 2]
        assert (found.started, found.waits["5-8"][0]) == (3, 1)
    assert (berth.domains, first_fit.domains) == (1, 2)
    waits = replayed([Job("single", 0, 500, gpus=2), gang], "2xgb200-nvl72-tray/2").started_jobs["gang"]
    assert round(waits.at) == 500


def test_jobs_that_never_fit_are_named_with_their_reason() -> None:
    huge, fits, gang = Job("huge", 0, 10, gpus=8), Job("fits", 1, 10, gpus=4), Job("gang", 2, 10, pods=3, gpus=4)
    found = replayed([huge, fits, gang, Job("equal", 3, 10, gpus=8)], "2xt4-4")
    assert (found.started, found.jobs) == (1, 4)
    assert found.never["huge"] == found.never["equal"] == "too few devices match request gpu"
    assert "no domain has room" in found.never["gang"]
    assert found.waits == {"2-4": (1, 0.0, 0.0)}


@pytest.mark.parametrize(("rule", "one_node"), [("berth", True), ("emptiest node", False)])
def test_nodes_with_equal_scores_are_filled_in_turn_with_the_scheduler_of_berth(rule: Rule, *, one_node: bool) -> None:
    """scheduler-config/ has MostAllocated, kube-scheduler by itself LeastAllocated."""
    jobs = [Job("a", 0, cpu=64_000), Job("b", 1, cpu=32_000), Job("c", 2, cpu=32_000), Job("d", 3, ram=1 << 30)]
    for seed in range(4):
        found = replayed(jobs, "2xt4-4", rule, seed=seed).started_jobs
        node = {name: job.pods[0].node for name, job in found.items()}
        assert node["b"] == node["c"]
        assert (node["b"] == node["a"]) is one_node


def test_pods_go_only_to_nodes_that_their_spec_admits() -> None:
    machine, taint = carried_machines()["t4-4"], {"key": "team", "value": "a", "effect": "NoSchedule"}
    objects = [one for name in ("n1", "n2", "n3") for one in machine_objects(MachineNode(name, machine, {"of": name}))]
    next(one for one in objects if one["metadata"]["name"] == "n1")["spec"] = {"taints": [taint]}
    expression = {"key": "of", "operator": "In", "values": ["n3"]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    }
    tolerations = [{"key": "team", "operator": "Exists"}]
    jobs = [
        Job("plain", 0, gpus=1),
        Job("tolerant", 1, gpus=4, spec={"nodeSelector": {"of": "n1"}, "tolerations": tolerations}),
        Job("affine", 2, gpus=1, spec={"affinity": {"nodeAffinity": affinity}}),
        Job("cores", 3, cpu=1, spec={"nodeSelector": {"of": "n3"}}),
        Job("gang", 4, pods=2, gpus=1, spec={"nodeSelector": {"of": "n3"}}),
        Job("nowhere", 5, gpus=1, spec={"nodeSelector": {"of": "n1"}}),
    ]
    for rule in ("berth", "first fit", "emptiest node"):
        found = run_replay(fleet_of([], [*objects, *DEVICE_CLASSES]), jobs, placer_of(rule))
        nodes = {name: {pod.node for pod in job.pods} for name, job in found.started_jobs.items()}
        assert nodes.pop("plain") <= {"n2", "n3"}, rule
        assert nodes == {"tolerant": {"n1"}, "affine": {"n3"}, "cores": {"n3"}, "gang": {"n3"}}, rule
        assert found.never == {"nowhere": f"{EXCLUDED}: taint team:NoSchedule is not tolerated"}, rule


def test_gpus_of_nodes_with_the_usual_taint_are_for_jobs_with_gpus() -> None:
    """A CSV file cannot say tolerations, and the nodes of most clouds have this taint. JSON can say that it has none.

    The reason names the taint.
    """
    objects = machine_objects(MachineNode("n", carried_machines()["t4-4"], {}))
    objects[0]["spec"] = {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}
    jobs = [
        Job("gpus", 0, gpus=1),
        Job("gang", 1, pods=2, gpus=1),
        Job("cores", 2, cpu=1),
        Job("strict", 3, gpus=1, spec={"tolerations": []}),
        Job("elsewhere", 4, gpus=1, spec={"nodeSelector": {"of": "m"}}),
    ]
    why = f"{EXCLUDED}: taint nvidia.com/gpu:NoSchedule is not tolerated"
    for rule in ("berth", "first fit"):
        found = run_replay(fleet_of([], [*objects, *DEVICE_CLASSES]), jobs, placer_of(rule))
        assert found.never == {"cores": why, "strict": why, "elsewhere": EXCLUDED}, rule


def test_pods_of_a_higher_priority_come_first() -> None:
    jobs = [Job("runs", 0, 100, gpus=4), *(Job(f"j{i}", 1 + i, 10, gpus=4, spec={"priority": i % 3}) for i in range(6))]
    for rule in ("berth", "first fit"):
        found = replayed(jobs, "1xt4-4", rule).started_jobs
        assert sorted(found, key=lambda name: found[name].at) == ["runs", "j2", "j5", "j1", "j4", "j0", "j3"]


@pytest.mark.parametrize("gpus", [4, 0.6], ids=["whole", "parts"])
def test_pods_without_devices_go_where_gpus_are_in_use(gpus: float) -> None:
    """Else the last jobs would find GPUs without CPU: LeastAllocated alone prefers the idle node."""
    pods = 1 if gpus == 4 else 4
    jobs = [
        *(Job(f"first-{i}", 0, gpus=gpus) for i in range(pods)),
        *(Job(f"plain-{i}", 1 + i, cpu=30_000) for i in range(4)),  # a node has 128 cores
        *(Job(f"last-{i}", 9, gpus=gpus, cpu=120_000 // pods) for i in range(pods)),
    ]
    berth, least_allocated = (replayed(jobs, "2xt4-4", rule) for rule in ("berth", "emptiest node"))
    assert berth.started == len(jobs)
    assert least_allocated.started < len(jobs)


def test_pods_without_devices_leave_the_cpu_beside_parts_of_gpus() -> None:
    """A node of whose GPUs parts are left is worse than one where nothing is left."""
    whole, parts = Job("whole", 0, gpus=4, cpu=8_000), [Job(f"part-{i}", 1 + i, gpus=0.6) for i in range(4)]
    plain = [Job(f"plain-{i}", 9 + i, cpu=40_000) for i in range(3)]
    for seed in range(3):
        found = replayed([whole, *parts, *plain], "2xt4-4", seed=seed).started_jobs
        assert {found[one.name].pods[0].node for one in plain} == {found["whole"].pods[0].node}


@pytest.mark.parametrize("duration", [50, math.inf])
def test_a_gang_for_which_no_room_will_be_does_not_restart_for_ever(duration: float) -> None:
    jobs = [Job("gang", 0, pods=3, gpus=4), Job("small", 1, duration, gpus=1)]
    found = replayed(jobs, "2xt4-4", "first fit")
    assert list(found.never) == ["gang"]
    assert found.failures > 1
    assert list(found.started_jobs) == ["small"]


def test_parts_of_a_gpu_are_shared() -> None:
    jobs = [Job(f"part-{i}", i, HOUR, gpus=0.4) for i in range(4)] + [Job("whole", 5, HOUR, gpus=3)]
    found = replayed(jobs, "1xt4-4")
    assert found.started == 5
    used = {device for name, job in found.started_jobs.items() if name != "whole" for device in job.pods[0].devices}
    assert len(used) == 2, "two parts of 0.4 fit on a GPU"
    assert round(found.started_jobs["whole"].at) == HOUR + 1, "two GPUs are left until both parts of one end"
    assert found.started_jobs["whole"].pods[0].gpus == 3


@pytest.mark.parametrize("rule", ["berth", "first fit"])
def test_jobs_with_memory_start_beside_parts_of_gpus(rule: Rule) -> None:
    """Also on the GPUs of a snapshot. A part of a GPU means the same on every product."""
    amounts: Sequence[dict[str, Any]] = ({"memory": 40 << 30}, {"memory": 90 << 30}, {"expected_memory": 60 << 30})
    wholes = [Job(f"whole-{i}", 9, gpus=1, **one) for i, one in enumerate(amounts)]
    jobs = [*(Job(f"part-{i}", i, gpus=0.5) for i in range(2)), *wholes]
    machine = MachineNode("n", carried_machines()["hgx-h100-8"], {})
    for fleet in (fleet_of([machine], jobs=jobs), fleet_of([], machine_objects(machine), jobs=jobs)):
        found = run_replay(fleet, jobs, placer_of(rule)).started_jobs
        assert found.keys() == {"part-0", "part-1", "whole-0", "whole-2"}, "no GPU has 90 GiB"
        assert len({found[name].pods[0].devices for name in found if name.startswith("part")}) == 1


def test_a_claim_with_memory_is_not_replayed_beside_parts_of_gpus() -> None:
    expression = "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('40Gi'))"
    exactly = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    plain = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    for other in (Job("b", 1, claim=claim), Job("b", 1, claim=plain, expected_memory=60 << 30)):
        with pytest.raises(WireError, match="job b: claim: asks for memory, and another job for a share of a GPU"):
            fleet_of(parse_nodes("1xt4-4"), jobs=[Job("a", 0, gpus=0.5), other])


@pytest.mark.parametrize("rule", ["berth", "first fit", "emptiest node"])
def test_a_sample_is_taken_after_all_that_happens_at_its_time(rule: Rule) -> None:
    jobs = [Job("a", 0, 6000, gpus=8), Job("b", 0, gpus=8), Job("c", 3000, gpus=8), Job("d", 6000, gpus=1)]
    outcome = replayed(jobs, "2xhgx-h100-8", rule)
    assert {(one.allocated, one.large) for one in outcome.samples[:-1]} == {(16, 0)}
    assert [one.waiting for one in outcome.samples[29:31]] == [0, 8]
    assert outcome.large == 0.0


def test_the_share_of_allocated_gpus_is_the_mean_over_time() -> None:
    jobs = [Job("a", 0, 100, gpus=4), Job("b", 0, 50, gpus=4), Job("end", 200, 1, gpus=1)]
    found = replayed(jobs, "2xt4-4")
    assert found.allocated == pytest.approx((4 * 100 + 4 * 50) / (8 * 200), abs=0.01)
    assert len(found.samples) > 50
    assert found.samples[0].at == 0
    assert found.samples[-1].at == pytest.approx(200)


def test_the_large_job_of_a_clique_has_the_gpus_of_its_own_boards(tmp_path: Path) -> None:
    """A product may be on larger boards elsewhere, which are in no clique."""
    small = tmp_path / "h100-4.yaml"
    small.write_text(
        "{name: h100-4, gpu_product: NVIDIA H100 80GB HBM3, gpus: 4, vram_bytes: 85520809984, nvswitch: true,"
        ' nvlink_generation: "4", link_GBps_per_direction: 25, links_per_gpu: [18, 18, 18, 18]}'
    )
    jobs = [Job("a", 0, 10, gpus=1, product="A100"), Job("b", 10, 10, gpus=1, product="A100")]
    fleet = f"1xhgx-h100-8,1xa100-pcie-8-bridged,{{}}x{small}/4"
    assert replayed(jobs, fleet.format(4)).large == 16
    assert replayed(jobs, fleet.format(2)).large == 8


@pytest.mark.parametrize(
    ("nodes", "gpus", "shape", "share"),
    [
        ("1xhgx-h100-8", 4, "4", 1.0),
        ("1xhgx-h100-8", 5, "4", 0.5),
        ("1xhgx-h100-8", 5, "3x1", 1.0),
        ("2xhgx-h100-8", 4, "3x4", 1.0),
        ("2xhgx-h100-8", 4, "2x8", 0.5),
        ("1xa100-pcie-8-bridged", 2, "3x2", 1.0),  # three bridged pairs
        ("1xa100-pcie-8-bridged", 1, "4x2", 0.5),
        ("1xt4-4", 1, "2", 0.0),  # without links
        ("4xgb200-nvl72-tray/2", 4, "2x4", 1.0),  # of two cliques, the other one
        ("4xgb200-nvl72-tray/2", 4, "3x4", 0.0),  # a clique has two
    ],
)
def test_a_large_job_finds_a_place_while_others_leave_one(nodes: str, gpus: int, shape: str, share: float) -> None:
    """One job takes GPUs for half of the time."""
    jobs = [Job("half", 0, 50, gpus=gpus), Job("end", 100, cpu=1)]
    fleet = fleet_of(parse_nodes(nodes))
    found = run_replay(fleet, jobs, placer_of("berth"), large=large_shape(shape))
    assert found.large_place == pytest.approx(share, abs=0.05)
    assert math.isnan(replayed(jobs, nodes).large_place)


@pytest.mark.parametrize("text", ["0", "8x", "4x99", "abc", "0x8", "-1", "99999x1"])
def test_shapes_that_are_none(text: str) -> None:
    with pytest.raises(WireError) as raised:
        large_shape(text)
    assert str(raised.value) == f"--large: must be GPUS or PODSxGPUS, such as 8 or 4x8, is '{text}'"


def test_a_snapshot_keeps_what_runs() -> None:
    """A claim of another scheduler holds two of four GPUs, and its pod 100 of 128 cores."""
    node, machine = "n", carried_machines()["t4-4"]
    results = [{"request": "g", "driver": "gpu.nvidia.com", "pool": node, "device": f"gpu-{i}"} for i in (0, 1)]
    claim = {
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "x", "uid": "held"},
        "spec": {
            "devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}
        },
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}],
        },
    }
    requests = {"resources": {"requests": {"cpu": "100"}}}
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": node, "containers": [requests]}}
    fleet = fleet_of([], [*machine_objects(MachineNode(node, machine, {})), *DEVICE_CLASSES, claim, pod])
    jobs = [Job("two", 0, 10, gpus=2), Job("more", 20, 10, gpus=3), Job("cores", 40, 10, gpus=1, cpu=30_000)]
    found = run_replay(fleet, jobs, placer_of("berth"))
    assert set(found.started_jobs) == {"two"}
    assert found.started_jobs["two"].pods[0].devices == tuple(f"gpu.nvidia.com/n/gpu-{i}" for i in (2, 3))


@pytest.mark.parametrize("rule", ["berth", "first fit"])
def test_gpus_of_a_cordoned_node_are_not_allocated_and_not_to_blame(rule: Rule) -> None:
    machines = [MachineNode(name, carried_machines()["t4-4"], {}) for name in "xy"]
    objects = [one for machine in machines for one in machine_objects(machine)]
    next(one for one in objects if one["kind"] == "Node")["spec"] = {"unschedulable": True}
    jobs = [Job("runs", 0, 600, gpus=2), Job("large", 1, gpus=8), Job("cores", 1, gpus=1, cpu=500_000)]
    found = run_replay(fleet_of([], objects), jobs, placer_of(rule))
    assert found.samples[1].allocated == 2
    assert found.never == {
        "large": "too few devices match request gpu",
        "cores": "Insufficient cpu, memory or pods",
    }


@pytest.mark.parametrize("name", sorted(code.name for code in FREEABLE_CODES))
def test_each_freeable_reason_is_told_from_all_others(name: str) -> None:
    """It is known by its text before the first parameter: without such a text it would match every reason."""
    freeable, params = Code[name], ("a", "b", "c")
    for other in set(Code) - FREEABLE_CODES:
        found = likely_reason({str(Reason(freeable, params)): 1, str(Reason(other, params)): 9})
        assert found == str(Reason(freeable, params)), other.name


def test_gpus_and_nics_of_a_job_may_be_of_any_vendor() -> None:
    """A snapshot of another vendor's cluster, whose classes have other names. Parts of GPUs are no GPUs."""
    nic = {"name": "nic-0", "attributes": {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}}
    objects = node_and_slice("a", gpu_amd_com=[mi300x(0), mi300x(1), cpx(2)], gce_dra_net=[nic])
    wishes = Job("both", 0, gpus=2, nics=1, product="MI325X|MI300X", memory=100 << 30)
    jobs = [wishes, Job("third", 1, gpus=1), Job("nic", 2, nics=1)]
    for rule in ("berth", "first fit"):
        found = run_replay(fleet_of([], objects), jobs, placer_of(rule))
        assert set(found.started_jobs) == {"both"}
        drivers = {device.partition("/")[0] for device in found.started_jobs["both"].pods[0].devices}
        assert drivers == {"gpu.amd.com", "gce.dra.net"}


@pytest.mark.parametrize("rule", ["berth", "first fit"])
def test_jobs_share_a_nic_that_is_near(rule: Rule) -> None:
    """Eight NICs for jobs with a quarter of one, and for jobs with a whole one."""
    jobs = [*(Job(f"part-{i}", i, gpus=1, nics=0.25) for i in range(4)), Job("whole", 9, gpus=4, nics=4)]
    found = replayed([*jobs, Job("late", 10, nics=4), Job("last", 11, nics=1)], "1xhgx-h100-8", rule)
    assert len(found.started_jobs) == (5 if rule == "berth" else 6)  # Berth: each part beside the GPU of its job
    nics = [pod.devices[-1] for job in jobs[:4] for pod in found.started_jobs[job.name].pods]
    assert len(set(nics)) == (4 if rule == "berth" else 1)
    assert found.nic == 1 if rule == "berth" else found.nic < 1


def test_a_nic_is_no_ethernet_adapter() -> None:
    """DRANET offers all adapters of a node. One that does not say whether it has RDMA may have it."""
    said: tuple[dict[str, dict[str, bool]], ...] = (
        {"dra.net/rdma": {"bool": False}},
        {"dra.net/rdma": {"bool": True}},
        {},
    )
    adapters = [{"name": f"net-{number}", "attributes": one} for number, one in enumerate(said)]
    fleet = fleet_of([], node_and_slice("a", dra_net=adapters))
    for rule in ("berth", "first fit"):
        found = run_replay(fleet, [Job("all", 0, nics=3), Job("two", 1, nics=2)], placer_of(rule))
        assert found.started_jobs["two"].pods[0].devices == ("dra.net/a/net-1", "dra.net/a/net-2")
        assert "all" not in found.started_jobs


@pytest.mark.parametrize(
    ("product", "fits"),
    [
        ("H100", True),
        ("H100 80GB", True),
        ("NVIDIA-H100-80GB-HBM3", True),
        ("A100|H100", True),
        ("H10", False),
        ("100", False),
        ("H.00", False),
    ],
)
def test_a_product_is_whole_words(product: str, fits: bool) -> None:
    found = replayed([Job("a", 0, gpus=1, product=product, memory=70 << 30)], "1xhgx-h100-8")
    assert found.started == int(fits)


def test_a_machine_fleet_and_a_snapshot_are_one_fleet() -> None:
    machine = carried_machines()["t4-4"]
    fleet = fleet_of([MachineNode("own", machine, {})], machine_objects(MachineNode("given", machine, {})))
    found = run_replay(fleet, [Job("a", 0, gpus=4), Job("b", 0, gpus=4)], placer_of("first fit"))
    assert {job.pods[0].node for job in found.started_jobs.values()} == {"own", "given"}


SEEDED = """
import itertools, sys, time
ticks, reads = itertools.count(step=JUMP), []
for name in ("monotonic", "perf_counter", "time", "process_time", "thread_time"):  # before anything binds them
    setattr(time, name, lambda name=name: reads.append(name) or next(ticks))
from extender.replay import Job, fleet_of, placer_of, run_replay
from extender.sandbox import parse_nodes
products = ("", "A100", "H100|A100", "L40S", "T4|L40S", "")
def job(i):
    times = f"j{i}", 10.0 * i, 300.0 + i % 11 * 97
    if i % 9 == 8:
        return Job(*times, pods=2 + i % 3, gpus=(1, 4)[i % 2], cpu=4000)
    return Job(*times, gpus=(0.1 * (1 + i % 7), 1, 2, 0.5)[i % 4], product=products[i % 6], cpu=1000 * (1 + i % 5))
jobs = [job(i) for i in range(24)]
fleet = "6xa100-pcie-8-bridged,4xhgx-h100-8,6xl40s-8-pix,6xt4-4,4xgb200-nvl72-tray/2"
for rule in ("berth", "emptiest node"):
    reads.clear()
    found = run_replay(fleet_of(parse_nodes(fleet), jobs=jobs), jobs, placer_of(rule), 5)
    print(len(reads), sorted(found.started_jobs.items()), found)
"""


def test_equal_seeds_give_equal_outcomes_in_any_process() -> None:
    """Whatever the hashes of texts, which differ in each process, and however fast the clocks of the machine go."""
    one, other = (
        subprocess.run(
            [sys.executable, "-c", SEEDED.replace("JUMP", jump)],
            env={"PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-2:]
        for hashes, jump in (("1", "0.01"), ("2", "1000"))
    )
    assert one == other
    for output in one:
        assert "('j23', " in output
        assert output.startswith("0 "), "no clock of the machine is read"


def test_figures_are_not_numbers_where_nothing_was_measured() -> None:
    found = replayed([Job("a", 0, 10, gpus=1)], "1xt4-4")
    assert math.isnan(found.joined)
    assert found.as_json()["joined"] is None


def test_a_bug_in_a_task_is_no_figure() -> None:
    with (
        patch.object(BerthPlacing, "offer", side_effect=KeyError("a bug")),
        pytest.raises(RuntimeError, match="the tasks kube-scheduler of the replay failed"),
    ):
        replayed([Job("a", 0, 10, gpus=1)], "1xt4-4")


def test_a_job_waits_for_the_nodes_that_could_serve_it_not_for_those_that_never_can() -> None:
    jobs = [Job("runs", 0, gpus=2, product="H100"), Job("waits", 1, gpus=8, product="H100")]
    found = replayed(jobs, "3xt4-4,1xhgx-h100-8")
    assert found.never == {"waits": "matching devices are in use for request gpu"}


# -- several replays side by side -------------------------------------------------------------------------------------


TASK_JOBS = [Job(f"job-{number}", number, 10, gpus=1) for number in range(9)]
TASK_FLEET = fleet_of(parse_nodes("1xt4-4"))


def test_outcomes_come_in_the_order_of_the_tasks_and_all_jobs_are_told() -> None:
    told = list[int]()
    tasks = [Task(TASK_FLEET, TASK_JOBS, placer_of(rule), 1) for rule in ("emptiest node", "berth", "first fit")]
    found = run_side_by_side(tasks, told.append)
    assert [one.placement for one in found] == ["emptiest node", "Berth", "first fit"]
    assert sum(told) == 3 * len(TASK_JOBS)


def test_a_process_that_is_killed_is_one_sentence() -> None:
    def killed(*_: object) -> NoReturn:
        os._exit(9)

    with (
        patch("extender.replay.replay.run_replay", killed),
        pytest.raises(BerthError, match="the process of the replay of Berth ended: was the memory enough"),
    ):
        run_side_by_side([Task(TASK_FLEET, TASK_JOBS, placer_of("berth"), 1)])


def test_a_fault_keeps_its_name() -> None:
    def faulty(*_: object) -> NoReturn:
        raise KeyError("x")

    with patch("extender.replay.replay.run_replay", faulty), pytest.raises(RuntimeError, match="KeyError: 'x'"):
        run_side_by_side([Task(TASK_FLEET, TASK_JOBS, placer_of("berth"), 1)])
