"""The pairs of a pod's devices are named on their node: in decisions, explanations, `berth nodes` and on the page."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from extender.allocation.nodes.locality import Nearness
from extender.explain import explain
from extender.explain.fleet_rows import node_detail
from extender.policy import Policy
from extender.scheduling import Placement
from extender.scheduling.decision import ScoredNode, parse_decision
from extender.topology.device_pairs import DevicePairs
from tests.worlds.commands import berth_beside
from tests.worlds.explain_worlds import decided, run_pod, why
from tests.worlds.nic_worlds import GPU, MACHINES, NIC, NicFleet, claim_of, counted, paired
from tests.worlds.running_berth import berthing, pod

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "device_pairs.yaml").read_text(encoding="utf-8"))


def fleet_of(case: Json) -> NicFleet:
    machine = case["machine"] if isinstance(case["machine"], dict) else MACHINES[case["machine"]]
    fleet = NicFleet({"n": machine}, Policy.model_validate({"weights": {"affinity": case.get("affinity", 8)}}))
    fleet.hold("n", [(GPU if name.startswith("gpu") else NIC, name) for name in case.get("held", ())])
    return fleet


def requests_of(case: Json) -> list[Json]:
    return [one for one in counted(case["asks"]["gpus"], case["asks"]["nics"]) if one["exactly"]["count"]]


def chosen(fleet: NicFleet, requests: list[Json]) -> ScoredNode:
    """The decision for a pod with these requests, as bind makes it."""
    requirements, snapshot = fleet.asking(requests), fleet.cache.snapshot()
    placement = fleet.evaluate("n", requirements)
    assert isinstance(placement, Placement), placement
    context = fleet.evaluator.evaluation_context(snapshot)
    return ScoredNode.of(snapshot.node_infos["n"], placement, requirements, context, snapshot)


def pairs_of(decision: ScoredNode) -> DevicePairs:
    return DevicePairs(decision.pairs, decision.more_pairs, decision.network)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_pairs_are_said_as_they_are(case: Json) -> None:
    decision = chosen(fleet_of(case), requests_of(case))
    assert pairs_of(decision).text() == case["says"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_annotation_gives_the_pairs_back(case: Json) -> None:
    decision = chosen(fleet_of(case), requests_of(case))
    noted = parse_decision(decision.annotation("n2", 0.1))
    assert noted.pairs == pairs_of(decision)
    assert (noted.runner_up, len(noted.parts)) == ("n2", len(decision.parts))


@pytest.mark.parametrize("name", MACHINES)
def test_a_note_is_true(name: str) -> None:
    """Pods with devices of others held at random, under weights that do and do not look for near devices."""
    rng, notes = random.Random(11), set[str]()
    for number in range(40):
        case = {"machine": name, "asks": {"gpus": 1 + number % 3, "nics": 1 + number % 2}, "affinity": number % 4}
        machine = MACHINES[name]
        gpus = [f"gpu-{i}" for i in range(len(machine["gpus"])) if rng.random() < 0.3]
        held = gpus + [f"nic-{i}" for i in range(len(machine["nics"])) if rng.random() < 0.5]
        fleet = fleet_of({**case, "held": held})
        requirements = fleet.asking(requests_of(case))
        if not isinstance(fleet.evaluate("n", requirements), Placement):
            continue
        found, info = chosen(fleet, requests_of(case)), fleet.node_info("n")
        assert info.locality is not None
        bits = {one.id.device: bit for bit, one in enumerate(info.inventory.devices) if one.id.driver in (GPU, NIC)}
        taken = {*held, *(one.rpartition("/")[2] for one in found.devices)}
        for pair in found.pairs:
            near = info.locality.nearness(bits[pair.device], bits[pair.other])
            nearer = {
                one
                for one, bit in bits.items()
                if one.startswith("nic") and info.locality.nearness(bits[pair.device], bit) > near
            }
            if near is Nearness.UNKNOWN:
                nearer = {
                    one for one in nearer if info.locality.nearness(bits[pair.device], bits[one]) is Nearness.ROOT
                }
            notes.add(pair.note)
            if pair.nearness == "not known how near":
                assert not pair.note
            elif pair.note.endswith("is nearer and free"):
                assert pair.note.partition(" ")[0] in nearer - taken
            elif [one.other for one in found.pairs].count(pair.other) > 1 and nearer - taken:
                assert not pair.note  # the NIC serves several GPUs: one nearer to this GPU is farther from another
            else:
                assert not nearer - taken
                assert (pair.note == "no nearer NIC is free") == bool(nearer)
    assert len(notes) > 1, "some pairs have a note"


def test_paired_requests_get_the_pairs_that_are_said() -> None:
    fleet = NicFleet({"n": MACHINES["hgx-one-to-one"]})
    found = chosen(fleet, paired(2))
    assert {f"{pair.device} {pair.other}" for pair in found.pairs} == {"gpu-0 nic-3", "gpu-1 nic-2"}


def test_devices_that_the_request_does_not_accept_are_no_nearer_ones() -> None:
    """A free NIC on the root of the GPU, of which the selector wants no more, is not named as nearer."""
    machine = {"product": "NVIDIA L40S", "gpus": [[1, 0]], "nics": [[1, 0], [2, 1]]}
    requests = counted(1, 1)
    requests[1]["exactly"]["selectors"] = [{"cel": {"expression": "device.attributes['dra.net'].numaNode == 1"}}]
    found = chosen(NicFleet({"n": machine}), requests)
    assert pairs_of(found).text() == "gpu-0 + nic-1: other NUMA node, no NIC that fits is nearer"


def test_the_text_of_a_user_is_no_reason_to_fail() -> None:
    noted = parse_decision(
        "score 0.500; pairs a + b: same PCIe root; nonsense; and 12 more pairs; runner-up n, as good"
    )
    assert [pair.text for pair in noted.pairs.pairs] == ["a + b: same PCIe root"]
    assert (noted.pairs.more, noted.runner_up) == (12, "n")


# -- the places of devices ------------------------------------------------------------------------------------------


def details(fleet: NicFleet) -> dict[str, Json]:
    snapshot = fleet.cache.snapshot()
    return {one["name"]: one for one in node_detail(snapshot.node_infos["n"], snapshot)["devices"]}


def test_each_place_says_who_says_it() -> None:
    found = details(NicFleet({"n": MACHINES["a100-efa"]}))
    driver = {"roots": ["pci0000:10"], "roots_from": "driver"}
    assert found["gpu-0"]["place"] == {**driver, "numa": [0], "numa_from": ["its PCIe root"]}
    assert found["nic-0"]["place"] == {**driver, "numa": [0], "numa_from": ["driver"]}
    found = details(NicFleet({"n": MACHINES["agent-against-driver"]}))
    assert found["gpu-1"]["place"]["numa"] == [10, 0]
    assert found["gpu-1"]["place"]["numa_from"] == ["driver", "agent"]
    found = details(NicFleet({"n": MACHINES["gb300"]}))
    assert found["gpu-2"]["place"] == {
        "roots": ["pci0000:18"],
        "roots_from": "driver",
        "numa": [1],
        "numa_from": ["agent"],
    }
    assert found["nic-2"]["place"]["roots"] == []
    alone = details(NicFleet({"n": {**MACHINES["gb300"], "nics": []}}))
    assert alone["gpu-2"]["place"]["numa"] == [1], "also without NICs"


def test_a_free_gpu_has_its_nearest_free_nics() -> None:
    fleet = NicFleet({"n": MACHINES["a100-efa"]})
    fleet.hold("n", [(NIC, "nic-0"), (GPU, "gpu-7")])
    found = details(fleet)
    assert found["gpu-0"]["beside"] == [
        {"driver": NIC, "devices": ["nic-1", "nic-2"], "more": 0, "nearness": "same NUMA node"}
    ]
    assert found["gpu-4"]["beside"][0]["devices"] == ["nic-3", "nic-4"]
    assert found["gpu-4"]["beside"][0]["nearness"] == "same PCIe root"
    assert found["gpu-7"]["beside"] == [], "in use"
    assert found["nic-1"]["beside"] == [], "no GPU"
    many = details(NicFleet({"n": {**MACHINES["many-nics"], "nics": [[9, 0]] * 6}}))
    assert many["gpu-0"]["beside"][0]["more"] == 2
    far = details(NicFleet({"n": {"product": "x", "gpus": [[1, 0]], "nics": [[2, 1]]}}))
    assert far["gpu-0"]["beside"] == []


# -- constraints that no node meets ---------------------------------------------------------------------------------

ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"


def refused(machines: list[str], count: int, attribute: str, held: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
    """The near misses of a pod that wants so many GPUs and NICs with one value of an attribute."""
    fleet = NicFleet({f"n{number}": MACHINES[name] for number, name in enumerate(machines)})
    fleet.hold("n0", held)
    return misses(fleet, count, attribute)


def misses(fleet: NicFleet, count: int, attribute: str) -> tuple[str, ...]:
    pod, snapshot = fleet.pod(counted(count, count), [{"matchAttribute": attribute}]), fleet.cache.snapshot()
    found = explain(pod, snapshot, fleet.policy, fleet.evaluator.evaluation_context(snapshot))
    assert found.outcome == "refused", found
    return found.misses


NO_SHARED = "no node has 1 matching GPU and 1 matching NIC on one PCIe root"
NO_TWO = "no node has 2 matching GPUs and 2 matching NICs on one PCIe root"


@pytest.mark.parametrize(
    ("machines", "count", "attribute", "why"),
    [
        (["gb300"], 1, ROOT, f"no NIC that matches the requests publishes {ROOT}; without the constraint on it"),
        (["agent-against-driver"], 1, ROOT, f"{NO_SHARED}; without the constraint on {ROOT}"),
        (["gb300", "agent-against-driver"], 1, ROOT, f"{NO_SHARED}; without the constraint on {ROOT}"),
        (["hgx-one-to-one"], 2, ROOT, f"{NO_TWO}; without the constraint on {ROOT}"),
        (
            ["hgx-one-to-one"],
            1,
            NUMA,
            f"no NIC that matches the requests publishes {NUMA}; without the constraint on it",
        ),
    ],
)
def test_a_constraint_that_no_node_meets_is_named_with_the_soft_way(
    machines: list[str], count: int, attribute: str, why: str
) -> None:
    first = refused(machines, count, attribute)[0]
    assert first == f"{why} the pod fits on n0, and Berth chooses near devices by itself"


OTHER_ROOTS = {"product": "NVIDIA L40S", "gpus": [[1, 0], [2, 0]], "nics": [[3, 0], [4, 0]]}


@pytest.mark.parametrize(
    "short",
    [
        {"gpus": [[1, 0], [1, 0]], "nics": [[1, 0]]},
        {"gpus": [[1, 0]], "nics": [[2, 0]]},
        {"gpus": [[1, 0]], "nics": []},
    ],
)
def test_what_is_said_of_all_nodes_is_true_of_those_with_too_few_devices(short: Json) -> None:
    fleet = NicFleet({"n0": OTHER_ROOTS, "n1": {"product": "NVIDIA L40S", **short}})
    assert misses(fleet, 2, ROOT)[0].startswith(f"{NO_TWO}; without the constraint on {ROOT} the pod fits on n0")


def test_only_one_node_publishes_the_attribute_and_has_too_few_devices() -> None:
    silent = {"product": "NVIDIA L40S", "gpus": [[1, 0], [2, 0]], "nics": [[null, 0] for null in (None, None)]}
    one = {"product": "NVIDIA L40S", "gpus": [[1, 0]], "nics": [[2, 0]]}
    assert misses(NicFleet({"n0": silent}), 2, ROOT)[0].startswith(
        f"no NIC that matches the requests publishes {ROOT};"
    )
    assert misses(NicFleet({"n0": silent, "n1": one}), 2, ROOT)[0].startswith(f"{NO_TWO};")


def test_a_constraint_that_a_free_node_would_meet_is_not_to_blame() -> None:
    busy = [(NIC, f"nic-{number}") for number in range(8)]
    assert not any("without the constraint" in miss for miss in refused(["hgx-one-to-one"], 1, ROOT, busy))
    assert not any("without the constraint" in miss for miss in refused(["hgx-one-to-one", "gb300"], 1, ROOT, busy))


# -- a running Berth ------------------------------------------------------------------------------------------------


async def test_users_read_the_pairs_of_a_pod() -> None:
    async with berthing({"n1": "gb200-nvl72-tray"}) as b:
        server = ["--server", str(b.client.base_url)]
        assert await run_pod(b, "p", [claim_of("p", 1)]) == "n1"
        note = b.pod("p")["metadata"]["annotations"]["berth.dev/decision"]
        assert note.endswith("; pairs gpu-0 + pci-0000-03-00-0: same NUMA node")
        await decided(b, "p")
        (pair,) = (await why(b, "p"))["decision"]["chosen"]["pairs"]
        assert pair == {"device": "gpu-0", "other": "pci-0000-03-00-0", "nearness": "same NUMA node", "note": ""}
        _, out, _ = await berth_beside(["explain", "default/p", *server])
        assert "gpu-0 + pci-0000-03-00-0: same NUMA node" in out
        await b.create(claim_of("q", 3), pod("q", "q"))
        _, out, _ = await berth_beside(["explain", "default/q", *server])
        assert "gpu-1 + pci-0002-03-00-0: same NUMA node" in out
        _, out, _ = await berth_beside(["nodes", "n1", *server])
        assert "free beside it" in out
        assert "pci-0010-03-00-0" in out
        _, out, _ = await berth_beside(["nodes", "n1", "--output", "json", *server])
        (row,) = orjson.loads(out)
        gpu = row["devices"][3]
        assert (gpu["place"]["numa"], gpu["place"]["numa_from"]) == ([1], ["driver"])
        assert gpu["beside"][0]["devices"] == ["pci-0010-03-00-0", "pci-0012-03-00-0"]
        _, out, _ = await berth_beside(["nodes", "n", *server])
        assert "free beside it" not in out, "a part of a name lists no devices"
