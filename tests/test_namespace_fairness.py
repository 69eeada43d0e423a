"""A namespace with many pods loses its own entries of a full memory, and none of another namespace."""

from __future__ import annotations

from extender.cache.fleet_baseline import RequestMixEstimator
from extender.extension.unfinished_evaluations import UnfinishedEvaluations
from extender.model import DEFAULT_MIX, Allocation, Claim, ClaimSpec, DeviceRequest, ObjectKey, Pod, Request, whole_gpus
from extender.scheduling import PodRequirements, requirements_of
from tests.budget_worlds import MACHINES, Fleet


def test_many_waiting_pods_of_one_namespace_do_not_replace_those_of_others() -> None:
    """Berth once forgot the oldest pod of all namespaces, and no longer woke it."""
    fleet = Fleet(nodes=1, kinds=1, remembered_pods=3)  # a node with four GPUs
    waiting = fleet.pod("honest", count=5)
    assert not fleet.filter_service.filter(waiting, fleet.names).passed
    for _ in range(6):
        assert not fleet.filter_service.filter(fleet.pod("hostile", count=30), fleet.names).passed
    assert waiting.uid in fleet.filter_service.unschedulable.uids()
    assert fleet.filter_service.remembered()["unschedulable"] == 3


def test_a_waiting_pod_with_large_claims_counts_as_several() -> None:
    """150 pods whose 30 claims of 120 KB were deleted meanwhile kept 1.1 GB: their requirements had the claims."""
    fleet = Fleet(nodes=1, kinds=1, remembered_pods=120)
    waiting = fleet.pod("honest", count=5)
    assert not fleet.filter_service.filter(waiting, fleet.names).passed
    hostile = [fleet.large("hostile", 30) for _ in range(6)]
    for pod in hostile:
        assert not fleet.filter_service.filter(pod, fleet.names).passed
    assert fleet.filter_service.unschedulable.uids() == [waiting.uid, hostile[4].uid, hostile[5].uid]


def test_an_unfinished_evaluation_of_large_claims_counts_as_several() -> None:
    fleet, unfinished = Fleet(nodes=1), UnfinishedEvaluations(120)
    for pod in [honest := fleet.pod("honest"), *(fleet.large("hostile", 2) for _ in range(6))]:
        unfinished.add(_requirements(fleet, pod), pod.uid)
    assert unfinished.get(_requirements(fleet, honest)) is not None
    assert len(unfinished) == 3


def test_many_placed_pods_of_one_namespace_do_not_replace_the_shortlists_of_others() -> None:
    fleet = Fleet(nodes=2, kinds=1, remembered_pods=3)
    placed = fleet.pod("honest")
    assert fleet.filter_service.filter(placed, fleet.names).passed == ["n0", "n1"]
    for _ in range(5):
        pod = fleet.pod("hostile")
        assert fleet.filter_service.filter(pod, fleet.names).passed
        fleet.cache.release(pod.uid)
    assert fleet.filter_service.shortlist_scores.runner_up(placed.uid, "n0")[0] == "n1"
    assert fleet.filter_service.remembered()["shortlists"] == 3


def test_many_costly_pods_of_one_namespace_do_not_replace_the_unfinished_evaluations_of_others() -> None:
    fleet, unfinished = Fleet(nodes=1), UnfinishedEvaluations(3)
    honest = fleet.pod("honest", count=2)
    unfinished.add(_requirements(fleet, honest), honest.uid)
    for count in range(3, 9):
        hostile = fleet.pod("hostile", count=count)
        unfinished.add(_requirements(fleet, hostile), hostile.uid)
    assert unfinished.get(_requirements(fleet, honest)) is not None
    assert len(unfinished) == 3


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
    estimator = RequestMixEstimator(window=64)
    for number in range(32):
        estimator.observe(_claim("honest", number, 2, Allocation()))
    for number in range(200):
        estimator.observe(_claim("hostile", number, 30, Allocation()))
    assert dict(estimator.mix(0)) == {whole_gpus(2): 0.5, whole_gpus(30): 0.5}


def _claim(namespace: str, number: int, gpus: int, allocation: Allocation | None) -> Claim:
    spec = ClaimSpec((Request("r", (DeviceRequest("r", "c", count=gpus),)),))
    return Claim(ObjectKey(namespace, f"c{number}"), f"{namespace}-{number}", spec=spec, allocation=allocation)


def _requirements(fleet: Fleet, pod: Pod) -> PodRequirements:
    found = requirements_of(pod, fleet.cache.snapshot(), fleet.policy)
    assert isinstance(found, PodRequirements)
    return found


def test_a_namespace_without_time_does_not_keep_equal_pods_of_others_from_being_requeued() -> None:
    """The pods shared one class, and the namespace of its first pod had no time left to evaluate the new node."""
    fleet = Fleet(nodes=3, kinds=1)  # nodes with four GPUs
    for namespace in ("hostile", "honest"):
        assert not fleet.filter_service.filter(fleet.pod(namespace, count=5), fleet.names).passed
    while fleet.filter_service.has_time("hostile"):
        fleet.error(fleet.hostile())
    fleet.add_node("n3", MACHINES[1])  # eight GPUs
    assert list(fleet.filter_service.queueing_hints.find_schedulable())[-1]


def test_the_namespaces_take_turns_in_the_background() -> None:
    """An evaluation of another namespace waited for a stretch of each of 3,000 evaluations, a minute in all."""
    fleet, unfinished = Fleet(nodes=1), UnfinishedEvaluations(100)
    for count in range(2, 22):
        hostile = fleet.pod("hostile", count=count)
        unfinished.add(_requirements(fleet, hostile), hostile.uid)
    honest = fleet.pod("honest")
    unfinished.add(_requirements(fleet, honest), honest.uid)
    turns = [unfinished.next(lambda _: True) for _ in range(6)]
    assert [one.namespace for one in turns if one is not None] == ["hostile", "honest"] * 3
    assert len({id(one) for one in turns}) == 4, "each evaluation of a namespace has its turn, too"
