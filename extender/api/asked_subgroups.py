"""The sub-groups of a group whose pods must be near each other, as the annotations and labels of its pods name them.

A group can have sub-groups, such as the replicated jobs of a JobSet, and the pods of a sub-group, or of a group without
sub-groups, can be cut into slices of equal size, in order of their index, and these into smaller slices. Kueue's
annotations (kueue.x-k8s.io, apis/kueue/v1beta2/topology_types.go) are read as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import orjson

from extender.api.group_topology import (
    KUEUE_TOPOLOGY,
    OWN_TOPOLOGY,
    SLICE_LEVEL,
    SUBGROUP_REQUIRED,
    Level,
    level_of,
)
from extender.base.text_limits import shown

SLICE_SIZE = "berth.dev/group-slice-size"
SUBGROUP = "berth.dev/subgroup"
SUBGROUP_MIN = "berth.dev/subgroup-min"
OWN_SUBGROUPS = (SLICE_SIZE, SLICE_LEVEL, SUBGROUP, SUBGROUP_REQUIRED, SUBGROUP_MIN)
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"  # a label
_KUEUE_GROUP = "kueue.x-k8s.io/podset-group-name"
_KUEUE_SIZE = "kueue.x-k8s.io/podset-slice-size"
_KUEUE_LEVEL = "kueue.x-k8s.io/podset-slice-required-topology"
_KUEUE_LAYERS = "kueue.x-k8s.io/podset-slice-required-topology-constraints"
_LWS_SUBGROUP = "leaderworkerset.sigs.k8s.io/subgroup-index"  # a label
_LWS_LEVEL = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
SUBGROUP_NAMES = (SUBGROUP, _KUEUE_GROUP, REPLICATED_JOB, _LWS_SUBGROUP)
FOREIGN_SUBGROUPS = (_KUEUE_GROUP, _KUEUE_SIZE, _KUEUE_LEVEL, _KUEUE_LAYERS, _LWS_LEVEL)
_MAX_LAYERS = 3  # slices in slices; as in Kueue
_MAX_PODS = 100_000
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_RANK = re.compile(r"[0-9]{1,12}")
_NO_INDEX = "-"  # in GROUP_PART_ANNOTATION


class SliceLayer(NamedTuple):
    """Slices of `size` pods, each in one domain of a level. `annotation` has the size, `level.annotation` the level."""

    annotation: str
    size: int
    level: Level


class GroupAround(NamedTuple):
    """A sub-group around smaller ones, see GroupTrees in pod_groups.py."""

    name: str  # the names of the groups on the way to it, with '/' between them
    level: Level | None  # of which all its pods must have one domain


@dataclass(frozen=True, slots=True)
class AskedSubGroups:
    """The sub-groups of its group to which a pod belongs; slices are such, too."""

    name: str = ""  # of the innermost one; '' for a group without sub-groups
    required: Level | None = None  # of which all pods of the sub-group must have one domain
    minimum: int = 0  # pods of the sub-group without which the group must not run; 0 if the pod does not set it
    slices: tuple[SliceLayer, ...] = ()  # the largest first
    first: int = 0  # the index at which slice 0 begins
    around: tuple[GroupAround, ...] = ()  # the sub-groups that this one is in, the outermost first
    minimums: tuple[tuple[str, int], ...] = ()  # the number of pods that each PodGroup of a tree needs, by its path

    @property
    def constrain(self) -> bool:
        """Whether what the pod asks restricts a plan: a mere name does not."""
        return bool(self.required or self.minimum or self.slices or self.around)


NO_SUBGROUPS = AskedSubGroups()  # of most pods


def asked_subgroups(notes: Mapping[str, Any], labels: Mapping[str, Any], group: str) -> AskedSubGroups:
    """The sub-groups of a pod of this group.

    The annotations of others count only without one of Berth's about topology or sub-groups.

    Raises ValueError that names annotation and value.
    """
    named = (labels.get(REPLICATED_JOB), labels.get(_LWS_SUBGROUP))
    default = next((one for one in named if type(one) is str), "")
    if any(name in notes for name in (*OWN_TOPOLOGY, *OWN_SUBGROUPS)):
        found = _own_subgroups(notes, default)
        if found.name == group and SUBGROUP in notes:
            raise ValueError(f"pod annotation {SUBGROUP}: {shown(group)} is the name of the group itself")
        return found
    subgroup = _name(notes, _KUEUE_GROUP) or default
    required = level_of(notes, KUEUE_TOPOLOGY.required) if subgroup else None  # without sub-groups it is the group's
    if required is None and _LWS_SUBGROUP in labels:
        required = level_of(notes, _LWS_LEVEL)
    return AskedSubGroups(subgroup, required, slices=_kueue_slices(notes))


def notes_of_group(notes: Mapping[str, Any], labels: Mapping[str, Any]) -> Mapping[str, Any]:
    """The annotations of a pod that say how near its whole group should be.

    Those of other schedulers do not count beside one of Berth's about sub-groups. Kueue's are about a pod set: the pods
    of one replicated job of a JobSet, or of one `podset-group-name`.
    """
    if any(name in notes for name in OWN_SUBGROUPS):
        return {name: notes[name] for name in OWN_TOPOLOGY if name in notes}
    is_of_set = _KUEUE_GROUP in notes or (REPLICATED_JOB in labels and any(name in notes for name in KUEUE_TOPOLOGY))
    return {} if is_of_set and not any(name in notes for name in OWN_TOPOLOGY) else notes


def _own_subgroups(notes: Mapping[str, Any], default: str) -> AskedSubGroups:
    subgroup = _name(notes, SUBGROUP) or default
    for annotation in (SUBGROUP_REQUIRED, SUBGROUP_MIN):
        if annotation in notes and not subgroup:
            raise ValueError(f"pod annotation {annotation}: the pod names no sub-group, as {SUBGROUP} does")
    (minimum,) = _numbers(notes, SUBGROUP_MIN, 1) or (0,)
    sizes, levels = _numbers(notes, SLICE_SIZE, _MAX_LAYERS), notes.get(SLICE_LEVEL)
    _need_both(notes, SLICE_SIZE, SLICE_LEVEL)
    names = levels.split(",") if type(levels) is str else []
    if len(names) != len(sizes):
        raise ValueError(
            f"pod annotation {SLICE_LEVEL}: {shown(levels)} has {len(names)} levels, but {SLICE_SIZE} has {len(sizes)} "
            "sizes"
        )
    asked = [level_of({SLICE_LEVEL: name.strip()}, SLICE_LEVEL) for name in names]
    layers = [
        SliceLayer(SLICE_SIZE, size, level) for size, level in zip(sizes, asked, strict=True) if level is not None
    ]
    return AskedSubGroups(subgroup, level_of(notes, SUBGROUP_REQUIRED), minimum, _nested(layers))


def _kueue_slices(notes: Mapping[str, Any]) -> tuple[SliceLayer, ...]:
    _need_both(notes, _KUEUE_SIZE, _KUEUE_LEVEL)
    text, sizes = notes.get(_KUEUE_LAYERS), _numbers(notes, _KUEUE_SIZE, 1)
    if text is None:
        level = level_of(notes, _KUEUE_LEVEL)
        return tuple(SliceLayer(_KUEUE_SIZE, size, level) for size in sizes if level is not None)
    if sizes:
        raise ValueError(f"pod annotation {_KUEUE_LAYERS}: cannot be combined with {_KUEUE_SIZE}")
    wrong = ValueError(
        f"pod annotation {_KUEUE_LAYERS}: {shown(text)} is no JSON list of 1 to {_MAX_LAYERS} objects with topology, "
        "a node label, and size, a number of pods"
    )
    try:
        layers = orjson.loads(text)
    except (ValueError, TypeError):
        raise wrong from None
    if type(layers) is not list or not 1 <= len(layers) <= _MAX_LAYERS:
        raise wrong
    found = []
    for layer in layers:
        size = layer.get("size") if type(layer) is dict else None
        level = level_of({_KUEUE_LAYERS: layer.get("topology")}, _KUEUE_LAYERS) if type(size) is int else None
        if level is None or type(size) is not int or not 1 <= size <= _MAX_PODS:
            raise wrong
        found.append(SliceLayer(_KUEUE_LAYERS, size, level))
    return _nested(found)


def _nested(layers: list[SliceLayer]) -> tuple[SliceLayer, ...]:
    """The layers, each of which must divide the one before it. Raises ValueError."""
    for outer, inner in pairwise(layers):
        if outer.size % inner.size:
            raise ValueError(
                f"pod annotation {inner.annotation}: slices of {inner.size} pods do not divide those of {outer.size}: "
                "write the largest first"
            )
    return tuple(layers)


def _need_both(notes: Mapping[str, Any], one: str, other: str) -> None:
    for has, lacks in ((one, other), (other, one)):
        if has in notes and lacks not in notes:
            raise ValueError(f"pod annotation {has}: has no effect without {lacks}")


def _numbers(notes: Mapping[str, Any], annotation: str, most: int) -> list[int]:
    text = notes.get(annotation)
    if text is None:
        return []
    words = [word.strip() for word in text.split(",")] if type(text) is str else []
    if not 1 <= len(words) <= most or not all(_NUMBER.fullmatch(word) and int(word) <= _MAX_PODS for word in words):
        numbers = "a number of pods" if most == 1 else f"1 to {most} numbers of pods with commas between them"
        raise ValueError(f"pod annotation {annotation}: {shown(text)} is not {numbers}, from 1 to {_MAX_PODS}")
    return [int(word) for word in words]


def _name(notes: Mapping[str, Any], annotation: str) -> str:
    text = notes.get(annotation)
    if text is None:
        return ""
    if type(text) is not str or not _NAME.fullmatch(text):
        allowed = "use letters, digits, '.', '_' and '-', with a letter or digit at both ends"
        raise ValueError(f"pod annotation {annotation}: {shown(text)} is no name of a sub-group: {allowed}")
    return text


# -- on claims: which sub-group a bound pod is in, because the cache does not keep bound pods ----------------------

GROUP_PART_ANNOTATION = "berth.dev/group-part"  # the SubGroupIndex of that pod, if the group has sub-groups


CPU_ANNOTATION = "berth.dev/cpu"  # what that pod requests, such as 4000m; on one of the pod's claims


class PodMark(NamedTuple):
    """What Berth writes to a claim about the pod for which it allocates: '' for no group, and for no sub-group."""

    group: str = ""  # as GroupKey.on_claims
    group_part: str = ""  # as SubGroupIndex
    cpu: int = 0  # in thousandths of a core; 0 on all but one of the pod's claims


class SubGroupIndex(NamedTuple):
    """The sub-group of a pod, whether it is in a slice, and its index there; None if it is in no slice or has none."""

    name: str
    rank: int | None
    in_slice: bool

    def is_in(self, subgroup: str) -> bool:
        """Whether the pod is in this sub-group, or in one of its inner ones."""
        return self.name == subgroup or self.name.startswith(f"{subgroup}/")

    def __str__(self) -> str:
        """As the annotation GROUP_PART_ANNOTATION of the pod's claims."""
        index = _NO_INDEX if self.rank is None else self.rank
        return f"{self.name}/{index if self.in_slice else ''}"


def subgroup_index_of(text: str) -> SubGroupIndex | None:
    """The value of GROUP_PART_ANNOTATION; None if it is not valid, because tenants can write it."""
    subgroup, slash, rank = text.rpartition("/")
    if not slash or (rank not in ("", _NO_INDEX) and not _RANK.fullmatch(rank)):
        return None
    return SubGroupIndex(subgroup, int(rank) if _RANK.fullmatch(rank) else None, bool(rank))
