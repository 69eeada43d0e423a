"""Trees of groups against brute force, on random small clusters: from the objects of the API to the node of each pod.

The tree is read here once more, in a few lines that share nothing with Berth: which pods are needed, and which must be
in one domain.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from extender.api.pod_groups import group_policy_of
from extender.explain import GangExplanation
from tests.worlds.explained_gangs import apply, explained
from tests.worlds.gang_worlds import RACK, SPINE, GangWorld
from tests.worlds.group_trees import composite, pod_group
from tests.worlds.running_berth import claim

LEVELS = ("", "node", RACK, SPINE)
HOSTNAME = "kubernetes.io/hostname"


@dataclass
class Group:
    """A PodGroup of `needed` pods, each of which needs `gpus`, or a CompositePodGroup of `needed` groups of `below`."""

    name: str
    level: str
    needed: int
    gpus: int = 0
    below: tuple[Group, ...] = ()

    @property
    def chosen(self) -> tuple[Group, ...]:
        return self.below[: self.needed]  # their names are in order

    def pods(self) -> list[tuple[str, int]]:
        """Name and GPUs of the pods that are needed."""
        own = [(f"{self.name}-{i}", self.gpus) for i in range(0 if self.below else self.needed)]
        return own + [one for group in self.chosen for one in group.pods()]

    def every(self) -> Iterator[Group]:
        yield self
        for group in self.chosen:
            yield from group.every()


def random_tree(rng: random.Random) -> Group:
    def leaf(name: str) -> Group:
        return Group(name, rng.choice(LEVELS), rng.randint(1, 2), rng.choice([1, 1, 2, 3]))

    children = []
    for i in range(rng.randint(2, 3)):
        inner = tuple(leaf(f"g{i}x{j}") for j in range(2)) if rng.random() < 0.4 else ()
        children.append(Group(f"g{i}", rng.choice(LEVELS), rng.randint(1, 2), 0, inner) if inner else leaf(f"g{i}"))
    needed = len(children) if rng.random() < 0.6 else rng.randint(1, len(children))
    return Group("root", rng.choice(("", "", RACK, SPINE)), needed, 0, tuple(children))


def random_nodes(rng: random.Random) -> list[dict[str, Any]]:
    """Their domains by level, and free GPUs of 4."""
    found = []
    for i in range(rng.randint(3, 5)):
        spine = rng.choice("ab")
        found.append({"node": i, SPINE: spine, RACK: spine + rng.choice("xy"), "free": rng.choice([0, 1, 2, 3, 4, 4])})
    return found


def obeys(tree: Group, nodes: Sequence[dict[str, Any]], place: dict[str, int]) -> bool:
    """Whether these pods, each on the node at a position, have room, and each group is in one domain of its level."""
    used = Counter[int]()
    for name, gpus in tree.pods():
        if name in place:
            used[place[name]] += gpus
    if any(used[node] > nodes[node]["free"] for node in used):
        return False
    for group in tree.every():
        own = [place[name] for name, _ in group.pods() if name in place]
        if group.level and len({nodes[node][group.level] for node in own}) > 1:
            return False
    return True


def fits(tree: Group, nodes: Sequence[dict[str, Any]]) -> bool:
    names = [name for name, _ in tree.pods()]

    def place(found: dict[str, int]) -> bool:
        if len(found) == len(names):
            return True
        return any(
            obeys(tree, nodes, more) and place(more)
            for node in range(len(nodes))
            for more in [{**found, names[len(found)]: node}]
        )

    return place({})


def explanation(tree: Group, nodes: Sequence[dict[str, Any]], rng: random.Random) -> GangExplanation:
    """What Berth says about the gang. The objects come in any order, and groups that are not needed have no pods."""
    world = GangWorld()
    for node in nodes:
        labels = {RACK: node[RACK], SPINE: node[SPINE]}
        world.add_node(f"n{node['node']}", "t4-4", labels, 4 - node["free"])
    objects, pods = [], list[tuple[str, Group]]()

    def make(group: Group, parent: str) -> None:
        level = HOSTNAME if group.level == "node" else group.level
        if group.below:
            objects.append(composite(group.name, group.needed, parent, level))
        else:
            objects.append(pod_group(group.name, parent, group.needed, level))
        if not group.below:
            pods.extend((f"{group.name}-{i}", group) for i in range(group.needed))
        for one in group.below:
            make(one, group.name)

    make(tree, "")
    needed = dict(tree.pods())
    steps: list[Any] = [*objects, *(one for one in pods if one[0] in needed)]
    rng.shuffle(steps)
    for step in steps:
        if isinstance(step, dict):
            for key, policy in group_policy_of(step).items():
                world.cache.apply_group_policy(key, policy)
        else:
            name, group = step
            world.add_claim(claim(name, group.gpus))
            apply(world, name, name, schedulingGroup={"podGroupName": group.name})
    return explained(world, name="root")


def check(seed: int) -> str:
    """The outcome. Raises AssertionError where Berth and brute force differ."""
    rng = random.Random(seed)
    tree, nodes = random_tree(rng), random_nodes(rng)
    found = explanation(tree, nodes, rng)
    if len(tree.pods()) < 2:
        assert found.outcome == "no-gang"
        return found.outcome
    assert found.minimum == len(tree.pods())
    if found.outcome != "fits":
        assert found.outcome == "refused", found.sentence
        assert not fits(tree, nodes), f"{seed}: {tree} fits"
        return found.outcome
    place = {member.pod.removeprefix("default/"): int(member.node[1:]) for member in found.plan}
    assert place.keys() == dict(tree.pods()).keys()
    assert obeys(tree, nodes, place), f"{seed}: {place} breaks a rule of {tree}"
    return found.outcome


@pytest.mark.parametrize("block", range(4))
def test_trees_agree_with_brute_force(block: int) -> None:
    outcomes = Counter(check(block * 1_000 + number) for number in range(40))
    assert min(outcomes["fits"], outcomes["refused"]) >= 8
