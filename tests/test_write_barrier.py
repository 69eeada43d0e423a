"""Two replicas that write allocations on the same devices before either sees the other: the first writer keeps them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.dra_worlds import asks, custom, extended, mig
from tests.eventually import eventually
from tests.replicas import Gate, replicas
from tests.running_berth import Serving, claim, pod

WHOLE_NODE = 4  # GPUs of the only node


def allocated(b: Serving) -> int:
    return sum(one["status"].get("allocation") is not None for one in b.claims())


def reserved(b: Serving, uid: str) -> bool:
    return any(entry["uid"] == uid for one in b.claims() for entry in one["status"].get("reservedFor") or ())


def held_twice(b: Serving) -> list[tuple[str, str]]:
    return [device for device, holders in Counter(b.held()).items() if holders > 1]


def fail(b: Serving, gate: Gate, fault: str) -> None:
    """From now on the replica's watch shows no claim; after a cut it has to list again."""
    gate.close()
    if fault == "cut":
        b.cluster.store.cut_watches()
        b.cluster.store.forget_history()


@pytest.mark.parametrize("fault", ["lags", "cut"])
@pytest.mark.parametrize("first", ["mine", "other"])
@pytest.mark.parametrize("kind", ["ordinary", "extended", "shared", "group"])
async def test_of_two_writers_the_first_keeps_the_devices(kind: str, first: str, fault: str) -> None:
    """`mine` is bound by replica a, `other` by replica b. With a shared claim, `second` shares the claim of `mine`
    and is bound by replica b, which sees all claims before replica a does."""
    async with replicas({"n1": "t4-4"}) as ((a, b), (gate_a, gate_b)):
        a.cluster.apply(claim("other", WHOLE_NODE))
        a.cluster.apply(pod("other", "other"))
        if kind == "extended":
            a.cluster.apply(extended("mine", WHOLE_NODE))
        elif kind == "group":
            group = a.cluster.apply({"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {}})
            uid = group["metadata"]["uid"]
            owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "g", "uid": uid}
            of_group = claim("mine", WHOLE_NODE)
            of_group["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
            a.cluster.apply(of_group)
            a.cluster.apply(pod("mine", "mine", schedulingGroup={"podGroupName": "g"}))
        else:
            a.cluster.apply(claim("mine", WHOLE_NODE))
            a.cluster.apply(pod("mine", "mine"))
        if kind == "shared":
            a.cluster.apply(pod("second", "mine"))
        await asyncio.gather(a.settled(), b.settled())
        assert (await a.filter("mine"))["NodeNames"] == (await b.filter("other"))["NodeNames"] == ["n1"]
        for one, gate in ((a, gate_a), (b, gate_b)):
            fail(one, gate, fault)

        binds: dict[str, asyncio.Task[str]] = {}
        order = ("mine", "other") if first == "mine" else ("other", "mine")
        for name in order:
            binds[name] = asyncio.create_task((a if name == "mine" else b).bind(name, "n1"))
            holder = owner["uid"] if kind == "group" and name == "mine" else a.pod(name)["metadata"]["uid"]
            bind = binds[name]
            await eventually(lambda holder=holder, bind=bind: reserved(a, holder) or bind.done())
            assert not bind.done(), f"{bind.result()!r} before the watch showed the write"

        gate_b.open()
        answers = {"other": await binds["other"]}
        await b.settled()
        if kind == "shared":
            answers["second"] = await b.bind("second", "n1")
        gate_a.open()
        answers["mine"] = await binds["mine"]
        await asyncio.gather(a.settled(), b.settled())

        assert not held_twice(a), answers
        bound = {name for name in answers if a.node_of(name)}
        assert bound == {name for name, answer in answers.items() if not answer}
        if fault == "lags":
            mine = {"mine", "second"} if kind == "shared" else {"mine"}
            assert bound == (mine if first == "mine" else {"other"}), answers
            lost = answers["other" if first == "mine" else "mine"]
            assert "was allocated to another claim first" in lost
        else:
            assert not {"mine", "other"} <= bound, "a list does not tell the order, so both may give way, never neither"


async def test_a_claim_deleted_while_the_write_barrier_waits_is_not_bound() -> None:
    """Another actor deletes the claim, and the list that follows the cut does not show it: its version is newer than
    the write."""
    async with replicas({"n1": "t4-4"}) as ((a, _), (gate, _)):
        a.cluster.apply(extended("p", 1))
        await a.settled()
        await a.filter("p")
        fail(a, gate, "cut")
        bind = asyncio.create_task(a.bind("p", "n1"))
        await eventually(lambda: reserved(a, a.pod("p")["metadata"]["uid"]))
        (made,) = a.claims()
        key = ("default", made["metadata"]["name"])
        a.cluster.store.remove("resourceclaims", key)
        a.cluster.store.forget_history()
        gate.open()
        assert await bind == f"claim {key[0]}/{key[1]} was deleted in the meantime"


async def test_partitions_of_one_gpu_are_devices_of_their_own_and_share_its_counters() -> None:
    """`mine` takes the whole GPU, `other` a quarter of it: other devices, and together more than the GPU has."""
    counters = {f"memory-slice-{i}": {"value": "1"} for i in range(4)}
    profile = "device.attributes['d.example.com'].profile == '{}g'"
    async with replicas({"n1": "t4-4"}) as ((a, b), gates):
        custom(a, [mig("whole", [0, 1, 2, 3], 80), mig("small", [0], 20)], [{"name": "gpu-0", "counters": counters}])
        for name, size in (("mine", 4), ("other", 1)):
            a.cluster.apply(asks(name, selectors=[{"cel": {"expression": profile.format(size)}}]))
            a.cluster.apply(pod(name, name))
        await asyncio.gather(a.settled(), b.settled())
        assert (await a.filter("mine"))["NodeNames"] == (await b.filter("other"))["NodeNames"] == ["n1"]
        for gate in gates:
            gate.close()
        binds = {}
        for one, name in ((a, "mine"), (b, "other")):
            binds[name] = asyncio.create_task(one.bind(name, "n1"))
            uid = one.pod(name)["metadata"]["uid"]
            await eventually(lambda uid=uid: reserved(a, uid))
        for gate in gates:
            gate.open()
        answers = {name: await bind for name, bind in binds.items()}
        assert answers["mine"] == ""
        assert "was allocated to another claim first" in answers["other"]
        assert a.node_of("mine") == "n1"
        assert not a.node_of("other")
