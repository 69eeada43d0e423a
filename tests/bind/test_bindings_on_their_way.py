"""A Binding may be stored some time after it was sent. Until then no claim is released."""

from __future__ import annotations

import asyncio

import pytest

from extender.api.object_meta import ObjectKey
from extender.api.pods import decode_pod
from extender.cluster import Writer
from extender.sandbox import ApiError
from extender.serve.binding_cycle import BindOutcomeUnknown
from extender.serve.orphans import OrphanCollector
from extender.serve.undo import IN_FLIGHT_GRACE_SECONDS
from tests.worlds.dra_worlds import extended
from tests.worlds.eventually import eventually
from tests.worlds.faulty_world import World
from tests.worlds.interceptions import CUT, Once
from tests.worlds.running_berth import Serving, berthing, bug_after, claim, one_node, pod
from tests.worlds.skipping_loop import in_virtual_time
from tests.worlds.tenant_worlds import allocated, forged, patch, uid_of

pytestmark = pytest.mark.loopback

P = ("default", "p")


def store_binding(b: Serving) -> None:
    b.cluster.api.registry.bind(P, {"target": {"name": "n1"}})


async def two_claims(b: Serving) -> None:
    await b.create(claim("c1"), claim("c2"), pod("p", "c1", "c2"))


async def test_a_binding_is_sent_again_only_right_after_the_reads_of_all_claims() -> None:
    """The first claim may have been released while the API server took long to return the second."""
    async with berthing({"n1": "t4-4"}) as b:
        await two_claims(b)
        sent, released = 0, False

        async def release(method: str, path: str) -> ApiError | None:
            nonlocal sent, released
            if path.endswith("/binding"):
                sent += 1
                return CUT if sent == 1 else None
            if sent and not released and method == "GET" and path.endswith("/resourceclaims/c2"):
                released = True
                await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
                patch(b, "c1", {"status": {"allocation": None, "reservedFor": None}}, "status")
            return None

        b.cluster.api.intercept = release
        assert await b.bind("p", "n1") == "claim default/c1 was released in the meantime"
        assert released
        assert b.node_of("p") == ""


def other_collector(b: Serving) -> OrphanCollector:
    """That of another replica."""
    s = b.app.service
    return OrphanCollector(s.cache, Writer(s.client, "other"), s.clock, s.supervisor, lambda _: False)


def special_claim(b: Serving) -> ObjectKey:
    (made,) = b.claims()
    return ObjectKey("default", made["metadata"]["name"])


async def release(b: Serving, orphans: OrphanCollector, seconds: float = 0.0) -> None:
    """The collector announces the release of the special claim; it has been under way for so long."""
    await b.settled()
    orphans.remove_stale_special(special_claim(b))
    await eventually(lambda: "/release" in str(b.claims()), "the release is announced")
    await asyncio.sleep(seconds)


async def test_the_special_claim_of_a_process_that_was_killed_is_deleted_at_once() -> None:
    """Its pod waited for more than a minute."""
    async with one_node(extended("p")) as b:
        clock = asyncio.get_running_loop().time
        began, name = clock(), "p-extended-resources-abcde"
        b.cluster.apply(claim(name))
        allocated(b, name, "gpu-0", "p")
        patch(b, name, {"metadata": forged("p", uid_of(b, "p"))})
        await b.settled()

        async def bound() -> bool:
            nodes = (await b.filter("p"))["NodeNames"]
            return bool(nodes) and await b.bind("p", nodes[0]) == ""

        await eventually(bound, "the pod is bound with a claim of its own")
        assert clock() - began < 20.0  # by a clock that skips time; the grace period is 60 s
        assert special_claim(b).name != name


async def test_the_special_claim_of_another_replicas_bind_stays_if_its_binding_is_on_its_way() -> None:
    async with one_node(extended("p")) as b:
        orphans = other_collector(b)
        b.cluster.api.intercept = Once("POST", "/binding", lambda: release(b, orphans))
        assert await b.bind("p", "n1") == ""
        await eventually(lambda: not orphans.busy)
        assert (orphans.removed, orphans.skipped) == (0, 1)
        assert b.claims()[0]["status"]["reservedFor"]


