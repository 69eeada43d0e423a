"""What an explanation says about a gang is true: against brute force, on random small clusters.

A change that it proposes helps, and no smaller part of it; there is room for as many members as it says, and for no
more; what it calls impossible is impossible in the empty fleet.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from copy import deepcopy
from itertools import combinations

import pytest

from extender.api.nodes import Taint
from extender.api.pod_groups import GroupPolicy
from extender.api.resource_slices import TaintRule
from extender.explain import GangExplanation
from extender.explain.gang_question import Holder
from tests.worlds.explained_gangs import apply, explained
from tests.worlds.gang_oracle import DRIVER, LABELS, GangCluster, nearest, random_cluster, world_of
from tests.worlds.gang_worlds import GangWorld

TAINT = Taint("maintenance", effect="NoSchedule")
Devices = Collection[tuple[int, int]]
"""Positions of the node and of the device in it."""


def cluster_of(seed: int) -> GangCluster:
    """A cluster with more devices in use than those of the planner's oracle, and with tainted ones.

    Without what only kube-scheduler knows.
    """
    rng = random.Random(seed)
    found = random_cluster(rng)
    found.limits, found.placed = {}, {}
    for member in found.members:
        member["only"], member["not_on"] = None, frozenset()
    for device in (device for node in found.nodes for device in node["devices"]):
        device["busy"] = rng.random() < 0.65
        device["tainted"] = not device["memory"] and not device["counters"] and rng.random() < 0.1
        device["busy"] |= device["tainted"]  # brute force knows no taints
    while len(found.members) < 2:
        found.members.append(dict(found.members[0]))
    if rng.random() < 0.3:
        found.members[0]["shared"] = True
        found.members[1] = dict(found.members[0])
    return found


def with_free(cluster: GangCluster, free: Devices) -> GangCluster:
    found = deepcopy(cluster)
    for node, device in free:
        found.nodes[node]["devices"][device]["busy"] = False
    return found


def busy_devices(cluster: GangCluster) -> list[tuple[int, int]]:
    nodes = enumerate(cluster.nodes)
    return [
        (n, i)
        for n, node in nodes
        for i, device in enumerate(node["devices"])
        if device["busy"] and not device["tainted"]
    ]


def most(cluster: GangCluster) -> int:
    """The most members for which some domain has room."""
    for size in range(len(cluster.members), 0, -1):
        for members in combinations(cluster.members, size):
            part = GangCluster(cluster.nodes, cluster.net, list(members), cluster.topology, cluster.label)
            if nearest(part) is not None:
                return size
    return 0


def explanation_of(cluster: GangCluster) -> GangExplanation:
    """Each device in use has a pod of its own."""
    everything = [(n, i) for n, node in enumerate(cluster.nodes) for i in range(len(node["devices"]))]
    world = world_of(with_free(cluster, everything))
    for node, device in busy_devices(cluster):
        _use(world, cluster, node, device)
    for node, device in everything:
        if cluster.nodes[node]["devices"][device]["tainted"]:
            rule = TaintRule(f"r-{node}-{device}", TAINT, DRIVER, f"n{node}", f"dev-{device}")
            world.cache.apply_rule(rule.name, rule)
    label = LABELS.get(cluster.label, "")
    notes = {"berth.dev/group-min": str(len(cluster.members)), "berth.dev/group-topology": cluster.topology}
    for position, member in enumerate(cluster.members):
        name = "shared" if member["shared"] else f"m-{position}"
        apply(world, f"m-{position}", name, annotations=notes, schedulingGroup={"podGroupName": "job"})
    membership = world.cache.snapshot().pods["m-0"].membership
    assert membership is not None
    world.cache.apply_group_policy(membership.policy_key, GroupPolicy(len(cluster.members), label))
    return explained(world)


def _use(world: GangWorld, cluster: GangCluster, node: int, device: int) -> None:
    """A device that claims can share has a share of nothing, which consumes its counters."""
    name = f"on-{node}-{device}"
    result = {"request": "r", "driver": DRIVER, "pool": f"n{node}", "device": f"dev-{device}"}
    if cluster.nodes[node]["devices"][device]["memory"]:
        result |= {"shareID": name, "consumedCapacity": {"memory": "0"}}  # type: ignore[dict-item]
    world.add_claim(
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
            },
        }
    )


def _devices(holders: Iterable[Holder]) -> list[tuple[int, int]]:
    names = [claim.removeprefix("default/on-").split("-") for holder in holders for claim in holder.claims]
    return [(int(node), int(device)) for node, device in names]


def check(seed: int) -> str:
    """The outcome. Raises AssertionError where the explanation is wrong."""
    cluster = cluster_of(seed)
    empty = with_free(cluster, busy_devices(cluster))
    found = explanation_of(cluster)
    if found.outcome == "fits":
        assert nearest(cluster) is not None
        return "fits"
    assert found.outcome == "gave-up" or nearest(cluster) is None
    exact, room = "that was found" not in found.sentence, most(cluster)
    if found.outcome == "refused":
        assert found.room == room or (not exact and found.room < room), (found.room, room)
    if found.room_if_empty is not None:
        known = most(empty)
        assert found.room_if_empty == known or (not exact and found.room_if_empty < known), (found.room_if_empty, known)
        never = "does not fit in this fleet" in found.sentence or "no node with devices has the label" in found.sentence
        is_tainted = any(device["tainted"] for node in cluster.nodes for device in node["devices"])
        assert never == (nearest(empty) is None) or (is_tainted and not never)
    for miss in found.misses:
        _check_change(cluster, found, miss.sentence, _devices(miss.holders))
    ends = [miss for miss in found.misses if miss.holders]
    assert ends or len(found.misses) == 5 or found.cut_short or found.room_if_empty != len(cluster.members)
    return "ends" if ends else "never" if found.room_if_empty is not None else "unknown"


def _check_change(cluster: GangCluster, found: GangExplanation, sentence: str, freed: Devices) -> None:
    changed = deepcopy(cluster)
    if "minimum" in sentence:
        size = int(sentence.split()[5])
        changed.members = cluster.members[:size]
        larger = GangCluster(cluster.nodes, cluster.net, cluster.members[: size + 1], cluster.topology, cluster.label)
        assert nearest(larger) is None, sentence
    elif "preferred" in sentence:
        changed.topology = "preferred"
    elif "constraint" in sentence:
        changed.label = ""
    else:
        changed = with_free(cluster, freed)
        for one in freed if "gave up" not in sentence else ():
            assert nearest(with_free(cluster, [other for other in freed if other != one])) is None, (sentence, one)
    assert nearest(changed) is not None, sentence


@pytest.mark.parametrize("block", range(4))
def test_explanations_of_random_gangs_are_true(block: int) -> None:
    """Each kind of answer occurs."""
    answers = Counter(check(block * 1_000_000 + number) for number in range(40))
    assert min(answers[kind] for kind in ("fits", "ends", "never")) >= 3, answers
