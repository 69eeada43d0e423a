"""One search with an observer gives all causes; a hypothetical cluster is explained like a real one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation import Features
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import PodClaim, Result
from extender.api.resource_slices import DeviceId
from extender.base.deadline import DeadlineExceeded
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.explain import explain
from extender.explain.pod_explanation import trace
from extender.explain.scenario import Scenario, apply_scenario
from extender.policy import Policy
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.scheduling import EvaluationContext, NodeRanking, PodRequirements, RankingCache, evaluate, requirements_of
from tests.worlds.evaluation_worlds import steps
from tests.worlds.filled_caches import GPU_CLASS, put
from tests.worlds.running_berth import claim

KINDS = ("hgx-h100-8", "t4-4", "dgx1-v100", "t4-4")
NODES = tuple(f"n{number}" for number in range(len(KINDS)))
UUID = 'device.attributes["gpu.nvidia.com"].uuid != "x"'
ROOT = 'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"'
POD = Pod(ObjectKey("default", "p"), "u", (PodClaim("g", "asked"),))
BY_NAME = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12, unique=True)
ASKED = st.tuples(st.integers(1, 8), st.sampled_from(["", UUID, ROOT]), st.sampled_from(["", "numaNode", "uuid"]))


def result(node: int, device: int) -> Result:
    return Result("gpu", DeviceId("gpu.nvidia.com", f"n{node}", f"gpu-{device}"))


def cluster(
    held: list[tuple[int, int]], asked: tuple[int, str, str], without: frozenset[str] = frozenset()
) -> ClusterCache:
    """Four nodes, but for some; of each node in turn, these devices are held by a claim of their own."""
    cache, machines = put(ClusterCache(), GPU_CLASS), carried_machines()
    for name, kind in zip(NODES, KINDS, strict=True):
        if name not in without:
            machine = machines[kind]
            put(cache, node_object(name, machine, {}), gpu_slice(name, machine), fabric_slice(name, machine))
    for node, device in held:
        allocate(cache, node, device)
    count, selector, same = asked
    wanted: dict[str, Any] = claim("asked", count, selector)
    if same:
        wanted["spec"]["devices"]["constraints"] = [{"matchAttribute": f"gpu.nvidia.com/{same}"}]
    return put(cache, wanted)


def allocate(cache: ClusterCache, node: int, device: int) -> None:
    name = f"held-{node}-{device}"
    one: dict[str, Any] = claim(name, 1)
    one["metadata"]["uid"] = name
    devices = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": f"n{node}", "device": f"gpu-{device}"}
    consumers = [{"resource": "pods", "name": f"of-{name}", "uid": name}]
    put(cache, {**one, "status": {"allocation": {"devices": {"results": [devices]}}, "reservedFor": consumers}})


def rules_of(cache: ClusterCache) -> EvaluationContext:
    return EvaluationContext(Masks(), Features(), cache.snapshot().baseline)


def requirements(cache: ClusterCache) -> PodRequirements:
    found = requirements_of(POD, cache.snapshot(), Policy())
    assert isinstance(found, PodRequirements)
    return found


@given(BY_NAME, ASKED)
def test_an_observed_search_gives_the_status_of_one_that_is_not(
    held: list[tuple[int, int]], asked: tuple[int, str, str]
) -> None:
    cache = cluster(held, asked)
    wanted, context = requirements(cache), rules_of(cache)
    for node_info in cache.snapshot().node_infos.values():
        assert trace(node_info, wanted, context).status == evaluate(node_info, wanted, context)


@given(BY_NAME, BY_NAME, st.frozensets(st.sampled_from(NODES), max_size=3), ASKED)
def test_an_imagined_cluster_is_explained_as_one_that_is_so(
    held: list[tuple[int, int]], back: list[tuple[int, int]], without: frozenset[str], asked: tuple[int, str, str]
) -> None:
    """Devices given back and nodes gone: the same nodes fit with the same devices, and others fail for the same
    reasons. Scores are relative to the fleet, which stays that of the real cluster."""
    real, wished = cluster(held, asked), cluster([one for one in held if one not in back], asked, without)
    given = tuple(result(*one) for one in back if one in held)
    imagined = apply_scenario(real.snapshot(), (), Scenario(without, given))
    ranking, truth = NodeRanking(requirements(real)), NodeRanking(requirements(wished))
    ranking.update(imagined, rules_of(real))
    truth.update(wished.snapshot(), rules_of(wished))
    assert set(dict(ranking.best(None, 99))) == set(dict(truth.best(None, 99)))
    assert ranking.reasons() == truth.reasons()
    assert ranking.nodes == truth.nodes == len(imagined.node_infos)
    found = explain(POD, imagined, Policy(), rules_of(real))
    there = explain(POD, wished.snapshot(), Policy(), rules_of(wished))
    assert (found.outcome, found.nodes, found.fitting) == (there.outcome, there.nodes, there.fitting)
    assert [(g.code, g.nodes, g.examples) for g in found.unschedulable] == [
        (g.code, g.nodes, g.examples) for g in there.unschedulable
    ]
    assert real.snapshot().states.keys() == {
        node_info.state.number for node_info in real.snapshot().node_infos.values()
    }


@given(BY_NAME, ASKED)
def test_a_ranking_at_hand_and_one_made_anew_explain_alike(
    held: list[tuple[int, int]], asked: tuple[int, str, str]
) -> None:
    """The ranking lags behind, as one does that filter used a while ago."""
    cache = cluster(held[1:], asked)
    rankings = RankingCache()
    rankings.get_or_create(requirements(cache)).update(cache.snapshot(), rules_of(cache))
    for node, device in held[:1]:
        allocate(cache, node, device)
    context, snapshot = rules_of(cache), cache.snapshot()
    assert explain(POD, snapshot, Policy(), context, rankings) == explain(POD, snapshot, Policy(), context)


def test_a_term_that_no_device_reaches_is_counted_so() -> None:
    """No device reaches the second term, which reads no attribute."""
    cache = cluster([], (1, 'device.attributes["gpu.nvidia.com"].nothing == 1 && device.driver != ""', ""))
    found = explain(POD, cache.snapshot(), Policy(), rules_of(cache))
    assert found.outcome == "refused"
    assert "matches none of 24 devices" in found.terms[0]
    assert '`device.driver != ""` matches none of 0 devices' in found.terms[1]


def test_an_explanation_ends_where_its_budget_does() -> None:
    cache = cluster([], (1, UUID, ""))
    with pytest.raises(DeadlineExceeded):
        explain(POD, cache.snapshot(), Policy(), replace(rules_of(cache), deadline=steps(1)))
