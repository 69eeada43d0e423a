"""Requeue of rejected pods: changes are evaluated in small steps, none is lost, and no pod is requeued in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet import MACHINES, Fleet
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupSource
from extender.api.pods import Pod
from extender.sandbox.machines import node_object
from extender.scheduling import PodRequirements
from extender.scheduling.shortlist import CollectedDomain
from extender.serve.filter import FilterService
from tests.worlds.dra_worlds import extended
from tests.worlds.filled_caches import required

NS = "x"  # the namespace of the fleet's pods


def answer(fleet: Fleet) -> bool:
    """The last result of a complete search for schedulable pods."""
    return any(list(fleet.queueing_hints.find_schedulable(one))[-1] for one in (NS, "default"))


def full(nodes: int) -> Fleet:
    """All devices of so many nodes are held."""
    fleet = Fleet("mixed")
    fleet.fill(nodes, 1.0)
    return fleet


def free(fleet: Fleet, *numbers: int) -> None:
    """The nodes with these numbers, which count from 0, become free."""
    for number in numbers:
        fleet.apply("resourceclaims", f"held/h{number}", None)


def rejected(fleet: Fleet, shapes: int, count: int = 2) -> list[str]:
    """Pods of so many shapes, each unschedulable on every node."""
    uids = [f"p{shape}" for shape in range(shapes)]
    for shape, uid in enumerate(uids):
        assert fleet.filter(fleet.pod(uid, shape, count)).passed == []
    return uids


def test_a_filter_of_many_live_shapes_is_not_a_first_one() -> None:
    fleet = Fleet("mixed")
    fleet.fill(5, 0.5)
    pods = [fleet.pod(f"p{shape}", shape, 1) for shape in range(200)]
    for pod in pods:
        assert fleet.filter(pod).passed
        fleet.cache.release(pod.uid)
    evaluations = fleet.filter_service.rankings.evaluations
    for pod in pods:
        assert fleet.filter(pod).passed
        fleet.cache.release(pod.uid)
    assert fleet.filter_service.rankings.evaluations == evaluations, "every evaluation is remembered"


def test_a_bug_with_one_pod_hides_no_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept_from(_: FilterService, requirements: PodRequirements) -> frozenset[str]:
        if "p0" in str(requirements.pending_claims[0].key):
            raise KeyError("a bug")
        return frozenset()

    def search(shapes: int) -> Iterator[bool]:
        fleet = Fleet("mixed")
        fleet.fill(5, 0.0)
        for shape in range(shapes):
            pod = fleet.pod(f"p{shape}", shape, 1)
            requirements = required(pod, fleet.cache, fleet.filter_service.policy)
            fleet.filter_service.unschedulable.add(pod.uid, requirements, fleet.cache.snapshot().version)
        fleet.touch_node(next(iter(fleet.devices)), {"a": "b"})
        return fleet.queueing_hints.find_schedulable(NS)

    monkeypatch.setattr(FilterService, "kept_from", kept_from)
    with pytest.raises(KeyError, match="a bug"):
        list(search(1))
    found = list[bool]()
    with pytest.raises(KeyError, match="a bug"):
        found.extend(search(2))
    assert found[-1], "the bug is raised after the fit"


def test_a_search_has_small_steps_and_leaves_the_order_of_rankings_alone() -> None:
    """A scan over all waiting shapes must not drop the rankings that filters use."""
    fleet = full(6)
    rejected(fleet, 100, count=9)
    order = [ranking.requirements.key for ranking in fleet.filter_service.rankings]
    node = next(iter(fleet.devices))
    fleet.touch_node(node, {"a": "b"})
    fleet.hold(99, node, fleet.devices[node][:1])  # a second claim on a device: a state that no node was in
    free(fleet, 0)
    counts = [fleet.filter_service.rankings.evaluations]
    for fits in fleet.queueing_hints.find_schedulable(NS):
        counts.append(fleet.filter_service.rankings.evaluations)
        assert not fits
    assert len(counts) > 100
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert [ranking.requirements.key for ranking in fleet.filter_service.rankings] == order


def test_a_search_that_was_cut_short_is_made_up_for() -> None:
    """For every number of steps that the search completed before it ended."""
    for steps in range(12):
        fleet = full(3)
        rejected(fleet, 5)
        assert not answer(fleet)
        free(fleet, 1)
        search = fleet.queueing_hints.find_schedulable(NS)
        cut = list(islice(search, steps))
        assert any(cut) or answer(fleet), steps
        fleet.touch_node("node-000003", {"a": "b"})
        assert not answer(fleet), "a node is searched once"


def test_a_change_during_a_search_is_for_the_next_search() -> None:
    fleet = full(3)
    rejected(fleet, 20)
    fleet.touch_node("node-000001", {"a": "b"})
    search = fleet.queueing_hints.find_schedulable(NS)
    next(search)
    free(fleet, 0)
    assert any(search) or answer(fleet)


@pytest.mark.parametrize("taken", [1, 6])  # both are of one kind; either may stand for both in the search
@pytest.mark.parametrize("steps", range(6))
def test_of_equal_nodes_that_become_free_one_may_be_taken_during_a_search(steps: int, taken: int) -> None:
    """The search evaluates one of them; the pod still fits on the other."""
    fleet = full(6)
    nodes = fleet.cache.snapshot().node_infos
    assert nodes["node-000001"].state is nodes["node-000006"].state
    rejected(fleet, 3, count=9)
    assert not fleet.filter(fleet.pod("p", 77, 1)).passed
    assert not answer(fleet)
    free(fleet, 0, 5)
    search = fleet.queueing_hints.find_schedulable(NS)
    first = list(islice(search, steps))
    node = f"node-{taken:06}"
    fleet.hold(9, node, fleet.devices[node])
    assert any(first) or any(search) or answer(fleet)


def reading_identity(fleet: Fleet, uid: str) -> Pod:
    """A pod for one GPU whose selector reads the UUID: the search evaluates every node by itself."""
    pod = fleet.pod(uid, 77, 1)
    selector = {"cel": {"expression": f"device.attributes['{fleet.driver}'].uuid != ''"}}
    exactly = {"deviceClassName": fleet.driver, "count": 1, "selectors": [selector]}
    metadata = {"namespace": "x", "name": uid, "uid": uid, "resourceVersion": "2"}
    spec = {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}
    fleet.apply("resourceclaims", f"x/{uid}", {"metadata": metadata, "spec": spec})
    return pod


def pinned(fleet: Fleet, uid: str, node: str) -> Pod:
    """A pod with a second claim, which is allocated on this node."""
    fleet.pod(uid, 1, 1)
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    allocation = {"devices": {"results": []}, "nodeSelector": {"nodeSelectorTerms": terms}}
    metadata = {"namespace": "x", "name": "shared", "uid": "s", "resourceVersion": "1"}
    spec: dict[str, Any] = {"devices": {"requests": []}}
    fleet.apply(
        "resourceclaims", "x/shared", {"metadata": metadata, "spec": spec, "status": {"allocation": allocation}}
    )
    claims = [{"name": "g", "resourceClaimName": uid}, {"name": "s", "resourceClaimName": "shared"}]
    metadata = {"namespace": "x", "name": uid, "uid": uid, "resourceVersion": "1"}
    fleet.apply("pods", f"x/{uid}", {"metadata": metadata, "spec": {"resourceClaims": claims}})
    return fleet.cache.store.pods[uid]


def kept_for_a_gang(node: str) -> CollectedDomain:
    key = GroupKey("x", GroupSource.BERTH, "gang")
    return CollectedDomain(key, "node", node, frozenset([node]), 0.0)


PODS: dict[str, Callable[[Fleet], Pod]] = {
    "any GPU": lambda fleet: fleet.pod("p", 77, 1),
    "a GPU by its UUID": lambda fleet: reading_identity(fleet, "p"),
    "a GPU of one node": lambda fleet: pinned(fleet, "p", "node-000001"),
}


@pytest.mark.parametrize("kind", PODS)
def test_a_node_that_is_taken_during_a_search_wakes_nobody(kind: str) -> None:
    """An equal node is free, but kept for a gang, or not the node of the pod."""
    fleet = full(6)
    rejected(fleet, 3, count=9)
    assert not fleet.filter(PODS[kind](fleet)).passed
    fleet.filter_service.collected = kept_for_a_gang("node-000006")
    assert not answer(fleet)
    free(fleet, 0, 5)
    search = fleet.queueing_hints.find_schedulable(NS)
    assert not next(search)
    fleet.hold(9, "node-000001", fleet.devices["node-000001"])
    assert not any(search)


def test_a_node_that_is_kept_for_a_gang_wakes_no_other_pod() -> None:
    fleet = full(1)
    assert not fleet.filter(fleet.pod("p", 77, 1)).passed
    fleet.filter_service.collected = kept_for_a_gang("node-000001")
    free(fleet, 0)
    assert not answer(fleet)
    fleet.filter_service.collected = None
    fleet.touch_node("node-000001", {"a": "b"})
    assert answer(fleet), "without the gang it does"


def test_a_pod_pinned_to_nodes_is_helped_by_those_alone() -> None:
    fleet = full(2)
    pod = pinned(fleet, "p", "node-000002")
    assert fleet.filter(pod).passed == []
    free(fleet, 0)
    assert not answer(fleet)
    free(fleet, 1)
    assert answer(fleet)


@pytest.mark.parametrize("node", ["node-000001", "node-000006"])  # in a search by state, one stands for both
def test_of_equal_nodes_that_become_free_the_pinned_one_helps(node: str) -> None:
    fleet = full(6)
    assert fleet.filter(pinned(fleet, "p", node)).passed == []
    free(fleet, 0, 5)
    nodes = fleet.cache.snapshot().node_infos
    assert nodes["node-000001"].state is nodes["node-000006"].state
    assert answer(fleet)


@pytest.mark.parametrize("node", ["node-000001", "node-000006"])
def test_of_nodes_with_equal_devices_the_one_with_a_device_plugin_helps(node: str) -> None:
    """The pod asks for an extended resource, of which a device plugin now reports some."""
    fleet = full(6)
    pod = extended("p")
    pod["metadata"] |= {"uid": "p", "resourceVersion": "1"}
    fleet.apply("pods", "default/p", pod)
    assert fleet.filter(fleet.cache.store.pods["p"]).passed == []
    reporting = node_object(node, MACHINES[0], {})
    fleet.apply("nodes", node, {**reporting, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    nodes = fleet.cache.snapshot().node_infos
    assert nodes["node-000001"].state is nodes["node-000006"].state
    assert answer(fleet)


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("free"), st.integers(0, 3)),
        st.tuples(st.just("take"), st.integers(0, 3)),
        st.tuples(st.just("filter"), st.integers(0, 5)),
        st.tuples(st.just("search"), st.integers(0, 40)),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(_EVENTS, st.sampled_from([0, 1 << 30]))
def test_no_rejected_pod_that_fits_on_a_changed_node_is_missed(
    events: list[tuple[str, int]], ranking_bytes: int
) -> None:
    """This holds for all events in between, all numbers of completed steps, and with and without cached rankings."""
    fleet = Fleet("mixed", ranking_bytes=ranking_bytes)
    fleet.fill(4, 1.0)
    fitting: set[str] = set()  # pods that were rejected and for which a node has become free since
    for what, which in events:
        node = f"node-{which + 1:06}"
        if what == "free":
            if ObjectKey("held", f"h{which}") in fleet.cache.store.claims:
                fleet.apply("resourceclaims", f"held/h{which}", None)
                fitting = set(fleet.filter_service.unschedulable.uids())
        elif what == "take":
            fleet.hold(which, node, fleet.devices[node])
        elif what == "filter":
            uid = f"p{which}"
            if fleet.filter(fleet.pod(uid, which, 1 + which)).passed == []:
                fitting.discard(uid)
        elif what == "search" and any(islice(fleet.queueing_hints.find_schedulable(NS), which)):
            for uid in fleet.filter_service.unschedulable.uids():  # kube-scheduler asks again, as every pod is requeued
                fleet.filter(fleet.cache.store.pods[uid])
            fitting = set()
    waiting = [uid for uid in fleet.filter_service.unschedulable.uids() if uid in fitting]
    helped = answer(fleet)
    now = [uid for uid in waiting if fleet.filter(fleet.cache.store.pods[uid]).passed]
    assert helped or not now
