"""Diagnosis as functions: one observed search tells all, and an imagined cluster equals one that is so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation.features import Features
from extender.cel.dra import Masks
from extender.diagnosis.consistency import audit
from extender.diagnosis.explain import explain
from extender.diagnosis.fleet_stats import fleet_facts
from extender.diagnosis.scenario import Changes, imagine, seen_by_holder
from extender.diagnosis.search_trace import causes, narrate, trace
from extender.mirror.mirror import Mirror
from extender.model.budget import Budget, BudgetSpent
from extender.model.claim import ObjectKey, Pod, PodClaim, Result
from extender.model.device import DeviceId
from extender.model.errors import WireError
from extender.policy import Policy
from extender.sandbox.machines import carried_machines, fabric_slice, gpu_slice, node_object
from extender.verdict.demand import Demand, demand_of
from extender.verdict.evaluate import Refusal, Rules, evaluate
from extender.verdict.ranking import Ranking
from extender.wire.claims import decode_claim, decode_class
from extender.wire.core import decode_node
from extender.wire.slices import SliceDecoder
from tests.berthing import claim

KINDS = ("hgx-h100-8", "t4-4", "dgx1-v100", "t4-4")
NODES = tuple(f"n{number}" for number in range(len(KINDS)))
UUID = 'device.attributes["gpu.nvidia.com"].uuid != "x"'
ROOT = 'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"'
POD = Pod(ObjectKey("default", "p"), "u", (PodClaim("g", "asked"),))
BY_NAME = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12, unique=True)
ASKED = st.tuples(st.integers(1, 8), st.sampled_from(["", UUID, ROOT]), st.sampled_from(["", "numaNode", "uuid"]))


def result(node: int, device: int) -> Result:
    return Result("gpu", DeviceId("gpu.nvidia.com", f"n{node}", f"gpu-{device}"))


def cluster(held: list[tuple[int, int]], asked: tuple[int, str, str], without: frozenset[str] = frozenset()) -> Mirror:
    """Four nodes, but for some; of each node in turn, these devices are held by a claim of their own."""
    mirror, decoder, machines = Mirror(), SliceDecoder(), carried_machines()
    mirror.apply_class("gpu.nvidia.com", decode_class({"metadata": {"name": "gpu.nvidia.com"}, "spec": {}}))
    for name, kind in zip(NODES, KINDS, strict=True):
        if name not in without:
            mirror.apply_node(name, decode_node(node_object(name, machines[kind], {})))
            for slice_ in (gpu_slice(name, machines[kind]), fabric_slice(name, machines[kind])):
                mirror.apply_slice(slice_["metadata"]["name"], decoder.decode(slice_))
    for node, device in held:
        allocate(mirror, node, device)
    count, selector, same = asked
    wanted: dict[str, Any] = claim("asked", count, selector)
    if same:
        wanted["spec"]["devices"]["constraints"] = [{"matchAttribute": f"gpu.nvidia.com/{same}"}]
    found = decode_claim(wanted)
    mirror.apply_claim(found.key, found)
    return mirror


def allocate(mirror: Mirror, node: int, device: int) -> None:
    name = f"held-{node}-{device}"
    one: dict[str, Any] = claim(name, 1)
    one["metadata"]["uid"] = name
    devices = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": f"n{node}", "device": f"gpu-{device}"}
    consumers = [{"resource": "pods", "name": f"of-{name}", "uid": name}]
    found = decode_claim({**one, "status": {"allocation": {"devices": {"results": [devices]}}, "reservedFor": consumers}})
    mirror.apply_claim(found.key, found)


def rules_of(mirror: Mirror, budget: Budget | None = None) -> Rules:
    rules = Rules(Masks(), Features(), mirror.snapshot().fleet)
    return rules if budget is None else Rules(rules.masks, rules.features, rules.fleet, None, budget)


def demand(mirror: Mirror) -> Demand:
    found = demand_of(POD, mirror.snapshot(), Policy())
    assert isinstance(found, Demand)
    return found


@given(BY_NAME, ASKED)
def test_an_observed_search_gives_the_verdict_of_one_that_is_not(
    held: list[tuple[int, int]], asked: tuple[int, str, str]
) -> None:
    mirror = cluster(held, asked)
    wanted, rules = demand(mirror), rules_of(mirror)
    for view in mirror.snapshot().views.values():
        assert trace(view, wanted, rules).verdict == evaluate(view, wanted, rules)


@given(BY_NAME, BY_NAME, st.frozensets(st.sampled_from(NODES), max_size=3), ASKED)
def test_an_imagined_cluster_is_explained_as_one_that_is_so(
    held: list[tuple[int, int]], back: list[tuple[int, int]], without: frozenset[str], asked: tuple[int, str, str]
) -> None:
    """Devices given back and nodes gone: the same nodes fit with the same devices, and others fail for the same reasons.
    Scores are relative to the fleet, which stays that of the real cluster."""
    real, wished = cluster(held, asked), cluster([one for one in held if one not in back], asked, without)
    given = tuple(result(*one) for one in back if one in held)
    imagined = imagine(real.snapshot(), (), Changes(without, given))
    ranking, truth = Ranking(demand(real)), Ranking(demand(wished))
    ranking.follow(imagined, rules_of(real))
    truth.follow(wished.snapshot(), rules_of(wished))
    assert set(dict(ranking.best(None, 99))) == set(dict(truth.best(None, 99)))
    assert ranking.reasons() == truth.reasons() and ranking.nodes == truth.nodes == len(imagined.views)
    found = explain(POD, imagined, Policy(), rules_of(real))
    there = explain(POD, wished.snapshot(), Policy(), rules_of(wished))
    assert (found.outcome, found.nodes, found.fitting) == (there.outcome, there.nodes, there.fitting)
    assert [(g.code, g.nodes, g.examples) for g in found.groups] == [(g.code, g.nodes, g.examples) for g in there.groups]
    assert real.snapshot().states.keys() == {view.state.number for view in real.snapshot().views.values()}


@given(BY_NAME, ASKED)
def test_a_ranking_at_hand_and_one_made_anew_explain_alike(
    held: list[tuple[int, int]], asked: tuple[int, str, str]
) -> None:
    """The ranking lags behind, as one does that filter used a while ago."""
    mirror = cluster(held[1:], asked)
    ranking = Ranking(demand(mirror))
    ranking.follow(mirror.snapshot(), rules_of(mirror))
    for node, device in held[:1]:
        allocate(mirror, node, device)
    rules, snapshot = rules_of(mirror), mirror.snapshot()
    assert explain(POD, snapshot, Policy(), rules, ranking) == explain(POD, snapshot, Policy(), rules)


def test_one_search_tells_reason_causes_and_story() -> None:
    mirror = cluster([(1, 0), (1, 1)], (3, UUID, ""))
    found = trace(mirror.snapshot().views["n1"], demand(mirror), rules_of(mirror))
    assert isinstance(found.verdict, Refusal)
    told = narrate(found, rules_of(mirror))
    assert told[0] == "node n1: 4 devices" and told[-1] == f"refused: {found.verdict.text}"
    assert "request gpu: in use gpu-0, gpu-1" in told
    explained = explain(POD, mirror.snapshot(), Policy(), rules_of(mirror), narrated="n1")
    assert explained.narration == told and explained.outcome == "fits"
    (group,) = explained.groups
    assert group.reason == found.verdict.text and group.causes[: len(causes(found))] == causes(found)
    with pytest.raises(WireError, match="not known"):
        explain(POD, mirror.snapshot(), Policy(), rules_of(mirror), narrated="n9")


def test_nodes_that_look_different_to_the_pod_are_explained_so() -> None:
    """The last devices of a node are held for the pod itself: to it they are free."""
    mirror = cluster([(0, number) for number in range(8)], (8, "", ""))
    given = [result(0, number) for number in range(8)]
    rules, snapshot = rules_of(mirror), mirror.snapshot()
    assert explain(POD, snapshot, Policy(), rules).best[0].node == "n2"
    own = seen_by_holder(snapshot, given, ["n0", "n9"])
    found = explain(POD, snapshot, Policy(), rules, own=own)
    assert found.fitting == 2 and {one.node for one in found.best} == {"n0", "n2"} and found.nodes == 4


def test_a_term_that_no_device_reaches_is_counted_so() -> None:
    """The second term reads no attribute, so that all devices look alike to it, of which there are none."""
    mirror = cluster([], (1, 'device.attributes["gpu.nvidia.com"].nothing == 1 && device.driver != ""', ""))
    found = explain(POD, mirror.snapshot(), Policy(), rules_of(mirror))
    assert found.outcome == "refused" and "matches none of 24 devices" in found.terms[0]
    assert "`device.driver != \"\"` matches none of 0 devices" in found.terms[1]


def test_an_explanation_ends_where_its_budget_does() -> None:
    mirror = cluster([], (1, UUID, ""))
    budget = Budget(1.0, 1, lambda: 0.0)
    budget.keep()
    with pytest.raises(BudgetSpent):
        explain(POD, mirror.snapshot(), Policy(), rules_of(mirror, budget))


def test_audit_and_facts_are_values() -> None:
    mirror = cluster([(1, 0)], (1, "", ""))
    assert audit(mirror) == []
    facts = fleet_facts(mirror.snapshot())
    assert sum(one.gpus for one in facts.values()) == 24 and sum(one.free for one in facts.values()) == 23
