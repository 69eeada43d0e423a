"""kube-scheduler offers each member of a gang other nodes, for a reason that is no part of the plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.worlds.gang_pods import create_gang
from tests.worlds.running_berth import Berthing, berthing, claim, pod

NODES = {f"{zone}{i}": "a100-pcie-8-bridged" for zone in "ab" for i in range(8)}


def spread_member(b: Berthing, name: str, minimum: int, **spec: Any) -> None:
    notes = {"berth.dev/group": "job", "berth.dev/group-min": str(minimum)}
    b.cluster.apply(claim(f"{name}-gpus", 8))
    b.cluster.apply(pod(name, f"{name}-gpus", annotations=notes, **spec))


SPREAD = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}


@pytest.mark.parametrize("size", [6, 12])
@pytest.mark.parametrize("spec", [{"topologySpreadConstraints": [SPREAD]}, {"volumes": [VOLUME]}], ids=str)
async def test_members_that_alternate_between_two_zones_are_planned(spec: dict[str, Any], size: int) -> None:
    async with berthing(NODES) as b:
        for i in range(size):
            spread_member(b, f"w{i}", size, **spec)
        await b.settled()
        placed = Counter[str]()
        for i in range(size):
            names = [name for name in NODES if placed[name[0]] <= min(placed["a"], placed["b"])]
            answer = await b.filter(f"w{i}", names)
            assert answer["NodeNames"], (i, answer)
            placed[answer["NodeNames"][0][0]] += 1
        assert set(placed.values()) == {size // 2}


async def test_a_limit_of_one_member_that_berth_does_not_see() -> None:
    """The offered nodes have no room for the others, which kube-scheduler would offer more."""
    async with berthing(NODES) as b:
        await create_gang(b, 12, prefix="w")
        (first,) = (await b.filter("w0"))["NodeNames"]
        zone = "b" if first[0] == "a" else "a"
        offered = [name for name in NODES if name[0] == zone]
        (planned,) = (await b.filter("w1"))["NodeNames"]
        if planned[0] != zone:
            (planned,) = (await b.filter("w1", offered))["NodeNames"]
        assert planned[0] == zone


async def test_the_reason_after_all_offered_nodes_were_used_names_kube_scheduler() -> None:
    async with berthing({"a0": "a100-pcie-8-bridged", "b0": "a100-pcie-8-bridged"}) as b:
        await create_gang(b, 2, prefix="w")
        (first,) = (await b.filter("w0"))["NodeNames"]
        answer = await b.filter("w1", [first])
        assert set(answer["FailedAndUnresolvableNodes"].values()) == {
            "kube-scheduler accepts no planned node for pod default/w1 of group job: it is planned again after a pause"
        }
