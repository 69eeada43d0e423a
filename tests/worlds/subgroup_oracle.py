"""Brute force over gangs with slices and sub-groups on small clusters: every way to place each member on a node.

It shares no code with the planner: a node is its labels and a number of free devices.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from extender.gangs.gang_problem import GangPlan, GangShortage
from extender.scheduling.subgroup_tree import SubGroup
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld

LEVELS = ("clique", "rack", "spine")
LABELS = dict(zip(LEVELS, (CLIQUE, RACK, SPINE), strict=True))
ORDER = ("spine", "rack", "clique", "node")
DEVICES = 4  # of a node


@dataclass
class SubGroupWorld:
    """nodes: dicts of clique, rack, spine and free. sizes: the devices of each member.

    subgroups: (level, members), members by their position in `sizes`; one may be inside another. `bound`: for some
    sub-groups, the node on which a member of them runs.
    """

    nodes: list[dict[str, object]]
    sizes: list[int]
    subgroups: list[tuple[str, tuple[int, ...]]]
    required: str = ""
    bound: dict[int, int] = field(default_factory=dict)

    @cached_property
    def domains(self) -> dict[str, list[object]]:
        """The domain of each node, by level: its path; None without the label. Ids of cliques are unique."""
        found: dict[str, list[object]] = {"node": list(range(len(self.nodes)))}
        for number, level in enumerate(LEVELS):
            farther = () if level == "clique" else LEVELS[number:]
            paths = [(node[level], *(node[one] for one in farther)) for node in self.nodes]
            found[level] = [None if path[0] is None else path for path in paths]
        return found

    @cached_property
    def groups(self) -> list[tuple[str, tuple[int, ...], object]]:
        """What has to be in one domain: level, members, and the domain of a bound member if one is known."""
        groups = [(level, members, self.bound.get(number)) for number, (level, members) in enumerate(self.subgroups)]
        if self.required:
            groups.append((self.required, tuple(range(len(self.sizes))), next(iter(self.bound.values()), None)))
        return [(level, one, None if node is None else self.domains[level][node]) for level, one, node in groups]


def random_world(rng: random.Random) -> SubGroupWorld:
    nodes: list[dict[str, object]] = []
    spines, racks, cliques = rng.choice(["a", "ab"]), rng.choice(["x", "xy"]), rng.choice(["1", "12"])
    for _ in range(rng.randint(3, 6)):
        spine = rng.choice(spines)
        rack = spine + rng.choice(racks)
        clique = rack + rng.choice(cliques)
        labels: dict[str, object] = {"spine": spine, "rack": rack, "clique": clique}
        if rng.random() < 0.1:
            labels[rng.choice(LEVELS)] = None
        nodes.append({**labels, "free": rng.choice([0, 1, 2, 3, 3, 4, 4, 4])})
    kind = rng.choice(["slices", "slices", "nested", "sub-groups", "sub-groups", "leader", "mixed"])
    if kind == "nested":
        sizes = [1] * rng.choice([4, 8])
        outer, inner = rng.choice([("rack", "clique"), ("rack", "node"), ("spine", "rack"), ("clique", "node")])
        subgroups = [*_slices(outer, 4, range(len(sizes))), *_slices(inner, 2, range(len(sizes)))]
    elif kind in ("slices", "leader"):
        number, size = rng.choice([(2, 2), (2, 3), (3, 2), (4, 2), (2, 4)])
        first = kind == "leader"
        sizes = [rng.choice([1, 2])] * first + [rng.choice([1, 1, 2])] * (number * size)
        subgroups = _slices(_level(rng), size, range(first, len(sizes)))
        if first and rng.random() < 0.5:
            subgroups.append((rng.choice(["rack", "spine"]), tuple(range(len(sizes)))))
    else:
        counts = [rng.randint(1, 4) for _ in range(rng.randint(2, 3))]
        sizes = [each for count in counts for each in [rng.choice([1, 1, 2])] * count]
        subgroups, start = [], 0
        for count in counts:
            subgroups.append((_level(rng), tuple(range(start, start + count))))
            start += count
        if kind == "mixed":
            subgroups += _slices("clique", 2, range(counts[0] - counts[0] % 2))
    world = SubGroupWorld(nodes, sizes, subgroups, rng.choice(["", "", "rack", "spine"]))
    if rng.random() < 0.3:
        subgroup = rng.randrange(len(subgroups))
        world.bound[subgroup] = rng.randrange(len(nodes))
    return world


def _level(rng: random.Random) -> str:
    return rng.choice(["node", "clique", "clique", "rack", "rack", "spine"])


def _slices(level: str, size: int, members: range) -> list[tuple[str, tuple[int, ...]]]:
    return [(level, tuple(members[start : start + size])) for start in range(0, len(members), size)]


# -- the rules -----------------------------------------------------------------------------------------------------


def obeys(world: SubGroupWorld, chosen: Sequence[int]) -> bool:
    """Whether the members may be on these nodes; the devices of the nodes do not count here."""
    return all(may_follow(world, chosen[:member], node) for member, node in enumerate(chosen))


def may_follow(world: SubGroupWorld, chosen: Sequence[int], node: int) -> bool:
    """Whether the next member may be on a node: in the domain of those before it, in each group that it is in."""
    member = len(chosen)
    for level, members, bound in world.groups:
        if member in members:
            domains = world.domains[level]
            known = {domains[node]}
            if bound is not None:
                known.add(bound)
            if members[0] < member:
                known.add(domains[chosen[members[0]]])
            if len(known) > 1 or None in known:
                return False
    return True


def placements(world: SubGroupWorld) -> Iterator[tuple[int, ...]]:
    """The node of each member, in every way that obeys the rules, but for equal members of one in one order."""
    free = [int(str(node["free"])) for node in world.nodes]
    kinds = [
        (size, [one for one, (_, members) in enumerate(world.subgroups) if member in members])
        for member, size in enumerate(world.sizes)
    ]

    def place(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        member = len(chosen)
        if member == len(world.sizes):
            yield chosen
            return
        equal = member > 0 and kinds[member] == kinds[member - 1]
        for node in range(chosen[-1] if equal else 0, len(world.nodes)):
            if free[node] >= world.sizes[member] and may_follow(world, chosen, node):
                free[node] -= world.sizes[member]
                yield from place((*chosen, node))
                free[node] += world.sizes[member]

    yield from place(())


def compare(seed: int) -> str:
    """How the plan of a random world differs from brute force; '' if it does not."""
    world = random_world(random.Random(seed))
    every = list(placements(world))
    found, nodes = planned(world)
    if not isinstance(found, GangPlan):
        return f"{seed}: no plan, but {every[0]} is one" if every else ""
    if not every:
        return f"{seed}: {nodes} is no plan"
    used = Counter[int]()
    for node, size in zip(nodes, world.sizes, strict=True):
        used[node] += size
    if not obeys(world, nodes) or any(used[node] > int(str(world.nodes[node]["free"])) for node in used):
        return f"{seed}: {nodes} breaks a rule"
    if not has_equal_sub_groups(world):
        return ""
    level = {"": "", "node": "node"} | {label: name for name, label in LABELS.items()}
    names = level[found.level]
    inside = [
        one
        for one in every
        if not names or {world.domains[names][node] for node in one} == {world.domains[names][nodes[0]]}
    ]
    levels = ORDER[: ORDER.index(world.subgroups[0][0]) + 1]
    best, own = min(numbers(world, one, levels) for one in inside), numbers(world, nodes, levels)
    return f"{seed}: {own} domains of {levels}, {best} are enough" if own != best else ""


def has_equal_sub_groups(world: SubGroupWorld) -> bool:
    """Whether the sub-groups are equal, and no node lacks a label: then the plan has the fewest domains."""
    kinds = {(level, len(members)) for level, members in world.subgroups}
    labelled = all(node[level] is not None for node in world.nodes for level in LEVELS)
    return len(kinds) == 1 and len(set(world.sizes)) == 1 and not world.bound and labelled


def numbers(world: SubGroupWorld, nodes: Sequence[int], levels: Sequence[str]) -> tuple[int, ...]:
    """The number of domains of each level."""
    return tuple(len({world.domains[level][node] for node in nodes}) for level in levels)


# -- as objects ----------------------------------------------------------------------------------------------------


def planned(world: SubGroupWorld) -> tuple[GangPlan | GangShortage, list[int]]:
    """The plan, and the node of each member if there is one."""
    cluster = GangWorld()
    for position, node in enumerate(world.nodes):
        labels = {LABELS[level]: str(node[level]) for level in LEVELS if node[level] is not None}
        cluster.add_node(f"n{position}", "t4-4", labels, DEVICES - int(str(node["free"])))
    members = [cluster.gang(1, size, f"m{position}")[0] for position, size in enumerate(world.sizes)]
    ranked = [cluster.member(member.uid, rank) for rank, member in enumerate(members)]
    placed = {f"n{node}": 1 for node in world.bound.values()} if world.required else {}
    label = LABELS[world.required] if world.required else ""
    found = cluster.plan(ranked, topology_label=label, subgroups=tuple(_tree(world)), placed=placed)
    nodes = [int(found.placements[one.uid][0][1:]) for one in members] if isinstance(found, GangPlan) else []
    return found, nodes


def _tree(world: SubGroupWorld) -> list[SubGroup]:
    """The sub-groups, each in the smallest one that contains it."""
    order = sorted(range(len(world.subgroups)), key=lambda one: (-len(world.subgroups[one][1]), one))
    below: dict[int, list[int]] = {one: [] for one in order}
    top = list[int]()
    for position, one in enumerate(order):
        around = [other for other in order[:position] if set(world.subgroups[one][1]) <= set(world.subgroups[other][1])]
        (below[around[-1]] if around else top).append(one)

    def subgroup(one: int) -> SubGroup:
        level, members = world.subgroups[one]
        placed = {f"n{world.bound[one]}": 1} if one in world.bound else {}
        uids = tuple(f"m{member}-0" for member in members)
        return SubGroup(
            f"subgroup {one}", LABELS.get(level, level), uids, placed, tuple(subgroup(other) for other in below[one])
        )

    return [subgroup(one) for one in top]
