"""How near to each other the pods of a group must be, and should be: what they ask for, and what that means.

A level is a label of `group_levels` in the policy, or one node. What other schedulers' users write is read as it is:
Kueue's annotations of pods (kueue.x-k8s.io, apis/kueue/v1beta1), and KAI's (kai.scheduler), which name node labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from extender.api.pod_annotations import group_topology_of
from extender.base.text_limits import shown

TOPOLOGY = "berth.dev/group-topology"
REQUIRED = "berth.dev/group-required"
PREFERRED = "berth.dev/group-preferred"
OWN_TOPOLOGY = (TOPOLOGY, REQUIRED, PREFERRED)
# By the field of a job, see extender/replay/jobs.py.
NEARNESS = dict(zip(("group_topology", "group_required", "group_preferred"), OWN_TOPOLOGY, strict=True))
SLICE_LEVEL = "berth.dev/group-slice-level"
SUBGROUP_REQUIRED = "berth.dev/subgroup-required"
_OWN_LEVELS = (REQUIRED, PREFERRED, SLICE_LEVEL, SUBGROUP_REQUIRED)  # others name any node label
ONE_NODE = "node"  # the nearest level
_HOSTNAME = "kubernetes.io/hostname"
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,315}[A-Za-z0-9])?")


class _Foreign(NamedTuple):
    """The annotations of another scheduler: two with a level, and one that asks for no topology if it is true."""

    required: str
    preferred: str
    unconstrained: str


KUEUE_TOPOLOGY = _Foreign(
    "kueue.x-k8s.io/podset-required-topology",
    "kueue.x-k8s.io/podset-preferred-topology",
    "kueue.x-k8s.io/podset-unconstrained-topology",
)
_FOREIGN = (
    KUEUE_TOPOLOGY,
    _Foreign("kai.scheduler/topology-required-placement", "kai.scheduler/topology-preferred-placement", ""),
)
FOREIGN_TOPOLOGY = tuple(name for one in _FOREIGN for name in one if name)


class Level(NamedTuple):
    """A level as an annotation names it."""

    annotation: str
    name: str


@dataclass(frozen=True, slots=True)
class AskedTopology:
    """What the annotations of a pod ask for its group."""

    nearness: str = ""  # required, preferred or none; '' if not set
    required: Level | None = None
    preferred: Level | None = None


NO_TOPOLOGY = AskedTopology()  # of most pods


def asked_topology(notes: Mapping[str, Any]) -> AskedTopology:
    """What the annotations of a pod ask. Those of other schedulers count only without one of Berth's.

    Raises ValueError that names annotation and value.
    """
    if any(name in notes for name in OWN_TOPOLOGY):
        nearness = group_topology_of(notes, TOPOLOGY) or "" if notes.get(TOPOLOGY) else ""
        return AskedTopology(nearness, level_of(notes, REQUIRED), level_of(notes, PREFERRED))
    for one in _FOREIGN:
        if any(name in notes for name in one):
            nearness = "none" if notes.get(one.unconstrained) == "true" else ""
            return AskedTopology(nearness, level_of(notes, one.required), level_of(notes, one.preferred))
    return NO_TOPOLOGY


def fields_of_job(asked: AskedTopology, object_label: str) -> tuple[dict[str, str], bool]:
    """The fields of a job that ask the same for a group without a PodGroup, and whether they keep all of it.

    `object_label` is the constraint of the PodGroup. Beside another level only a policy says which of both is nearer.
    """
    required, preferred = _own_name(asked.required), _own_name(asked.preferred)
    is_kept = bool(required or not asked.required) and bool(preferred or not asked.preferred)
    if object_label and required not in (object_label, ONE_NODE, _HOSTNAME):
        is_free = not required and asked.nearness != "required"
        required, is_kept = object_label if is_free else required, is_kept and is_free
    found = zip(NEARNESS, (asked.nearness, required, preferred), strict=True)
    return {name: text for name, text in found if text}, is_kept


def _own_name(level: Level | None) -> str:
    """The level for a job; '' for a label of another scheduler that would be read as the short name of a level."""
    if level is None:
        return ""
    is_same = level.annotation in _OWN_LEVELS or "/" in level.name or level.name == ONE_NODE
    return level.name if is_same else ""


def level_of(notes: Mapping[str, Any], annotation: str) -> Level | None:
    """The level that an annotation names; None without it. Raises ValueError."""
    text = notes.get(annotation)
    if text is None:
        return None
    if type(text) is not str or not _LABEL.fullmatch(text):
        raise ValueError(f"pod annotation {annotation}: {shown(text)} is neither a node label nor the name of a level")
    return Level(annotation, text)


# -- what that means with the levels of a policy -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupTopology:
    """How near to each other the members of a gang must be, and should be.

    `nearness` is 'node' (one node), 'required' (one node, or one domain of the nearest level), 'preferred' (as near as
    possible) or 'none' (any nodes).
    """

    nearness: str = "preferred"
    label: str = ""  # all members on one value of this label; '' for no such constraint
    preferred: str = ""  # the level of which a gang should use the fewest domains: ONE_NODE or a label; '' for each
    problem: str = ""  # which annotation is wrong, with its value; '' if none

    def required_label(self, levels: Sequence[str]) -> str:
        """The label of which all members must have one value; '' if there is none. The policy has `levels`.

        With 'required', that is the nearest level. Then a plan keeps `label`, too.
        """
        return (next(iter(levels), "") if self.nearness == "required" else "") or self.label


def group_topology(asked: AskedTopology, object_label: str, levels: Sequence[str]) -> GroupTopology:
    """What a gang must have. `object_label` is the constraint of its PodGroup ('': none), the policy has `levels`."""
    try:
        required, preferred = level_label(asked.required, levels), level_label(asked.preferred, levels)
        if required == ONE_NODE:
            return GroupTopology(ONE_NODE, object_label)
        label = _nearer(asked.required, required, object_label, levels)
    except ValueError as error:
        return GroupTopology(label=object_label, problem=str(error))
    is_by_name = preferred or (required and asked.nearness == "required")
    return GroupTopology("preferred" if is_by_name else asked.nearness or "preferred", label, preferred)


def level_label(level: Level | None, levels: Sequence[str]) -> str:
    """The label of a level, ONE_NODE, or '' for None. Raises ValueError."""
    if level is None:
        return ""
    if level.name in (ONE_NODE, _HOSTNAME):
        return ONE_NODE
    if level.name in levels or level.annotation not in _OWN_LEVELS:
        return level.name
    found = [label for label in levels if level.name in (label.rpartition("/")[2], re.split("[/.]", label)[-1])]
    if len(found) == 1:
        return found[0]
    why = (
        f"names several levels: {', '.join(found)}"
        if found
        else f"is no level: write {' or '.join([ONE_NODE, *levels])}"
    )
    raise ValueError(f"pod annotation {level.annotation}: {shown(level.name)} {why}")


def _nearer(asked: Level | None, required: str, object_label: str, levels: Sequence[str]) -> str:
    """The label that implies both constraints: the nearer level. Raises ValueError if that is not known."""
    if object_label == _HOSTNAME or asked is None or not object_label or required == object_label:
        return object_label or required
    if required in levels and object_label in levels:
        return min(required, object_label, key=levels.index)
    unknown = object_label if required in levels else required
    raise ValueError(
        f"pod annotation {asked.annotation}: {shown(asked.name)} cannot be combined with the PodGroup's constraint to "
        f"{object_label}: {unknown} is no label of group_levels"
    )
