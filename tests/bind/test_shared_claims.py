"""Pods that share a claim which is not allocated yet go to one node and never keep each other from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest

from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import MAX_CONSUMERS, Allocation, Claim, Consumer, PodClaim, Result
from extender.api.resource_slices import DeviceId
from extender.cache import ClusterCache
from extender.cluster import Writer
from extender.policy import Policy
from extender.sandbox.apiserver.registry import RESOURCES
from extender.scheduling import PodRequirements, requirements_of
from extender.scheduling.requirements import UnschedulableAndUnresolvable
from extender.serve.binding_cycle import BindError
from extender.serve.claims import SharedClaims
from tests.worlds.commands import berth_beside
from tests.worlds.dra_worlds import CONDITIONAL, asks, custom, report
from tests.worlds.eventually import eventually
from tests.worlds.interceptions import Holding, Refusing
from tests.worlds.running_berth import Berthing, berthing, claim, jobs, pod
from tests.worlds.tenant_worlds import patch, stored

pytestmark = pytest.mark.loopback

NODES = {"n1": "t4-4", "n2": "t4-4", "n3": "t4-4"}


async def share(b: Berthing, *names: str, own: tuple[str, ...] = ()) -> str:
    """Create a claim and pods that share it, those in `own` with a second claim of their own; filter all before any
    is bound. The answer is the node of the first."""
    b.cluster.apply(claim("shared"))
    for name in names:
        if name in own:
            b.cluster.apply(claim(f"own-{name}"))
        b.cluster.apply(pod(name, "shared", *([f"own-{name}"] if name in own else [])))
    await b.settled()
    first = (await b.filter(names[0]))["NodeNames"][0]
    for name in names[1:]:
        assert (await b.filter(name))["NodeNames"] == [first]
    return first


def reservations(b: Berthing) -> set[str]:
    return {entry["name"] for entry in stored(b, "shared")["status"].get("reservedFor") or ()}


async def test_pods_of_one_claim_are_bound_in_any_order() -> None:
    """The scheduler filters all pods, as with a gang, then binds the last one first."""
    async with berthing(NODES) as b:
        node = await share(b, "p", "q", "r")
        assert [await b.bind(name, node) for name in ("r", "q", "p")] == ["", "", ""]
        assert reservations(b) == {"p", "q", "r"}
        assert len(b.held()) == 1


async def test_claims_of_their_own_are_allocated_beside_the_shared_one() -> None:
    async with berthing(NODES) as b:
        node = await share(b, "p", "q", "r", own=("p", "q", "r"))
        assert await asyncio.gather(*(b.bind(name, node) for name in ("q", "r", "p"))) == ["", "", ""]
        assert len(set(b.held())) == 4
        assert {pool for pool, _ in b.held()} == {node}


async def test_a_pod_follows_a_claim_that_is_being_written() -> None:
    """While a bind writes the claim, another pod that shares it gets the same node, and its bind waits."""
    async with berthing(NODES) as b:
        await b.create(claim("shared"), pod("p", "shared"), pod("q", "shared"))
        node = (await b.filter("p"))["NodeNames"][0]
        b.cluster.api.intercept = delay = Holding("/status", "PATCH")
        first = asyncio.create_task(b.bind("p", node))
        await eventually(lambda: bool(b.app.service.cache.reservations.in_flight))
        assert (await b.filter("q"))["NodeNames"] == [node]
        second = asyncio.create_task(b.bind("q", node))
        await eventually(lambda: len(b.app.service.binder.running) == 2)
        delay.go_on.set()
        assert [await first, await second] == ["", ""]
        assert reservations(b) == {"p", "q"}
        assert len(b.held()) == 1


async def test_the_bind_after_one_that_fails_allocates_the_claim() -> None:
    async with berthing(NODES) as b:
        node = await share(b, "p", "q")
        b.cluster.api.intercept = Refusing("/resourceclaims/shared/status", times=1)
        answers = await asyncio.gather(b.bind("p", node), b.bind("q", node))
        assert sorted(bool(answer) for answer in answers) == [False, True], answers
        assert len(reservations(b)) == len(b.held()) == 1


async def test_a_bind_that_fails_late_leaves_the_reservation_of_the_next_one() -> None:
    """Another allocator has taken the claim back while the first bind waited for a driver."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        await b.create(asks("shared"), pod("p", "shared"), pod("q", "shared"))
        undo, write = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(b.bind("p", "n1"))
        cache = b.app.service.cache
        await eventually(lambda: cache.store.claims[ObjectKey("default", "shared")].allocation, "the watch shows it")

        async def slow(method: str, path: str) -> None:
            if method == "GET" and path.endswith("/pods/p"):
                await undo.wait()
            elif method == "PATCH":
                await write.wait()

        b.cluster.api.intercept = slow
        patch(b, "shared", {"status": {"allocation": None, "reservedFor": None}}, "status")
        await b.settled()
        second = asyncio.create_task(b.bind("q", "n1"))
        await eventually(lambda: cache.reservations.in_flight, "the second bind reserves the device")
        undo.set()
        assert "was released" in await first
        assert list(cache.reservations.in_flight.values()) == [b.pod("q")["metadata"]["uid"]]
        write.set()
        await eventually(lambda: b.held(), "the second bind allocates the claim")
        report(b, "shared", "Attached")
        assert await second == ""


