"""Caches of nodes, rankings, pods and claims have bounds. Each test sets a small bound and reaches it."""

from __future__ import annotations

import gc
import itertools
import platform
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.fleet import Fleet
from extender.api.claim_specs import ClaimSpec, DeviceRequest, Request
from extender.api.label_domains import LabelDomains
from extender.api.nodes import Node, NodeSelection
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupSource
from extender.api.quantity import BINARY_SI, NANO, Quantity
from extender.api.resource_claims import Allocation, Claim, Result
from extender.api.resource_slices import DeviceId, PoolKey, Slice
from extender.cache import ClusterCache
from extender.cache.fleet_baseline import RequestMixEstimator
from extender.policy import MAX_EFFECTIVE, Override, Policy
from extender.runtime.gc_policy import give_back_memory
from extender.scheduling import NodeRanking, RankingCache
from extender.serve.evaluations import Evaluations
from extender.serve.gangs.gang_admission import SlotLimits
from extender.topology.agent_slices import DRIVER as FABRIC_DRIVER
from tests.worlds.gang_fleet import gang_member, watched_gangs


def counted(kind: str, events: int) -> dict[str, int]:
    """After a short soak with few of everything."""
    one = soak.Soak(kind, nodes=4, shapes=6, waiting=10)
    rows = list(one.run(events, samples=1))
    gc.collect()
    return {**one.counted(), **rows[-1].counted}


@pytest.mark.parametrize("kind", ["mig", "mixed"])
def test_a_long_time_leaves_behind_little_more_than_the_existing_objects(kind: str) -> None:
    """Nodes come and go under names never used before, states change with every claim."""
    found = counted(kind, 1500)
    vacant_states, vacant_statuses = 1024, 16
    assert found["nodes"] == found["hardware"] == 4
    assert found["states"] <= 4 + vacant_states
    assert found["allocation_signatures"] <= found["states"] + found["placements"]
    assert found["hardware_signatures"] <= 4
    assert found["attribute_signatures"] <= 4 + vacant_states
    assert found["statuses"] <= 6 * (4 + 4 * vacant_statuses)
    assert found["counters"] <= 4
    assert found["silent"] <= 4
    assert found["agents"] <= 4
    assert found["selectors"] <= 6 + 2
    assert found["masks"] <= (6 + 2) * 4 * 3
    assert found["shortlists"] <= 11
    assert found["unschedulable"] <= 11


