"""Trees of groups: PodGroups below CompositePodGroups (scheduling.k8s.io/v1alpha3, KEP-6012).

The pods of all PodGroups of a tree are one gang, which has the name of the root. Each PodGroup, and each
CompositePodGroup below the root, is a sub-group of it. A CompositePodGroup with the policy `basic` joins nothing: the
groups below it are gangs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from extender.api.asked_subgroups import GroupAround
from extender.api.group_topology import AskedTopology, Level
from extender.api.label_domains import natural
from extender.api.pod_groups import IN_TREE, GroupKey, GroupPolicy, GroupSource, Membership

MAX_LEVELS = 8  # CompositePodGroups above a PodGroup
MAX_GROUPS = 256  # of one tree: each event of one of them reads the whole tree
_CONSTRAINT = "spec.schedulingConstraints"


@dataclass(frozen=True, slots=True)
class _Tree:
    """What the groups below a root ask for together."""

    minimums: tuple[tuple[str, int], ...] = ()  # the pods that each needed PodGroup needs, by its path below the root
    lacks: str = ""  # an object that must exist first; '' if none
    problem: str = ""


class GroupTrees:
    """Finds the gang of the pods of a PodGroup. `policies` may change; `put` must be called after each change."""

    def __init__(self, policies: Mapping[GroupKey, GroupPolicy]) -> None:
        self._policies = policies
        self._below: dict[GroupKey, dict[GroupKey, None]] = {}
        self._trees: dict[GroupKey, _Tree] = {}  # by root; those that were asked for since the last change
        for key, policy in policies.items():
            self._link(key, policy)

    # -- changes ---------------------------------------------------------------------------------------------

    def put(
        self, key: GroupKey, old: GroupPolicy | None, new: GroupPolicy | None, change: Callable[[], None]
    ) -> list[GroupKey]:
        """Replace the policy of a key by calling `change`. Returns the PodGroups whose gang may be another."""
        if key.source not in IN_TREE:
            change()
            return []
        ends = [key, *(_parent(key, one) for one in (old, new) if one is not None and one.parent)]
        before = [one for end in ends for one in self._around(end)]
        if old is not None and old.parent:
            siblings = self._below[_parent(key, old)]
            del siblings[key]
            if not siblings:
                del self._below[_parent(key, old)]
        change()
        if new is not None:
            self._link(key, new)
        return list(dict.fromkeys((*before, *(one for end in ends for one in self._around(end)))))

    def _link(self, key: GroupKey, policy: GroupPolicy) -> None:
        if policy.parent:
            self._below.setdefault(_parent(key, policy), {})[key] = None

    def _around(self, key: GroupKey) -> list[GroupKey]:
        """The PodGroups of the trees that the group is in; of a tree that is too large, the group alone."""
        way = self._way_up(key)
        for one in way:
            self._trees.pop(one, None)
        found = self._all_below(way[-1])
        return [one for one in (found if len(found) <= MAX_GROUPS else [key]) if one.source is GroupSource.CORE]

    def _all_below(self, root: GroupKey) -> list[GroupKey]:
        """The group and all groups below it; some more than the limit of a tree that is too large."""
        found = {root: None}
        queue = [root]
        while queue and len(found) <= MAX_GROUPS:
            new = [one for one in islice(self._below.get(queue.pop(), ()), MAX_GROUPS + 1) if one not in found]
            found.update(dict.fromkeys(new))
            queue += new
        return list(found)

    # -- questions -------------------------------------------------------------------------------------------

    def membership(self, own: Membership) -> Membership:
        """What the pod of a PodGroup states about the gang of the tree; `own` if the PodGroup is in none."""
        policy = self._policies.get(own.key) if own.key.source is GroupSource.CORE else None
        if policy is None or not policy.parent or own.problem:
            return own
        way = self._way_up(own.key)
        problem = _fault(way)
        if problem:
            return replace(own, problem=problem)
        while way[-1] in self._policies and way[-1].source is GroupSource.COMPOSITE:
            if self._policies[way[-1]].groups:
                break
            way.pop()
        root = way[-1]
        if root == own.key:
            return own
        tree = self._tree(root)
        if tree.problem:
            return replace(own, problem=tree.problem)
        return self._member(own, way, tree)

    def of_root(self, root: GroupKey) -> Membership | None:
        """What the pods of a tree state about its gang, without their sub-groups; None if the root does not exist."""
        if root not in self._policies:
            return None
        return _in_tree(Membership(root), root, self._tree(root))

    def _member(self, own: Membership, way: list[GroupKey], tree: _Tree) -> Membership:
        path, around = "", list[GroupAround]()
        for key in way[-2::-1]:
            path = f"{path}/{key.name}".lstrip("/")
            label = self._policies[key].topology_label
            around.append(GroupAround(path, Level(_CONSTRAINT, label) if label else None))
        asked = own.topology
        if asked.required is not None:  # the annotation is about the pods of its PodGroup
            around.append(GroupAround(path, asked.required))
        has_own = own.subgroups.required or own.subgroups.minimum
        subgroup = f"{path}/{own.subgroups.name}" if has_own else path
        subgroups = replace(own.subgroups, name=subgroup, around=tuple(around), minimums=tree.minimums)
        topology = AskedTopology(asked.nearness, None, asked.preferred)
        return _in_tree(replace(own, topology=topology, subgroups=subgroups), way[-1], tree)

    def _way_up(self, key: GroupKey) -> list[GroupKey]:
        """The group and those above it, up to the root, to one that does not exist, or to one that is named twice."""
        found = [key]
        while len(found) <= MAX_LEVELS + 1:
            policy = self._policies.get(found[-1])
            if policy is None or not policy.parent:
                break
            parent = _parent(key, policy)
            found.append(parent)
            if parent in found[:-1]:
                break
        return found

    def _tree(self, root: GroupKey) -> _Tree:
        known = self._trees.get(root)
        if known is None:
            known = self._trees[root] = self._read(root)
        return known

    def _read(self, root: GroupKey) -> _Tree:
        if root not in self._policies:
            return _Tree(lacks=f"CompositePodGroup {root.name}")
        if len(self._all_below(root)) > MAX_GROUPS:
            return _Tree(problem=f"the tree of CompositePodGroup {root.name} has more than {MAX_GROUPS} groups")
        minimums, lacks = dict[str, int](), list[str]()
        self._needed(root, "", 0, minimums, lacks)
        return _Tree(tuple(minimums.items()), lacks[0] if lacks else "")

    def _needed(self, key: GroupKey, path: str, depth: int, minimums: dict[str, int], lacks: list[str]) -> None:
        """Adds the minimums of the PodGroups that a group needs: of its first child groups by name."""
        policy = self._policies[key]
        if key.source is GroupSource.CORE:
            minimums[path] = max(policy.minimum, 1)
            return
        below = sorted(
            self._below.get(key, ()), key=lambda child: (natural(child.name), child.source is GroupSource.CORE)
        )
        needed = policy.groups or 1
        if len(below) < needed:
            lacks.append(f"child group {len(below) + 1} of CompositePodGroup {key.name}")
        for child in below[:needed] if depth <= MAX_LEVELS else ():
            self._needed(child, f"{path}/{child.name}".lstrip("/"), depth + 1, minimums, lacks)


def _parent(key: GroupKey, policy: GroupPolicy) -> GroupKey:
    return GroupKey(key.namespace, GroupSource.COMPOSITE, policy.parent)


def _in_tree(own: Membership, root: GroupKey, tree: _Tree) -> Membership:
    minimum = 0 if tree.lacks else sum(minimum for _, minimum in tree.minimums)
    return replace(own, key=root, owner=root.name, minimum=minimum, lacks=tree.lacks)


def _fault(way: list[GroupKey]) -> str:
    """What is wrong with the groups above a PodGroup; '' if nothing is."""
    if way[-1] in way[:-1]:
        again = " -> ".join(one.name for one in way[way.index(way[-1]) :])
        return f"CompositePodGroup {way[-1].name} is below itself: {again} (spec.parentCompositePodGroupName)"
    if len(way) > MAX_LEVELS + 1:
        return f"PodGroup {way[0].name} is below more than {MAX_LEVELS} CompositePodGroups"
    return ""
