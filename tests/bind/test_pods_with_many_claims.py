"""A pod whose claims are beyond all that real pods have is refused before Berth reads its claims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from extender.allocation import Features
from extender.api.claim_specs import MAX_ALTERNATIVES
from extender.api.object_meta import ObjectKey
from extender.api.pods import MAX_CLAIMS, Pod
from extender.api.reasons import Code
from extender.api.resource_claims import PodClaim
from extender.cel.dra import Masks
from extender.policy import Policy
from extender.scheduling import (
    EvaluationContext,
    NodeRanking,
    requirements_of,
)
from extender.scheduling.requirements import UnschedulableAndUnresolvable
from tests.worlds.evaluation_worlds import GPU, Fleet, steps
from tests.worlds.filled_caches import put, required
from tests.worlds.running_berth import berthing, claim
from tests.worlds.running_berth import pod as pod_object

REFUSED_CLAIMS = "pod has more than 64 claims"
REFUSED_REQUESTS = "pod has more than 512 device requests in its claims, all alternatives counted"


def large(name: str, requests: int = 32, alternatives: int = 8, **fields: object) -> dict[str, Any]:
    """The largest claim that the API server admits has 32 requests with 8 alternatives."""
    found = claim(name)
    found["metadata"]["uid"] = f"uid-{name}"
    found["spec"]["devices"]["requests"] = [
        {
            "name": f"r{i}",
            "firstAvailable": [
                {"name": f"s{j}", "deviceClassName": "gpu.nvidia.com", **fields} for j in range(alternatives)
            ],
        }
        for i in range(requests)
    ]
    return found


def pod_with(fleet: Fleet, *claims: dict[str, Any]) -> Pod:
    """A pod with these claims, all known to the cache."""
    put(fleet.cache, *claims)
    names = [one["metadata"]["name"] for one in claims]
    found = Pod(ObjectKey("default", "p"), "uid-p", tuple(PodClaim(f"g-{name}", name) for name in names))
    fleet.cache.apply_pod(found.uid, found)
    return found


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ([claim(f"c{i}") for i in range(MAX_CLAIMS + 1)], REFUSED_CLAIMS),
        ([large("c1"), large("c2"), claim("c3")], REFUSED_REQUESTS),
        ([large(f"c{i}") for i in range(MAX_CLAIMS)], REFUSED_REQUESTS),
    ],
)
def test_a_pod_with_too_many_claims_or_requests_is_refused_and_nothing_is_remembered(claims: list, reason: str) -> None:
    """Attack: stall scheduling with pods that name hundreds of large claims."""
    fleet = Fleet()
    pod = pod_with(fleet, *claims)
    answer = fleet.filter_service.filter(pod, fleet.names)
    assert answer.failed == dict.fromkeys(fleet.names, reason)
    assert fleet.filter_service.prioritize(pod, fleet.names) == [(name, 0) for name in fleet.names]
    assert set(fleet.filter_service.remembered().values()) == {0}
    assert fleet.filter_service.evaluations.waiting == 0


def test_a_pod_with_too_many_claims_is_refused_before_they_are_looked_up() -> None:
    fleet = Fleet()
    names = [f"unknown{i}" for i in range(MAX_CLAIMS + 1)]
    pod = Pod(ObjectKey("default", "p"), "uid-p", tuple(PodClaim(name, name) for name in names))
    found = requirements_of(pod, fleet.cache.snapshot(), Policy())
    assert isinstance(found, UnschedulableAndUnresolvable)
    assert found.reason.code is Code.TOO_MANY_CLAIMS


@pytest.mark.parametrize(
    "claims",
    [[claim(f"c{i}") for i in range(MAX_CLAIMS)], [large("c1"), large("c2")], [large(f"c{i}", 1) for i in range(64)]],
)
def test_a_pod_at_the_limits_has_requirements(claims: list) -> None:
    fleet = Fleet()
    found = required(pod_with(fleet, *claims), fleet.cache)
    assert len(found.specs) == len(claims)
    assert sum(len(one.alternatives) for spec in found.specs for one in spec.requests) <= MAX_ALTERNATIVES


async def test_bind_and_gangs_refuse_such_a_pod() -> None:
    notes = {"berth.dev/group": "g", "berth.dev/group-min": "2"}
    async with berthing({"n1": "hgx-h100-8"}) as b:
        await b.create(large("c1"), large("c2"), large("c3"), claim("c4"), pod_object("p", "c1", "c2", "c3"))
        await b.create(pod_object("m1", "c1", "c2", "c3", annotations=notes), pod_object("m2", "c4", annotations=notes))
        assert REFUSED_REQUESTS in await b.bind("p", "n1")
        answer = await b.filter("m2", ["n1"])
        assert answer["FailedAndUnresolvableNodes"] == {"n1": f"pod default/m1 of the group: {REFUSED_REQUESTS}"}


def with_known_masks(fleet: Fleet, *claims: dict[str, Any]) -> tuple[NodeRanking, Callable[[int], bool]]:
    """A new ranking for a pod with these claims, whose selectors are matched, and its update in so many steps."""
    found, snapshot = required(pod_with(fleet, *claims), fleet.cache), fleet.cache.snapshot()
    context = EvaluationContext(Masks(), Features(), snapshot.baseline)
    assert NodeRanking(found).update(snapshot, context)
    ranking = NodeRanking(found)
    return ranking, lambda number: ranking.update(snapshot, replace(context, deadline=steps(number, ends_one=True)))


def calls(update: Callable[[int], bool], number: int) -> int:
    """How many updates of so many steps it takes."""
    return next(made for made in count(1) if update(number))


def test_the_budget_ends_between_nodes_without_room_whose_masks_are_known() -> None:
    """Nothing is searched on such nodes, but each alternative of each request is counted."""
    again, update = with_known_masks(Fleet(), large("c1", count=9))
    assert not update(300)
    assert again.nodes == 4, "the nodes of one machine; the 256 alternatives on the second machine are too many"


def test_the_budget_ends_between_nodes_that_are_assigned_to_one_equivalence_class() -> None:
    """The key of each node has the masks of each alternative if a selector reads the identity of a device."""
    asked = large("c1", selectors=[{"cel": {"expression": f'{GPU}.uuid != "x"'}}])
    _, update = with_known_masks(Fleet(nodes=12, kinds=1), asked)
    assert calls(update, 2_000) > 1, "12 nodes with 256 alternatives have more than 3,000 masks"


def constrained(*attributes: str) -> dict[str, Any]:
    """A claim with these constraints, whose selector reads the identity of a device."""
    found = claim(f"c-{attributes[0].rpartition('/')[2]}", selector=f'{GPU}.uuid != "x"')
    found["metadata"]["uid"] = found["metadata"]["name"]
    found["spec"]["devices"]["constraints"] = [{"matchAttribute": name} for name in attributes]
    return found


def test_the_budget_ends_between_the_attributes_of_one_node() -> None:
    """64 claims with 32 constraints each took 145 ms for a node, however short the call should be."""
    every = [[f"example.com/a{i}-{j}" for j in range(32)] for i in range(8)]
    _, update = with_known_masks(Fleet(nodes=1), *(constrained(*names) for names in every))
    assert calls(update, 32) >= 8