def test_states_of_nodes_are_forgotten_but_for_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty and more states that no node is in any more, of which four are kept."""
    monkeypatch.setattr("extender.cache.node_infos._MAX_VACANT_STATES", 4)
    fleet = Fleet("mixed")
    fleet.fill(1, 0.0)
    (node,) = fleet.devices
    for number in range(1, 64):
        taken = [device for bit, device in enumerate(fleet.devices[node]) if number >> bit & 1]
        fleet.hold(0, node, taken)
        fleet.cache.snapshot()
    gc.collect()
    found = fleet.cache.builder.interned()
    kinds = "states", "allocation_signatures", "hardware_signatures", "attribute_signatures"
    assert tuple(found[kind] for kind in kinds) == (5, 5, 1, 1)


def test_agents_are_forgotten_with_their_nodes() -> None:
    """The slice or the node is deleted first, and the agent was silent before or not."""
    for slice_first, silent_before in itertools.product((True, False), repeat=2):
        cache = ClusterCache()
        agent = Slice(f"{FABRIC_DRIVER}-n", PoolKey(FABRIC_DRIVER, "n"), 1, 1, NodeSelection(node_name="n"))

        def go(kind: str, cache: ClusterCache = cache, agent: Slice = agent) -> None:
            cache.apply_slice(agent.name, None) if kind == "slice" else cache.apply_node("n", None)

        cache.apply_node("n", Node("n"))
        cache.apply_slice(agent.name, agent)
        cache.expire(0.0)
        if silent_before:
            cache.expire(2000.0)
            assert cache.slices.agents.silent == {"n"}
        go("slice" if slice_first else "node")
        go("node" if slice_first else "slice")
        cache.expire(2001.0)
        cache.expire(9000.0)
        assert not cache.slices.agents.silent
        assert not cache.slices.agents.oldest(9000.0)
        cache.apply_slice(agent.name, agent)
        cache.apply_node("n", Node("n"))
        cache.expire(9001.0)
        cache.expire(20000.0)
        assert cache.slices.agents.silent == {"n"}, "a node of that name came back, its agent did not"


def test_a_ranking_keeps_few_statuses_of_states_that_no_node_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.scheduling.node_ranking._MAX_VACANT", 2)
    fleet = Fleet("mixed")
    fleet.fill(3, 0.0)
    requirements = fleet.requirements(fleet.pod("p", 1, 1))
    (request,) = requirements.specs[0].requests
    option = replace(request.alternatives[0], selectors=(f'device.attributes["{fleet.driver}"].uuid != "x"',))
    spec = replace(requirements.specs[0], requests=(replace(request, alternatives=(option,)),))
    rankings = [NodeRanking(requirements), NodeRanking(replace(requirements, specs=(spec,)))]
    for number in range(1, 64):
        taken = [device for bit, device in enumerate(fleet.devices["node-000001"]) if number >> bit & 1]
        fleet.hold(0, "node-000001", taken)
        snapshot = fleet.cache.snapshot()
        for ranking in rankings:
            assert ranking.update(snapshot, fleet.filter_service.evaluator.evaluation_context(snapshot))
            assert ranking.statuses <= 3 + 2 + 2 + 2 * 2
    first, second = ([(name, placement.score) for name, placement in ranking.best(None, 9)] for ranking in rankings)
    assert first == second


def test_rankings_are_bounded_by_bytes_and_the_least_recently_asked_goes_first() -> None:
    fleet = Fleet("mixed")
    fleet.fill(2, 0.5)
    requirements = [fleet.requirements(fleet.pod(f"p{shape}", shape, 1)) for shape in range(6)]
    snapshot = fleet.cache.snapshot()
    context = replace(
        fleet.filter_service.evaluator.evaluation_context(snapshot), placements=None
    )  # or rankings would share them
    alone = RankingCache()
    alone.get_or_create(requirements[0]).update(snapshot, context)
    rankings = RankingCache(limit_bytes=int(2.9 * alone.estimated_bytes))
    for which in (0, 1, 0, 2):
        rankings.get_or_create(requirements[which]).update(snapshot, context)
    rankings.peek(requirements[1])
    for which in (3, 4):
        rankings.get_or_create(requirements[which]).update(snapshot, context)
    assert [rankings.peek(one) is not None for one in requirements] == [False, True, False, True, True, False]
    assert rankings.evaluations == 10, "those of rankings that are gone count"
    tiny = RankingCache(limit_bytes=1)
    for one in requirements:
        ranking = tiny.get_or_create(one)
        ranking.update(snapshot, context)
        assert ranking.best(None, 1), "the one asked for is there, however large"
    assert len(tiny) == 1


def test_shortlists_and_unschedulable_pods_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.serve.filter.MAX_PODS", 3)
    fleet = Fleet("mixed")
    fleet.fill(1, 0.0)
    for number in range(5):
        assert fleet.filter(fleet.pod(f"fits-{number}", 1, 1)).passed
        fleet.cache.release(f"fits-{number}")
        assert not fleet.filter(fleet.pod(f"waits-{number}", 2, 9)).passed
    found = fleet.filter_service.remembered()
    assert (found["shortlists"], found["unschedulable"]) == (3, 3)
    assert fleet.filter_service.unschedulable.uids() == ["waits-2", "waits-3", "waits-4"]


def test_machines_that_differ_in_their_links_never_share_a_state() -> None:
    """A key of memory addresses could become equal after graphs are dropped; the key must be of values."""
    fleet = Fleet("mixed")
    fleet.fill(5, 0.0)
    states = {node_info.state.allocation_signature for node_info in fleet.cache.snapshot().node_infos.values()}
    assert len(states) == 4, "five machines, two of which are alike"


def test_a_policy_remembers_few_sets_of_overrides() -> None:
    """Pods choose the classes that they ask for: ten overrides by class make a thousand policies."""
    policy = Policy(overrides=tuple(Override(classes=(f"c{i}",), packing="spread") for i in range(10)))
    subsets = [frozenset(f"c{i}" for i in range(10) if number >> i & 1) for number in range(1, MAX_EFFECTIVE + 3)]
    found = [policy.effective("n", subset) for subset in subsets]
    assert policy.effective("n", subsets[-1]) is found[-1], "the last is remembered"
    assert policy.effective("n", subsets[0]) is not found[0]
    assert policy.effective("n", subsets[0]).digest == found[0].digest


def asked(count: int, eighths: int = 0) -> ClaimSpec:
    """A request for GPUs, or for eighths of the memory of one GPU."""
    memory = {"memory": Quantity(eighths * (10 << 30) * NANO, BINARY_SI)} if eighths else None
    return ClaimSpec((Request("r", (DeviceRequest("r", "c", count=count, capacity=memory),)),))


def test_of_many_rare_sizes_the_largest_share_is_expected() -> None:
    """With 39 sizes each share rounds to 0. The estimate once was empty then."""
    sizes = [asked(count) for count in range(1, 33)] + [asked(1, eighths) for eighths in range(1, 8)]
    estimator = RequestMixEstimator()
    for number, spec in enumerate([*sizes * 5, asked(7)]):
        estimator.observe(Claim(ObjectKey("x", f"c{number}"), f"u{number}", allocation=Allocation(), spec=spec))
    ((shape, share),) = estimator.mix(80 << 30)
    assert (shape.gpus, share > 0) == (7, True)


def test_other_devices_than_gpus_are_no_jobs_of_gpus() -> None:
    estimator = RequestMixEstimator()
    for number in range(64):
        driver, count = ("gpu.nvidia.com", 2) if number % 2 else ("dra.cpu", 16)
        allocation = Allocation((Result("r", DeviceId(driver, "n", "d")),))
        estimator.observe(Claim(ObjectKey("x", f"c{number}"), f"u{number}", allocation=allocation, spec=asked(count)))
    ((shape, _),) = estimator.mix(80 << 30)
    assert shape.gpus == 2


def test_claims_that_are_forgotten_leave_no_count_behind() -> None:
    """Each claim with another amount of memory once left a zero behind, and every snapshot looked at them all."""
    estimator = RequestMixEstimator()
    for number in range(1000):
        memory = {"memory": Quantity((10 << 30) * NANO + number * NANO, BINARY_SI)}
        spec = ClaimSpec((Request("r", (DeviceRequest("r", "c", count=1, capacity=memory),)),))
        estimator.observe(Claim(ObjectKey("x", f"c{number}"), f"u{number}", allocation=Allocation(), spec=spec))
    assert len(estimator) == 512


def test_labels_that_tenants_name_are_forgotten() -> None:
    index = ClusterCache().store
    index.put_node("n1", Node("n1", {"zone": "a"}))
    before = kept_domains()
    for number in range(200):
        assert not index.domains((f"tenant-{number}",)).nodes
    assert index.domains(("zone",)).nodes == {"a": {"n1"}}
    assert 0 < kept_domains() - before <= 64


def kept_domains() -> int:
    return sum(isinstance(obj, LabelDomains) for obj in gc.get_objects())


def test_the_request_mix_is_that_of_the_last_claims() -> None:
    estimator = RequestMixEstimator()
    for number in range(1024):
        spec = asked(8 if number < 512 else 1)
        estimator.observe(Claim(ObjectKey("x", f"c{number}"), f"u{number}", allocation=Allocation(), spec=spec))
    ((shape, share),) = estimator.mix(80 << 30)
    assert (shape.gpus, share) == (1, 1.0), "the first half is forgotten"


def test_queued_evaluations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.serve.evaluations._MAX_ITEMS", 3)
    evaluations = Evaluations(lambda: 0.0)
    for number in range(8):
        evaluations.queue(f"ns{number % 2}", number, lambda _: True)
    assert evaluations.waiting == 3
    while evaluations.work():
        pass
    assert evaluations.waiting == 0


def test_gangs_with_a_plan_and_gangs_that_wait_are_bounded_also_for_each_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gangs of pods without devices always fit."""
    monkeypatch.setattr("extender.serve.gangs.gang_admission.MAX_REMEMBERED", 6)
    fleet = Fleet("mixed")
    fleet.fill(1, 0.0)
    gangs, _ = watched_gangs(fleet, SlotLimits(total=12, namespace=8, small=2))
    for namespace, count in (("a", 20), ("b", 5), ("c", 5), ("d", 5)):
        for i in range(count):
            pods = [gang_member(fleet, namespace, f"g{i}", f"p{i}-{j}") for j in range(2)]
            gangs.filter(pods[0], list(fleet.devices))
    assert Counter(key.namespace for key in gangs.forming) == {"a": 4, "b": 1, "c": 1}
    waiting = (GroupKey(namespace, GroupSource.BERTH, f"g{i}") for namespace in "abcd" for i in range(20))
    assert Counter(key.namespace for key in waiting if gangs.admission.get(key)) == {"a": 1, "b": 1, "c": 2, "d": 2}
    assert len(gangs.admission) == 6


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back on request")
def test_memory_of_large_objects_that_are_gone_goes_back_to_the_system() -> None:
    """A buffer that stays at the end of the heap keeps all that was freed before it."""
    texts = [bytes(20_000) for _ in range(5_000)]
    last = bytes(20_000)
    before = resident_bytes()
    texts.clear()
    assert give_back_memory(kept_bytes=32 << 20), "the C library keeps 100 MB"
    assert resident_bytes() < before - (64 << 20)
    assert not give_back_memory(kept_bytes=1 << 40), "it may keep so much"
    assert last
