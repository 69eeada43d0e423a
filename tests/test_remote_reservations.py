"""Reservations of serve processes in the console's cache: records that are late, lost or of another process."""

from __future__ import annotations

import itertools
import math

import pytest

from extender.cache import ClusterCache
from extender.cluster import ApiClient, Credentials
from extender.console import Console
from extender.console.remote_reservations import RemoteReservations
from extender.model import DEFAULT_MIX, Allocation, Claim, DeviceId, ObjectKey, ReservationState, Result
from extender.policy import Policy
from extender.records import Batch, PolicyState, Record, Released, Reserved


def reserved(uid: str, state: ReservationState = ReservationState.HELD, seconds: float = 15.0) -> Reserved:
    result = Result("gpu", DeviceId("gpu.nvidia.com", "n1", f"gpu-{uid}"))
    return Reserved(uid, f"pod-{uid}", "n1", (result,), state, seconds if state is ReservationState.HELD else math.inf)


def add_claim(cache: ClusterCache, uid: str) -> None:
    claim = Claim(ObjectKey("d", f"c-{uid}"), uid)
    cache.apply_claim(claim.key, claim)


class World:
    def __init__(self, limit: int = 100) -> None:
        self.now = 1000.0
        self.cache = ClusterCache()
        self.remote = RemoteReservations(self.cache, lambda: self.now, limit)
        for uid in ("a", "b", "c", *map(str, range(30))):
            add_claim(self.cache, uid)

    def states(self) -> dict[str, ReservationState]:
        return {uid: one.state for uid, one in self.cache.reservations.by_claim.items()}


def test_held_then_binding_then_released() -> None:
    w = World()
    w.remote.apply("e", reserved("a"))
    assert w.states() == {"a": ReservationState.HELD}
    assert w.cache.held_for("pod-a")
    w.remote.apply("e", reserved("a", ReservationState.BINDING))
    assert w.states() == {"a": ReservationState.BINDING}
    assert w.cache.reservations.in_flight == {"a": "pod-a"}
    w.remote.apply("e", reserved("a", ReservationState.BINDING))
    w.remote.apply("e", Released("a"))
    w.remote.apply("e", Released("a"))
    assert w.states() == {}
    assert len(w.remote) == 0


def test_a_hold_ends_by_the_console_s_own_clock() -> None:
    w = World()
    w.remote.apply("e", reserved("a", seconds=15))
    w.remote.apply("e", reserved("b", seconds=86_400))
    w.now += 15
    w.cache.expire(w.now)
    assert set(w.states()) == {"b"}
    w.now += 300
    w.cache.expire(w.now)
    assert w.states() == {}, "no hold is believed for a day"
    w.remote.apply("e", Released("a"))


def test_the_oldest_goes_where_there_are_too_many() -> None:
    w = World(limit=10)
    for number in range(30):
        w.remote.apply("e", reserved(str(number), ReservationState.BINDING if number % 2 else ReservationState.HELD))
        assert len(w.remote) <= 10
    assert set(w.states()) == {str(number) for number in range(20, 30)}


def test_an_ended_reservation_keeps_no_entry() -> None:
    w = World(limit=3)
    for number in range(3):
        w.remote.apply("e", reserved(str(number), seconds=1))
    w.now += 2
    w.cache.expire(w.now)
    for number in range(3, 6):
        w.remote.apply("e", reserved(str(number)))
    assert set(w.states()) == {"3", "4", "5"}
    assert len(w.remote) == 3


@pytest.mark.parametrize("state", [ReservationState.HELD, ReservationState.BINDING])
def test_a_reservation_of_an_unknown_claim_takes_no_devices(state: ReservationState) -> None:
    """No watch event would end such a reservation, because the claim may not exist."""
    w = World()
    w.remote.apply("e", reserved("unknown", state))
    assert (w.states(), len(w.remote), w.remote.unknown_claims) == ({}, 0, 1)
    add_claim(w.cache, "unknown")
    w.remote.apply("e", reserved("unknown", state))
    assert (w.states(), w.remote.unknown_claims) == ({"unknown": state}, 1)


def test_a_process_that_ended_holds_nothing() -> None:
    w = World()
    for epoch, uid, state in (
        ("e", "a", ReservationState.HELD),
        ("e", "b", ReservationState.BINDING),
        ("f", "c", ReservationState.HELD),
    ):
        w.remote.apply(epoch, reserved(uid, state))
    w.remote.drop("e")
    assert w.states() == {"c": ReservationState.HELD}
    assert len(w.remote) == 1
    w.remote.drop("unknown")


def test_one_process_does_not_release_the_reservation_of_another() -> None:
    """Both answered a filter request for the pod; the hold of the first ends later than that of the second began."""
    w = World()
    w.remote.apply("e", reserved("a"))
    w.remote.apply("f", reserved("a"))
    w.remote.apply("e", Released("a"))
    assert w.states() == {"a": ReservationState.HELD}
    w.remote.drop("e")
    assert w.states() == {"a": ReservationState.HELD}
    w.remote.apply("f", Released("a"))
    assert w.states() == {}


def test_records_that_come_after_the_watch_showed_the_allocation() -> None:
    for state in (ReservationState.HELD, ReservationState.BINDING):
        w = World()
        one = reserved("a", state)
        claim = Claim(ObjectKey("d", "c-a"), "a", allocation=Allocation(one.results))
        w.cache.apply_claim(claim.key, claim)
        w.remote.apply("e", one)
        assert w.states() == {}, "else the devices would be used twice"
        assert len(w.remote) == 0, "else the devices would be used twice"
        w.remote.apply("e", Released("a"))


def test_the_watch_ends_a_reservation_before_its_release_comes() -> None:
    w = World()
    one = reserved("a", ReservationState.BINDING)
    w.remote.apply("e", one)
    claim = Claim(ObjectKey("d", "c-a"), "a", allocation=Allocation(one.results))
    w.cache.apply_claim(claim.key, claim)
    assert w.states() == {}
    w.remote.apply("e", Released("a"))
    assert len(w.remote) == 0


async def test_a_gap_drops_the_holds_of_that_replica_alone() -> None:
    numbers = itertools.count(1)

    def batch(replica: str, sequence: int, *records: Record) -> Batch:
        policy = PolicyState(1, "d")
        return Batch(replica, f"epoch-{replica}", sequence, next(numbers), 0, policy, DEFAULT_MIX, records)

    console = Console(ApiClient(Credentials("http://127.0.0.1:9", None, lambda: None)), Policy())
    for uid in ("1", "2", "3", "4"):
        add_claim(console.cache, uid)
    states = console.cache.reservations.by_claim
    await console.take(batch("a", 1, reserved("1"), reserved("2")))
    await console.take(batch("b", 1, reserved("3")))
    await console.take(batch("a", 3))
    assert set(states) == {"1", "2", "3"}, "a heartbeat without a gap changes nothing"
    await console.take(batch("a", 5, reserved("4")))
    assert set(states) == {"3", "4"}
    assert console.ingest.counts["gaps"] == 1
    assert console.ingest.counts["missing"] == 2
    await console.take(batch("a", 3, reserved("1"), reserved("2")))
    assert set(states) == {"3", "4"}, "a repeated record must not be applied again"
