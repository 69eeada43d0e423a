"""The tree of a gang: its sub-groups, each of which must be in one domain of a level.

A sub-group is named by its pods, or it is a slice: a number of pods with neighbouring indices, as in Volcano's
subGroupPolicy. Smaller ones are in it. A member that is in no sub-group is anywhere in the domain of the gang.

A pod with an index has its slice, whichever other pods exist. Pods without an index are all alike: new ones take the
free seats of the slices that run, then new slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.asked_subgroups import SUBGROUP_MIN, AskedSubGroups, GroupAround, SubGroupIndex, subgroup_index_of
from extender.api.group_topology import Level, level_label
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import JOB_STRIDE, GroupKey
from extender.api.pods import Pod
from extender.scheduling.domain_uses import path_labels


@dataclass(frozen=True, slots=True)
class SubGroup:
    """Members that must be in one domain."""

    name: str  # for texts, such as 'slice 3' or 'sub-group workers'
    level: str  # ONE_NODE or a label
    members: tuple[str, ...]  # UIDs of those to place, in the order of their index, with those of `inner`
    placed: Mapping[str, int] = field(default_factory=dict)  # node to number of members that are bound there
    inner: tuple[SubGroup, ...] = ()
    absent: int = 0  # members of a slice that do not exist, besides those absent in `inner`


class BoundMember(NamedTuple):
    """A bound member that has devices, as its claims show it."""

    subgroup: SubGroupIndex
    node: str


def members_with_index(key: GroupKey, snapshot: Snapshot) -> Iterator[BoundMember]:
    """The bound members of a group whose claims say their sub-group. A claim that pods share says it of none."""
    waiting, known = snapshot.members.get(key, {}), snapshot.bound_members.get(key, {})
    seen = set[str]()
    for one, node in snapshot.claims_of_group(key).items():
        claim = snapshot.claims.get(one)
        index = subgroup_index_of(claim.group_part) if claim is not None else None
        users = [consumer.uid for consumer in claim.reserved_for] if claim is not None else []
        is_gone = any(uid in waiting or known.get(uid, node) == "" for uid in users)
        if index is not None and len(users) == 1 and not is_gone and users[0] not in seen:
            seen.add(users[0])
            yield BoundMember(index, node)


class _Entry(NamedTuple):
    """A member that is in a slice: one to place, or a bound one."""

    rank: int | None
    uid: str = ""  # '' if it is bound
    node: str = ""  # '' if it is to be placed


_Positioned = tuple[int, _Entry]
"""A member with its position in the order by which slices are cut. Absent members keep their positions free."""


def rank_order(pod: Pod) -> tuple[bool, int, ObjectKey]:
    """A sort key: pods by their index, those without one last."""
    rank = _rank(pod)
    return rank is None, rank or 0, pod.key


def subgroups_of(
    pods: Sequence[Pod], bound: Sequence[BoundMember], levels: Sequence[str], snapshot: Snapshot
) -> tuple[SubGroup, ...]:
    """The sub-groups of a gang, by its waiting pods in rank order. The policy has `levels`.

    What has a `subgroups_problem` is left out.
    """
    return tuple(_subgroups_in(0, pods, bound, levels, snapshot))


def _subgroups_in(
    depth: int, pods: Sequence[Pod], bound: Sequence[BoundMember], levels: Sequence[str], snapshot: Snapshot
) -> Iterator[SubGroup]:
    """Those of the pods of one sub-group, which is in `depth` others."""
    outer: dict[GroupAround, list[Pod]] = {}
    for pod in pods:
        for around in _asked_by(pod).around[depth : depth + 1]:
            outer.setdefault(around, []).append(pod)
    for around, members in outer.items():
        own = [one for one in bound if one.subgroup.is_in(around.name)]
        inner = tuple(_subgroups_in(depth + 1, members, own, levels, snapshot))
        yield from _subgroup(around.name, _label(around.level, levels), members, own, inner)
    for subgroup, members in _by_subgroup([pod for pod in pods if len(_asked_by(pod).around) == depth]).items():
        own = [one for one in bound if one.subgroup.name == subgroup]
        asked = _asked(members)
        slices = tuple(_slices(asked, members, own, levels, snapshot))
        yield from _subgroup(subgroup, _label(asked.required, levels), members, own, slices)


def _subgroup(
    name: str, level: str, pods: Sequence[Pod], bound: Sequence[BoundMember], inner: tuple[SubGroup, ...]
) -> tuple[SubGroup, ...]:
    """A sub-group with what is in it; without a level only that."""
    if not level:
        return inner
    placed = Counter(one.node for one in bound)
    return (SubGroup(f"sub-group {name}", level, tuple(pod.uid for pod in pods), placed, inner),)


def _by_subgroup(pods: Sequence[Pod]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.membership is not None:
            found.setdefault(pod.membership.subgroups.name, []).append(pod)
    return found


def _asked_by(pod: Pod) -> AskedSubGroups:
    return pod.membership.subgroups if pod.membership is not None else AskedSubGroups()


def _asked(pods: Sequence[Pod]) -> AskedSubGroups:
    """What the pods of a sub-group ask for. Those without slices, such as a leader, are in none."""
    return max(map(_asked_by, pods), key=lambda one: bool(one.slices))


# -- slices --------------------------------------------------------------------------------------------------------


def _slices(
    asked: AskedSubGroups, pods: Sequence[Pod], bound: Sequence[BoundMember], levels: Sequence[str], snapshot: Snapshot
) -> Iterator[SubGroup]:
    layers = [(layer.size, label) for layer in asked.slices if (label := _label(layer.level, levels))]
    if not layers:
        return
    entries = [_Entry(_rank(pod), pod.uid) for pod in pods if _asked_by(pod).slices]
    entries += [_Entry(one.subgroup.rank, node=one.node) for one in bound if one.subgroup.in_slice]
    positioned = _indexed([one for one in entries if one.rank is not None], asked.first, layers[0][0])
    names_of = [snapshot.domains(path_labels(level, levels)).name_of for _, level in layers]
    loose = _seated([one for one in entries if one.rank is None], [size for size, _ in layers], names_of)
    start = max((position for position, _ in positioned), default=-1) // layers[0][0] + 1
    positioned += [(start * layers[0][0] + position, entry) for position, entry in loose]
    yield from _cut(positioned, layers, "slice ", f" of sub-group {asked.name}" if asked.name else "")


def _label(level: Level | None, levels: Sequence[str]) -> str:
    try:
        return level_label(level, levels)
    except ValueError:
        return ""


def _rank(pod: Pod) -> int | None:
    return pod.membership.rank if pod.membership is not None else None


def _indexed(entries: Sequence[_Entry], first: int, size: int) -> list[_Positioned]:
    """Members with an index. No Job of a JobSet is split over two slices that have pods of other Jobs."""
    ranks = [max((one.rank or 0) - first, 0) for one in entries]
    width = _job_size(ranks)
    together = max(size // width, 1)  # Jobs in one slice
    stride = -(-width // size) * size  # positions of the slices of one Job, or of these Jobs
    return [
        (job // together * stride + job % together * width + index, entry)
        for (job, index), entry in zip((divmod(rank, JOB_STRIDE) for rank in ranks), entries, strict=True)
    ]


def _job_size(ranks: Iterable[int]) -> int:
    """The number of pods of a Job, by the largest index."""
    return max((rank % JOB_STRIDE + 1 for rank in ranks), default=1)


def _seated(
    entries: Sequence[_Entry], sizes: Sequence[int], names_of: Sequence[Mapping[str, str]]
) -> Iterator[_Positioned]:
    """Members without an index. Those that run in one domain are in the same slices, those to place fill the rest."""
    slices = _filled([one for one in entries if one.node], sizes, names_of)
    seats = [seat for one in slices for seat in one]
    new = iter([one for one in entries if not one.node])
    yield from ((at, found) for at, seat in enumerate(seats) if (found := seat or next(new, None)) is not None)
    yield from enumerate(new, len(seats))


def _filled(
    entries: Sequence[_Entry], sizes: Sequence[int], names_of: Sequence[Mapping[str, str]]
) -> list[list[_Entry | None]]:
    """The slices of bound members. Each has as many seats as its size; None is a free one."""
    if not sizes:
        return [[entry] for entry in entries]
    by_domain: dict[str, list[_Entry]] = {}
    for entry in entries:
        by_domain.setdefault(names_of[0].get(entry.node, ""), []).append(entry)
    found: list[list[_Entry | None]] = []
    for _, own in sorted(by_domain.items()):
        inner = _filled(own, sizes[1:], names_of[1:])
        number = sizes[0] // (sizes[1] if len(sizes) > 1 else 1)  # of inner slices in a slice
        for start in range(0, len(inner), number):
            seats = [seat for one in inner[start : start + number] for seat in one]
            found.append(seats + [None] * (sizes[0] - len(seats)))
    return found


def _cut(
    positioned: Sequence[_Positioned], layers: Sequence[tuple[int, str]], prefix: str, suffix: str
) -> Iterator[SubGroup]:
    """The slices of the first layer that have members to place, with those of the next layers in them."""
    if not layers:
        return
    size, level = layers[0]
    slices: dict[int, list[_Positioned]] = {}
    for position, entry in sorted(positioned, key=lambda one: one[0]):
        slices.setdefault(position // size, []).append((position % size, entry))
    for number, own in slices.items():
        members = tuple(entry.uid for _, entry in own if entry.uid)
        if members:
            placed = Counter(entry.node for _, entry in own if entry.node)
            inner = tuple(_cut(own, layers[1:], f"{prefix}{number}.", suffix))
            absent = max(size - len(own) - sum(map(absent_members, inner)), 0)
            yield SubGroup(f"{prefix}{number}{suffix}", level, members, placed, inner, absent)


def absent_members(subgroup: SubGroup) -> int:
    """How many members of a sub-group, with those of its inner ones, do not exist."""
    return subgroup.absent + sum(map(absent_members, subgroup.inner))


# -- sub-groups with a minimum of their own -------------------------------------------------------------------------


def needed_members(pods: Sequence[Pod], bound: Sequence[BoundMember]) -> frozenset[str]:
    """UIDs of the first waiting pods, in rank order, that the minimum of each sub-group needs beside the bound ones."""
    found, inside = set[str](), dict[str, list[str]]()
    have = Counter(name for one in bound for name in _names_around(one.subgroup.name))
    for pod in pods:
        for name in _names_around(_asked_by(pod).name):
            inside.setdefault(name, []).append(pod.uid)
    for name, minimum in _minimums(pods):
        own = sorted(inside.get(name, ()), key=lambda uid: uid not in found)  # stable: otherwise in rank order
        found.update(own[: max(minimum - have[name], 0)])
    return frozenset(found)


def lacking_subgroup(pods: Sequence[Pod], bound: Sequence[BoundMember], unknown: int) -> tuple[str, int] | None:
    """A sub-group of which fewer pods exist than its minimum, and that minimum.

    `unknown` bound members, such as those without devices, may be in any sub-group.
    """
    subgroups = (*(_asked_by(pod).name for pod in pods), *(one.subgroup.name for one in bound))
    exist = Counter(name for subgroup in subgroups for name in _names_around(subgroup))
    for name, minimum in _minimums(pods):
        missing = minimum - exist[name]
        if missing > max(unknown, 0):
            return name, minimum
        unknown -= max(missing, 0)
    return None


def _names_around(subgroup: str) -> Iterator[str]:
    """The names of a sub-group and of those that it is in, see GroupAround."""
    words = subgroup.split("/")
    return ("/".join(words[:number]) for number in range(1, len(words) + 1))


def _minimums(pods: Sequence[Pod]) -> list[tuple[str, int]]:
    """The sub-groups with a minimum, also those without pods; inner ones before those around them."""
    of_tree = _asked_by(pods[0]).minimums if pods else ()
    found = {subgroup: _asked_by(members[0]).minimum for subgroup, members in _by_subgroup(pods).items()}
    found |= {name: max(minimum, found.get(name, 0)) for name, minimum in of_tree}
    return sorted(((name, one) for name, one in found.items() if one), key=lambda entry: -entry[0].count("/"))


# -- mistakes ------------------------------------------------------------------------------------------------------


def subgroups_problem(
    group: str, pods: Sequence[Pod], bound: Sequence[BoundMember], minimum: int, levels: Sequence[str]
) -> str:
    """Why no plan can give the pods of a complete gang their sub-groups, or what they disagree about; '' if nothing."""
    different = subgroups_disagreement(group, pods)
    if different:
        return different
    for subgroup, members in _by_subgroup(pods).items():
        asked = _asked(members)
        whom = f"sub-group {subgroup} of group {group}" if subgroup else f"group {group}"
        try:
            for level in (asked.required, *(layer.level for layer in asked.slices)):
                level_label(level, levels)
        except ValueError as error:
            return str(error)
        if asked.slices:
            own = [pod for pod in members if _asked_by(pod).slices]
            run = [one.subgroup.rank for one in bound if one.subgroup.name == subgroup and one.subgroup.in_slice]
            around = dict(asked.minimums).get(asked.around[-1].name, 0) if asked.around else 0  # of its PodGroup
            needed = _needed(len(own) + len(run), len(pods) + len(bound), minimum, asked.minimum or around)
            problem = _cut_problem(own, run, needed, whom)
            if problem:
                return f"pod annotation {asked.slices[0].annotation}: {problem}"
    together = sum(_asked_by(members[0]).minimum for members in _by_subgroup(pods).values())
    if together > minimum:
        text = f"the minimums of the sub-groups of group {group} ({SUBGROUP_MIN}) are {together} pods together"
        return f"{text}, and its own minimum is {minimum}"
    return ""


def _cut_problem(pods: Sequence[Pod], bound: Sequence[int | None], needed: int, whom: str) -> str:
    """Why the pods of a sub-group cannot be cut into slices; '' if they can.

    `bound` has the indices of the bound ones. Of all of them, `needed` surely run together.
    """
    asked, by_index = _asked(pods), dict[int | None, Pod]()
    size = asked.slices[0].size
    if needed % size:
        return f"{size} does not divide the {needed} pods of {whom}"
    for pod in pods:
        index = _rank(pod)
        other = by_index.setdefault(index, pod)
        if other is not pod and index is not None:
            return f"{other.key} and {pod.key} of {whom} have the same index, {index % JOB_STRIDE}"
    if None in by_index and len(by_index) > 1:
        pod = next(pod for index, pod in by_index.items() if index is not None)
        return f"{by_index[None].key} of {whom} has no index, but {pod.key} has one"
    ranks = sorted([index - asked.first for index in (*by_index, *bound) if index is not None])
    width = _job_size(ranks)
    if ranks == list(range(1, needed + 1)) and size > 1 and not bound:
        return f"slices begin with index 0, but the pods of {whom} have the indices 1 to {needed}"
    if len(ranks) == needed and ranks[-1] >= JOB_STRIDE and width % size and size % width:
        return f"slices of {size} pods are neither parts of a Job of {width} pods of {whom} nor several such Jobs"
    return ""


def _needed(sliced: int, pods: int, minimum: int, own_minimum: int) -> int:
    """How many of the `sliced` pods of a sub-group surely run together: those beyond can form a slice that is not full.

    `pods` is the number of all pods of the gang.
    """
    if pods <= minimum:
        return sliced
    return own_minimum or (minimum if sliced == pods else 0)


def subgroups_disagreement(group: str, pods: Sequence[Pod]) -> str:
    """How two pods of a sub-group contradict each other; '' if none do. Pods without slices contradict nobody."""
    for subgroup, members in _by_subgroup(pods).items():
        whom = f"sub-group {subgroup} of group {group}" if subgroup else f"group {group}"
        sliced = [pod for pod in members if _asked_by(pod).slices]
        found = difference_of(whom, members, _OF_SUBGROUPS) or difference_of(whom, sliced, _OF_SLICES)
        if found:
            return found
    return ""


def difference_of(whom: str, pods: Sequence[Pod], values: Mapping[str, Callable[[Pod], Hashable]]) -> str:
    """Which of the values, which are by their names in words, two of these pods have different; '' if none."""
    for words, value in values.items():
        other = next((pod for pod in pods if value(pod) != value(pods[0])), None)
        if other is not None:
            pair = f"{pods[0].key} has {value(pods[0]) or 'none'}, {other.key} has {value(other) or 'none'}"
            return f"the pods of {whom} disagree about {words}: {pair}"
    return ""


def _required(pod: Pod) -> Hashable:
    asked = _asked_by(pod)
    levels = (*(one.level for one in asked.around), asked.required)
    return ", ".join(level.name for level in levels if level is not None)


def _layers(pod: Pod) -> Hashable:
    return ", ".join(f"{layer.size} pods in one {layer.level.name}" for layer in _asked_by(pod).slices)


_OF_SUBGROUPS: Mapping[str, Callable[[Pod], Hashable]] = {
    "their required level": _required,
    "their minimum (berth.dev/subgroup-min)": lambda pod: _asked_by(pod).minimum,
}
_OF_SLICES = {"their slices": _layers}