async def test_a_slow_bind_sees_that_another_replica_takes_its_special_claim_back() -> None:
    async with one_node(extended("p")) as b:
        orphans = other_collector(b)
        b.cluster.api.intercept = Once(
            "PATCH", "/pods/p/status", lambda: release(b, orphans, IN_FLIGHT_GRACE_SECONDS / 2)
        )
        assert "taken over by another process" in await b.bind("p", "n1")
        await eventually(lambda: not b.claims(), "one of the two deletes the claim")
        b.cluster.api.intercept = None
        assert b.node_of("p") == ""


async def test_a_bind_whose_binding_may_be_on_its_way_takes_nothing_back() -> None:
    """The connection is cut, and the API server stores the Binding later. Meanwhile another replica marks a claim."""
    async with berthing({"n1": "t4-4"}) as b:
        await two_claims(b)

        def mark_and_store_later() -> None:
            patch(b, "c2", {"metadata": {"annotations": {"berth.dev/allocator": "berth-other"}}})
            asyncio.get_running_loop().call_later(IN_FLIGHT_GRACE_SECONDS / 2, store_binding, b)

        b.cluster.api.intercept = Once("POST", "/binding", mark_and_store_later, CUT)
        assert await b.bind("p", "n1") == ""
        await eventually(lambda: b.node_of("p") == "n1")
        assert len(b.held()) == 2


async def bind_with_a_bug(b: Serving, after: str) -> None:
    with pytest.raises(KeyError, match="a bug"):
        await bug_after(after, b, "p", "n1")


async def test_a_bind_that_fails_on_a_bug_takes_its_claims_back() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await two_claims(b)
        await bind_with_a_bug(b, after="write barrier")
        assert b.held() == []
        assert b.app.service.cache.reservations.by_claim == {}
        await b.settled()
        assert await b.bind("p", "n1") == ""


async def test_a_bug_after_the_binding_takes_nothing_from_a_bound_pod() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await two_claims(b)
        await bind_with_a_bug(b, after="write binding")
        assert len(b.held()) == 2


async def test_a_bug_while_the_binding_is_on_its_way_takes_nothing_from_the_pod() -> None:
    """The API server stores the Binding soon after the bug."""
    async with berthing({"n1": "t4-4"}) as b:
        await two_claims(b)
        call_later = asyncio.get_running_loop().call_later
        later = Once("PATCH", "/c2/status", lambda: call_later(IN_FLIGHT_GRACE_SECONDS / 2, store_binding, b))
        b.cluster.api.intercept_reply = later
        await bind_with_a_bug(b, after="write claims")
        assert b.node_of("p") == "n1"
        assert len(b.held()) == 2


def test_the_special_claim_of_a_bind_with_an_unknown_outcome_stays_until_its_binding_has_come() -> None:
    async def unknown_outcome() -> World:
        world = World(1)
        await world.replicas[0].start()
        service, store = world.replicas[0].service, world.cluster.store
        assert service is not None
        made, go_on = world.cluster.apply(extended("p")), asyncio.Event()
        await eventually(lambda: service.filter(decode_pod(made), ["n1"]).passed)

        async def late(_: str, path: str) -> None:
            if path.endswith("/binding"):
                await go_on.wait()

        async def landed(method: str, path: str) -> None:
            """The Binding is stored some time after the collector has read that the pod is not bound."""
            if method == "GET" and path.endswith("/pods/p"):
                asyncio.get_running_loop().call_later(IN_FLIGHT_GRACE_SECONDS / 2, go_on.set)

        world.cluster.api.intercept = late
        with pytest.raises(BindOutcomeUnknown):
            await service.bind(ObjectKey(*P), made["metadata"]["uid"], "n1")
        world.cluster.api.intercept_reply = landed
        assert not service.filter(decode_pod(store["pods", P]), ["n1"]).passed
        await eventually(lambda: service.orphans.skipped + service.orphans.removed)
        await world.replicas[0].stop()
        return world

    checker = in_virtual_time(unknown_outcome()).checker
    assert checker.bound == 1
    assert not checker.wrong
