"""A namespace with many pods loses its own entries of a full memory, and none of another namespace."""

from __future__ import annotations

import pytest

from extender.api.claim_specs import ClaimSpec, DeviceRequest, Request
from extender.api.gpu_topology import DEFAULT_MIX, whole_gpus
from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Allocation, Claim
from extender.cache.fleet_baseline import RequestMixEstimator
from extender.serve.evaluations import Evaluations
from tests.worlds.evaluation_worlds import MACHINES, Fleet


def test_many_waiting_pods_of_one_namespace_do_not_replace_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Berth once forgot the oldest pod of all namespaces, and no longer woke it."""
    monkeypatch.setattr("extender.serve.filter.MAX_PODS", 3)
    fleet = Fleet(nodes=1, kinds=1)  # a node with four GPUs
    waiting = fleet.pod("honest", count=5)
    assert not fleet.filter_service.filter(waiting, fleet.names).passed
    for _ in range(6):
        assert not fleet.filter_service.filter(fleet.pod("hostile", count=30), fleet.names).passed
    assert waiting.uid in fleet.filter_service.unschedulable.uids()
    assert fleet.filter_service.remembered()["unschedulable"] == 3


def test_a_waiting_pod_with_large_claims_counts_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 pods whose 30 claims of 120 KB were deleted meanwhile kept 1.1 GB: their requirements had the claims."""
    monkeypatch.setattr("extender.serve.filter.MAX_PODS", 120)
    fleet = Fleet(nodes=1, kinds=1)
    waiting = fleet.pod("honest", count=5)
    assert not fleet.filter_service.filter(waiting, fleet.names).passed
    hostile = [fleet.large("hostile", 30) for _ in range(6)]
    for pod in hostile:
        assert not fleet.filter_service.filter(pod, fleet.names).passed
    assert fleet.filter_service.unschedulable.uids() == [waiting.uid, hostile[4].uid, hostile[5].uid]


def test_a_queued_evaluation_of_large_claims_counts_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.serve.evaluations._MAX_ITEMS", 120)
    evaluations = Evaluations(lambda: 0.0)
    evaluations.queue("honest", "small", lambda _: True)
    for number in range(6):
        evaluations.queue("hostile", number, lambda _: True, size=59)
    assert "small" in evaluations
    assert evaluations.waiting == 3


def test_many_placed_pods_of_one_namespace_do_not_replace_the_shortlists_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("extender.serve.filter.MAX_PODS", 3)
    fleet = Fleet(nodes=2, kinds=1)
    placed = fleet.pod("honest")
    assert fleet.filter_service.filter(placed, fleet.names).passed == ["n0", "n1"]
    for _ in range(5):
        pod = fleet.pod("hostile")
        assert fleet.filter_service.filter(pod, fleet.names).passed
        fleet.cache.release(pod.uid)
    assert fleet.filter_service.shortlist_scores.runner_up(placed.uid, "n0")[0] == "n1"
    assert fleet.filter_service.remembered()["shortlists"] == 3


def test_claims_that_are_not_allocated_do_not_decide_the_request_mix() -> None:
    """512 claims that no pod used once made the mix of the fleet {30 GPUs: 100 %}."""
    estimator = RequestMixEstimator()
    for number in range(600):
        estimator.observe(_claim("hostile", number, 30, None))
    assert estimator.mix(0) is DEFAULT_MIX
    assert not len(estimator)
    for number in range(600):
        estimator.observe(_claim("hostile", number, 30, Allocation()))
    assert estimator.mix(0) == ((whole_gpus(30), 1.0),), "a claim counts once it is allocated"


def test_a_namespace_with_many_claims_does_not_replace_the_requests_of_others() -> None:
    estimator = RequestMixEstimator()
    for number in range(256):
        estimator.observe(_claim("honest", number, 2, Allocation()))
    for number in range(1000):
        estimator.observe(_claim("hostile", number, 30, Allocation()))
    assert dict(estimator.mix(0)) == {whole_gpus(2): 0.5, whole_gpus(30): 0.5}


def _claim(namespace: str, number: int, gpus: int, allocation: Allocation | None) -> Claim:
    spec = ClaimSpec((Request("r", (DeviceRequest("r", "c", count=gpus),)),))
    return Claim(ObjectKey(namespace, f"c{number}"), f"{namespace}-{number}", spec=spec, allocation=allocation)


def test_a_namespace_with_queued_work_does_not_keep_equal_pods_of_others_from_being_requeued() -> None:
    """The pods shared one class, and the namespace of its first pod could not evaluate the new node."""
    fleet = Fleet(nodes=3, kinds=1)  # nodes with four GPUs
    for namespace in ("hostile", "honest"):
        assert not fleet.filter_service.filter(fleet.pod(namespace, count=5), fleet.names).passed
    for _ in range(30):
        fleet.error(fleet.hostile())
    fleet.add_node("n3", MACHINES[1])  # eight GPUs
    assert list(fleet.queueing_hints.find_schedulable("honest"))[-1]