async def test_the_scheduler_gets_no_choice_for_a_claim_that_others_wait_for() -> None:
    """Filter passes only the node that is held for the claim: with another node for the first pod, the binds of the
    others would fail.
    """
    async with berthing(NODES) as b:
        await b.create(claim("shared"), pod("p", "shared"), *jobs(q=1))
        assert [len((await b.filter(name))["NodeNames"]) for name in ("p", "q")] == [3, 3]
        await b.create(pod("r", "shared"))
        (node,) = (await b.filter("p"))["NodeNames"]
        assert (await b.filter("r"))["NodeNames"] == [node]
        assert [await b.bind(name, node) for name in ("p", "r")] == ["", ""]
        assert len((await b.filter("q"))["NodeNames"]) == 3


async def test_a_pod_has_the_choice_again_when_no_other_waits_for_its_claim() -> None:
    async with berthing(NODES) as b:
        node = await share(b, "p", "q")
        assert (await b.filter("p"))["NodeNames"] == [node]
        b.cluster.api.registry.delete(RESOURCES["", "pods"], ("default", "q"))
        await b.settled()
        assert len((await b.filter("p"))["NodeNames"]) == 3


async def test_a_pod_that_shares_a_claim_is_shown_with_its_devices() -> None:
    async with berthing(NODES) as b:
        node = await share(b, "p", "q", "r", own=("r",))
        for name in ("p", "q", "r"):
            assert await b.bind(name, node) == ""
        shared = stored(b, "shared")["status"]["allocation"]["devices"]["results"]
        device = f"gpu.nvidia.com/{shared[0]['pool']}/{shared[0]['device']}"
        fleet = await eventually(lambda: _decided(b, 3))
        assert {one["pod"]: one["devices"] for one in fleet} == {"default/p": 1, "default/q": 1, "default/r": 2}
        chosen = (await b.client.get("/v1/explain/default/q")).json()["decision"]["chosen"]
        assert (chosen["devices"], chosen["reused"]) == ([], [device])
        code, out, _ = await berth_beside(["explain", "default/q", "--server", str(b.client.base_url)])
        assert code == 0
        assert f"with {device} (allocated before)" in " ".join(out.split())


def _decided(b: Berthing, count: int) -> list[dict] | None:
    found = b.console.overview.fleet()["decisions"]
    return found if len(found) == count else None


async def test_binds_that_wait_for_one_claim_are_reserved_in_one_write() -> None:
    async with berthing(NODES) as b:
        names = [f"p{i:02}" for i in range(16)]
        node = await share(b, *names)
        all_wait, writes = asyncio.Event(), 0

        async def count(method: str, path: str) -> None:
            nonlocal writes
            if method == "PATCH" and path.endswith("/resourceclaims/shared/status"):
                writes += 1
                if writes == 2:  # the first one allocates the claim
                    await all_wait.wait()

        b.cluster.api.intercept = count
        binds = [asyncio.create_task(b.bind(name, node)) for name in names]
        await eventually(lambda: writes == 2 and len(b.app.service.binder.running) == 15)
        await b.settled()
        all_wait.set()
        assert await asyncio.gather(*binds) == [""] * len(names)
        assert reservations(b) == set(names)
        assert all(b.node_of(name) == node for name in names)
        assert len(b.held()) == 1
        assert writes == 3
        assert not b.app.service.cache.reservations.by_claim


