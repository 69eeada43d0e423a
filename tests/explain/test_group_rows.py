"""The rows of groups in the fleet overview."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, KeysView
from dataclasses import replace
from typing import Any

from extender.api.pod_groups import GroupKey, GroupSource, Membership
from extender.api.pods import Pod
from extender.api.resource_claims import Allocation, Consumer, Result
from extender.api.resource_slices import DeviceId
from extender.explain.fleet_rows import group_rows
from tests.worlds.evaluation_worlds import Fleet
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, berthing, claim, pod


def add(b: Berthing, group: str, pods: int, gpus: int, minimum: int) -> list[str]:
    names = [f"{group}-{i}" for i in range(pods)]
    for name in names:
        b.cluster.apply(claim(name, gpus))
        notes = {"berth.dev/group": group, "berth.dev/group-min": str(minimum)}
        b.cluster.apply(pod(name, name, annotations=notes))
    return names


async def rows(b: Berthing) -> dict[str, dict[str, Any]]:
    found = (await b.client.get("/v1/fleet")).json()["groups"]
    return {row.pop("group"): row for row in found}


async def test_members_that_wait_are_held_and_are_bound() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        names = add(b, "job", 2, 4, 2)
        add(b, "late", 2, 4, 2)
        b.cluster.apply(claim("alone"))
        b.cluster.apply(pod("alone", "alone", annotations={"berth.dev/group": "one", "berth.dev/group-min": "1"}))
        await b.settled()
        found = await rows(b)
        nothing = {"held": 0, "bound": 0, "nodes": {}, "more_nodes": 0}
        assert found == {f"default/{name}": {"minimum": 2, "waiting": 2, **nothing} for name in ("job", "late")}

        nodes = [(await b.filter(name))["NodeNames"][0] for name in names]
        gpus = {"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3]}
        planned = {"minimum": 2, "waiting": 2, "held": 2, "bound": 0, "nodes": gpus, "more_nodes": 0}
        assert (await rows(b))["default/job"] == planned

        assert await asyncio.gather(*(b.bind(*one) for one in zip(names, nodes, strict=True))) == ["", ""]

        async def placed() -> bool:
            row = (await rows(b))["default/job"]
            return bool(row["waiting"] == 0 and row["bound"] == 2 and row["nodes"] == gpus)

        await eventually(placed)
        assert list(await rows(b)) == ["default/late", "default/job"], "groups that wait come first"


async def test_the_rows_are_bounded() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for number in range(35):
            add(b, f"job-{number:02}", 2, 4, 2)
        await b.settled()
        assert len(await rows(b)) == 30


def test_the_waiting_members_are_not_read_again_for_each_claim_of_a_group() -> None:
    """500 claims of a group with 10,000 waiting members took 86 ms of the console's event loop each second."""
    fleet, key, reads = Fleet(nodes=1), GroupKey("a", GroupSource.BERTH, "g"), 0

    class Uids(KeysView[str]):
        def __iter__(self) -> Iterator[str]:
            nonlocal reads
            reads += 1
            return super().__iter__()

    class Members(dict[str, Pod]):
        def keys(self) -> Any:
            return Uids(self)

    for number in range(10):
        pod = fleet.pod("a")
        allocation = Allocation((Result("gpu", DeviceId("gpu.nvidia.com", "n0", f"gpu-{number}")),))
        consumer = (Consumer(f"bound-{number}", f"bound-{number}", "pods"),)
        known = fleet.cache.store.claims[pod.key]
        fleet.cache.apply_claim(pod.key, replace(known, allocation=allocation, reserved_for=consumer, group="g"))
        fleet.cache.apply_pod(pod.uid, None)
    waiting = replace(fleet.pod("a"), membership=Membership(key, 12))
    fleet.cache.apply_pod(waiting.uid, waiting)
    snapshot = replace(fleet.cache.snapshot(), members={key: Members({waiting.uid: waiting})})
    (row,) = group_rows(snapshot, 30, ())
    assert (row["waiting"], row["bound"]) == (1, 10)
    assert reads <= 1