async def test_a_bind_that_ended_leaves_the_others_of_its_write_alone() -> None:
    """The write of the first reservation fails; the binds that waited for it write their own."""
    async with berthing(NODES) as b:
        node = await share(b, "p", "q", "r")
        assert await b.bind("p", node) == ""
        b.cluster.api.intercept = Refusing("/resourceclaims/shared/status", times=1)
        answers = await asyncio.gather(b.bind("q", node), b.bind("r", node))
        assert sorted(bool(answer) for answer in answers) == [False, True], answers
        assert len(reservations(b)) == 2


async def test_a_claim_is_reserved_for_no_more_pods_than_it_can_be() -> None:
    async with berthing(NODES) as b:
        names = [f"p{i:03}" for i in range(MAX_CONSUMERS + 3)]
        await b.create(claim("shared"), *(pod(name, "shared") for name in names))
        node = (await b.filter(names[0]))["NodeNames"][0]
        answers = await asyncio.gather(*(b.bind(name, node) for name in names))
        assert len(reservations(b)) == answers.count("") == MAX_CONSUMERS


class _Writes(Writer):
    """Stores reservations in memory, one write after the other, once `go` is set."""

    def __init__(self, stored: Claim) -> None:
        self.go, self.batches, self.stored = asyncio.Event(), list[set[str]](), stored

    async def read_claim(self, _: ObjectKey) -> Claim:
        return self.stored

    async def add_consumers(self, claim: Claim, consumers: Iterable[Consumer]) -> Claim:
        self.batches.append({one.uid for one in consumers})
        await self.go.wait()
        return claim


async def test_a_write_reserves_a_claim_only_for_pods_that_know_its_allocation() -> None:
    """The claim was allocated on another node meanwhile: the bind of q is about to fail, and must not reserve it."""
    now, before = (
        Claim(
            ObjectKey("default", "c"), "c", "1", allocation=Allocation((Result("gpu", DeviceId("d", node, "gpu-0")),))
        )
        for node in ("n1", "n2")
    )
    writes = _Writes(now)
    shared = SharedClaims(writes)
    binds = {
        uid: asyncio.create_task(shared.add_consumer(known, Consumer(uid, uid)))
        for uid, known in (("first", now), ("p", now), ("q", before), ("r", now))
    }
    await eventually(lambda: writes.batches, "the first write is under way")
    writes.go.set()
    done = await asyncio.gather(*binds.values(), return_exceptions=True)
    assert writes.batches == [{"first"}, {"p", "r"}]
    assert [uid for uid, one in zip(binds, done, strict=True) if isinstance(one, BindError)] == ["q"]


async def test_members_of_one_pod_group_are_one_consumer_and_each_bind_ends_with_a_write_of_it() -> None:
    """The first write is refused. The other binds must not take that for a write of theirs."""
    known = Claim(ObjectKey("default", "c"), "c", "1", allocation=Allocation())
    writes, group = _Refusing(known), Consumer("group", "group")
    shared = SharedClaims(writes)
    done = await asyncio.gather(*(shared.add_consumer(known, group) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in done] == [BindError, Claim, Claim]
    assert writes.written == ["group"], "one write for all that waited at its start"


class _OldReply(Writer):
    """The reply to the first write shows a reservation of p, which an undo removes before the reply comes."""

    def __init__(self, stored: Claim) -> None:
        self.go, self.stored, self.written = asyncio.Event(), stored, list[str]()

    async def read_claim(self, _: ObjectKey) -> Claim:
        return self.stored

    async def add_consumers(self, claim: Claim, consumers: Iterable[Consumer]) -> Claim:
        new = [one for one in consumers if not claim.is_reserved_for(one.uid)]
        self.written += [one.uid for one in new]
        self.stored = replace(claim, reserved_for=(*claim.reserved_for, *new))
        reply = self.stored
        if not self.go.is_set():
            self.stored = replace(self.stored, reserved_for=tuple(new))
            await self.go.wait()
        return reply


async def test_a_reservation_that_an_undo_removed_is_written_again() -> None:
    """The next bind of p waits while the bind of q writes, and q's reply still shows the reservation of p."""
    p, q = Consumer("p", "p"), Consumer("q", "q")
    allocated = Claim(ObjectKey("default", "c"), "c", "1", allocation=Allocation())
    writes = _OldReply(replace(allocated, reserved_for=(p,)))
    shared = SharedClaims(writes)
    first = asyncio.create_task(shared.add_consumer(writes.stored, q))
    await eventually(lambda: writes.written == ["q"])
    second = asyncio.create_task(shared.add_consumer(allocated, p))
    await asyncio.sleep(0)
    writes.go.set()
    await asyncio.gather(first, second)
    assert writes.written == ["q", "p"]
    assert {one.uid for one in writes.stored.reserved_for} == {"p", "q"}


class _Refusing(_OldReply):
    """The first write is refused."""

    async def add_consumers(self, claim: Claim, consumers: Iterable[Consumer]) -> Claim:
        await asyncio.sleep(0)
        if not self.go.is_set():
            self.go.set()
            raise BindError("no")
        return await super().add_consumers(claim, consumers)


async def test_a_failed_bind_leaves_no_state_of_the_claim() -> None:
    """The error of a bind keeps its frames alive. Found by fresh eyes: a gang whose bind failed once never ran."""
    claims = [
        Claim(ObjectKey("default", "c"), "c", "1", allocation=Allocation((Result("gpu", DeviceId("d", "n", name)),)))
        for name in ("gpu-0", "gpu-1")
    ]
    writes = _Refusing(claims[1])
    shared = SharedClaims(writes)
    with pytest.raises(BindError, match="no") as kept:
        await shared.add_consumer(claims[0], Consumer("p", "p"))
    await shared.add_consumer(claims[1], Consumer("p", "p"))
    assert writes.written == ["p"]
    assert kept.tb is not None


async def test_a_bind_that_knows_a_newer_allocation_than_the_bind_before_it_reads_the_claim() -> None:
    """The first bind fails late, and another process has moved the claim meanwhile."""
    old, new = (
        Claim(ObjectKey("default", "c"), "c", "1", allocation=Allocation((Result("gpu", DeviceId("d", "n", name)),)))
        for name in ("gpu-0", "gpu-1")
    )
    writes = _Writes(new)
    shared = SharedClaims(writes)
    first = asyncio.create_task(shared.add_consumer(old, Consumer("p", "p")))
    await eventually(lambda: writes.batches)
    second = asyncio.create_task(shared.add_consumer(new, Consumer("q", "q")))
    await asyncio.sleep(0)
    writes.go.set()
    await asyncio.gather(first, second)
    assert writes.batches == [{"p"}, {"q"}]


@pytest.mark.parametrize(
    ("consumer", "group", "refused"),
    [
        (Consumer("other", "other"), "", True),
        (Consumer("p", "p"), "", False),
        (Consumer("g", "train", "podgroups", "scheduling.k8s.io"), "train", False),
        (Consumer("g", "train", "podgroups", "scheduling.k8s.io"), "", True),
        (Consumer("g", "another", "podgroups", "scheduling.k8s.io"), "train", True),
    ],
)
def test_a_full_claim_takes_no_further_pod(consumer: Consumer, group: str, refused: bool) -> None:
    """A pod whose PodGroup has the reservation needs none of its own."""
    cache = ClusterCache()
    others = tuple(Consumer(f"u{number}", f"u{number}") for number in range(MAX_CONSUMERS - 1))
    full = Claim(ObjectKey("x", "c"), "c", allocation=Allocation(), reserved_for=(*others, consumer))
    cache.apply_claim(full.key, full)
    pod = Pod(ObjectKey("x", "p"), "p", claims=(PodClaim("g", "c"),), group=group)
    found = requirements_of(pod, cache.snapshot(), Policy())
    assert isinstance(found, PodRequirements) is not refused
    if isinstance(found, UnschedulableAndUnresolvable):
        assert str(found.reason) == "claim x/c has no reservation left"
