"""Checks of the groups that pods name: with the code by which `berth serve` recognises them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from extender.api.asked_subgroups import (
    FOREIGN_SUBGROUPS,
    OWN_SUBGROUPS,
    SLICE_SIZE,
    SUBGROUP,
    SUBGROUP_MIN,
    AskedSubGroups,
)
from extender.api.fields import Json, inner
from extender.api.group_topology import (
    FOREIGN_TOPOLOGY,
    ONE_NODE,
    OWN_TOPOLOGY,
    SLICE_LEVEL,
    SUBGROUP_REQUIRED,
    AskedTopology,
    Level,
    group_topology,
    level_label,
)
from extender.api.pod_groups import (
    MINIMUM,
    NEEDED_OBJECTS,
    OWN_ANNOTATIONS,
    GroupKey,
    GroupPolicy,
    GroupSource,
    GroupTrees,
    Membership,
    group_policy_of,
    minimum_of,
)
from extender.api.pods import Pod, decode_pod
from extender.api_schema import LintFinding
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted
from extender.gangs.gang import disagreement
from extender.gangs.gang_problem import MAX_TOGETHER
from extender.manifests import pod_templates
from extender.policy import Policy

_LEVELS = Policy().group_levels
_KNOWN_LEVELS = "levels are the labels of group_levels in the policy; this check knows only those of the default policy"
# A fault of the first annotation is no fault of the others.
_MEANINGLESS_WITHOUT = {
    SLICE_SIZE: (SLICE_LEVEL,),
    SLICE_LEVEL: (SLICE_SIZE,),
    SUBGROUP: (SUBGROUP_REQUIRED, SUBGROUP_MIN),
}
# The controller makes all pods of such a group from one object, so the files have all of them.
_OF_ONE_OBJECT = (GroupSource.JOB, GroupSource.JOB_SET, GroupSource.LEADER_WORKER_SET)


class _Member(NamedTuple):
    """The pods of one template that name a group. The object is at `location`; `pods` is as in PodTemplate."""

    location: str
    field: str
    pod: Pod
    membership: Membership
    pods: int | None
    notes: frozenset[str]  # names of all annotations, also of other schedulers


def gang_findings(objects: list[tuple[str, Json]], _: Iterable[Json] = ()) -> Iterator[LintFinding]:
    """Yield what is wrong with the groups of these (location, object) pairs."""
    found: list[LintFinding] = []
    groups, policies = _groups(objects, found)
    yield from found
    for key, members in groups.items():
        yield from _of_group(key, members, policies.get(members[0].membership.policy_key))


def _groups(
    objects: list[tuple[str, Json]], found: list[LintFinding]
) -> tuple[dict[GroupKey, list[_Member]], dict[GroupKey, GroupPolicy]]:
    """The members of each group without an invalid member, and what the groups' objects say.

    Adds what is invalid to `found`.
    """
    policies: dict[GroupKey, GroupPolicy] = {}
    groups: dict[GroupKey, list[_Member]] = {}
    for location, obj in objects:
        try:
            own = group_policy_of(obj)
        except WireError as error:
            found.append(LintFinding("error", f"{location}, {error.path}", error.problem))
            continue
        policies |= own
        found += (finding for key, policy in own.items() for finding in _of_object(location, key, policy))
    trees = GroupTrees(policies)
    for location, obj in objects:
        members: list[_Member] = []
        with suppress(WireError):  # other checks name the wrong fields of pods
            members += _members(location, obj, trees)
        for member in members:
            if member.membership.problem:
                problem = member.membership.problem.removeprefix("pod annotation ")
                found.append(LintFinding("error", f"{member.location}, {member.field}", problem))
            groups.setdefault(member.membership.key, []).append(member)
    sound = {key: ms for key, ms in groups.items() if not any(member.membership.problem for member in ms)}
    return sound, policies


def _namespace(obj: Json) -> str:
    return str((obj.get("metadata") or {}).get("namespace") or "default")


def _of_object(location: str, key: GroupKey, policy: GroupPolicy) -> Iterator[LintFinding]:
    if key.source is GroupSource.COMPOSITE and not policy.groups and policy.topology_label:
        problem = f"the constraint to {policy.topology_label} has no effect on Berth: with the policy basic"
        advice = "write schedulingPolicy.gang, or the constraint in the child groups"
        where = f"{location}, spec.schedulingConstraints"
        yield LintFinding("warning", where, f"{problem} each child group is a gang of its own", advice)


def _members(location: str, obj: Json, trees: GroupTrees) -> Iterator[_Member]:
    metadata = obj.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName") or "pod"
    for template in pod_templates(obj):
        own_name = f"{name}-{template.role}" if template.role else name
        made = {**(template.pod.get("metadata") or {}), "namespace": _namespace(obj), "name": own_name}
        # Other checks name the values that are no strings.
        notes = {key: str(value) for key, value in inner(made, "annotations", "metadata").items()}
        made["annotations"] = notes
        field = f"{template.path}.metadata.annotations".lstrip(".")
        while True:  # each iteration but the last drops an annotation with a problem, to find the next one
            pod = decode_pod({**template.pod, "metadata": made})
            if pod.membership is None:
                break
            membership = trees.membership(pod.membership)
            pod = replace(pod, membership=membership)
            yield _Member(location, field, pod, membership, template.pods, frozenset(notes))
            faulty = membership.problem.removeprefix("pod annotation ").partition(":")[0]
            if faulty not in OWN_ANNOTATIONS or not membership.key.name:
                break
            for annotation in (faulty, *_MEANINGLESS_WITHOUT.get(faulty, ())):
                notes.pop(annotation, None)


def _of_group(key: GroupKey, members: list[_Member], policy: GroupPolicy | None) -> Iterator[LintFinding]:
    where = members[0].location
    minimum = max(minimum_of(one.membership, policy) for one in members)
    named = any(one.membership.minimum for one in members)
    if key.source in NEEDED_OBJECTS and policy is None and not named:
        kind, api = NEEDED_OBJECTS[key.source].kind, NEEDED_OBJECTS[key.source].api
        problem = f"{kind} {key} is not in these files, so its minimum is unknown"
        advice = f"create it: without it the pods wait, or are placed alone if the cluster has no {kind}s of {api}"
        yield LintFinding("note", where, problem, advice)
    elif lacks := members[0].membership.lacks:
        advice = "create it, or lower minGroupCount: the pods of the whole group wait for it"
        yield LintFinding("note", where, f"{lacks} is not in these files", advice)
    sequential = policy is not None and policy.sequential
    if sequential and any(one.pod.annotations.keys() & OWN_ANNOTATIONS for one in members):
        why = "with startupPolicy LeaderReady or exclusive-topology its workers come after the leader has a node"
        advice = "write startupPolicy: LeaderCreated, and berth.dev/group-required in place of exclusive-topology"
        yield LintFinding("warning", where, f"group {key} is no gang: {why}", advice)
    if key.source is GroupSource.LEADER_WORKER_SET and policy is None and named:
        problem = f"LeaderWorkerSet {members[0].membership.policy_key} is not in these files, so group {key} is no gang"
        yield LintFinding("note", where, problem, "create it before the pods: else each pod is placed alone")
    elif named and not minimum and not sequential:
        yield LintFinding("warning", where, f"group {key} has a minimum of 1: it is no gang", "write 2 or more")
    if not minimum:
        return
    if problem := disagreement(key, [one.pod for one in members]):
        yield LintFinding("error", where, problem, "give all pods of the group the same annotations")
    schedulers = sorted({one.pod.scheduler or "default-scheduler" for one in members})
    if len(schedulers) > 1:
        problem = f"the pods of group {key} name different schedulers: {', '.join(schedulers)}"
        yield LintFinding("error", where, problem, "Berth counts only the pods of its own scheduler: name one")
    yield from _of_topology(members[0], policy)
    yield from _overridden(members)
    yield from _of_parts(key, members, minimum, policy)
    yield from _of_size(key, members, minimum)


def _of_topology(member: _Member, policy: GroupPolicy | None) -> Iterator[LintFinding]:
    """What is wrong with the levels of a group, as far as the levels of the cluster's policy are the default ones."""
    required, problem = _required_level(member, policy)
    where, order = f"{member.location}, {member.field}", (ONE_NODE, *_LEVELS)
    if problem:
        yield LintFinding("warning", where, problem.removeprefix("pod annotation "), _KNOWN_LEVELS)
    preferred = member.membership.topology.preferred
    if preferred is not None and required in order:
        ranked = group_topology(AskedTopology(preferred=preferred), "", _LEVELS).preferred
        if ranked in order and order.index(ranked) >= order.index(required):
            problem = f"{preferred.annotation}: {ranked} has no effect: the group must be in one domain of {required}"
            yield LintFinding("warning", where, problem, "prefer a nearer level, or delete the annotation")


def _overridden(members: list[_Member]) -> Iterator[LintFinding]:
    """The first annotation of another scheduler that one of Berth's replaces."""
    for one in members:
        own = next((name for name in (*OWN_TOPOLOGY, *OWN_SUBGROUPS) if name in one.notes), None)
        foreign = next((name for name in (*FOREIGN_TOPOLOGY, *FOREIGN_SUBGROUPS) if name in one.notes), None)
        if own is not None and foreign is not None:
            problem = f"{foreign} has no effect on Berth: {own} takes precedence"
            yield LintFinding("note", f"{one.location}, {one.field}", problem, "delete one of them")
            return


def _of_parts(key: GroupKey, members: list[_Member], minimum: int, policy: GroupPolicy | None) -> Iterator[LintFinding]:
    """What is wrong with the slices and the sub-groups of a group."""
    subgroups: dict[str, list[_Member]] = {}
    for one in members:
        subgroups.setdefault(one.membership.subgroups.name, []).append(one)
    for subgroup, own in subgroups.items():
        member = max(own, key=lambda one: bool(one.membership.subgroups.slices))
        yield from _of_levels(member, policy)
        whom = f"sub-group {subgroup} of group {key}" if subgroup else f"group {key}"
        yield from _of_counts(own, whom, minimum if len(subgroups) == 1 else 0)
    together = sum(own[0].membership.subgroups.minimum for own in subgroups.values())
    if together > minimum:
        problem = f"the minimums of the sub-groups of group {key} are {together} pods together, its own is {minimum}"
        yield LintFinding("error", members[0].location, problem, f"set {MINIMUM} to {together}")


def _of_levels(member: _Member, policy: GroupPolicy | None) -> Iterator[LintFinding]:
    """What is wrong with the levels of the sub-groups that a pod is in, with the levels of the default policy."""
    asked, where, order = member.membership.subgroups, f"{member.location}, {member.field}", (ONE_NODE, *_LEVELS)
    around, _ = _required_level(member, policy)
    for level in filter(None, _levels_of(asked)):
        try:
            label = level_label(level, _LEVELS)
        except ValueError as error:
            yield LintFinding("warning", where, str(error).removeprefix("pod annotation "), _KNOWN_LEVELS)
            continue
        if around in order and label in order and order.index(label) >= order.index(around):
            problem = f"{level.annotation}: {label} has no effect: the pods must be in one domain of {around}"
            yield LintFinding("warning", where, problem, "name a nearer level, or delete the annotation")
        around = label


def _levels_of(asked: AskedSubGroups) -> Iterator[Level | None]:
    """The levels of the sub-groups that a pod is in, the outermost first."""
    yield from (one.level for one in asked.around)
    yield asked.required
    yield from (layer.level for layer in asked.slices)


def _required_level(member: _Member, policy: GroupPolicy | None) -> tuple[str, str]:
    """The level of which a whole group must have one domain, or '', and what is wrong with it."""
    found = group_topology(member.membership.topology, policy.topology_label if policy is not None else "", _LEVELS)
    return ONE_NODE if found.nearness == ONE_NODE else found.label, found.problem


def _of_counts(members: list[_Member], whom: str, minimum: int) -> Iterator[LintFinding]:
    """What is wrong with the numbers of pods in a sub-group. `minimum` is the group's if these are all its pods."""
    where, asked = f"{members[0].location}, {members[0].field}", members[0].membership.subgroups
    are_all = members[0].membership.key.source in _OF_ONE_OBJECT and all(one.pods is not None for one in members)
    count, sliced = sum(one.pods or 0 for one in members), [one for one in members if one.membership.subgroups.slices]
    if are_all and asked.minimum > count:
        problem = f"{SUBGROUP_MIN}: {whom} needs {counted(asked.minimum, 'pod')}, and these files create {count}"
        yield LintFinding("error", where, problem, f"lower it to {count}, or create more pods")
    if sliced:
        layer = sliced[0].membership.subgroups.slices[0]
        cut = sum(one.pods or 0 for one in sliced) if are_all else minimum if len(sliced) == len(members) else 0
        if cut % layer.size:
            problem = f"{layer.annotation}: {layer.size} does not divide the {cut} pods of {whom}"
            yield LintFinding("error", where, problem, "write a size that does, or change the number of pods")


def _of_size(key: GroupKey, members: list[_Member], minimum: int) -> Iterator[LintFinding]:
    where = members[0].location
    if minimum > MAX_TOGETHER:
        problem = f"group {key} has a minimum of {minimum}; Berth binds at most {MAX_TOGETHER} pods together"
        yield LintFinding("error", where, problem, f"set a minimum of at most {MAX_TOGETHER}")
    count = sum(one.pods or 0 for one in members)
    if count >= minimum or any(one.pods is None for one in members):
        return
    problem = f"group {key} needs {counted(minimum, 'pod')}, and these files create {count}"
    advice = f"lower the minimum to {count}" if count > 1 else "lower the minimum"
    if key.source in _OF_ONE_OBJECT:
        yield LintFinding("error", where, f"{problem}: none of them will be placed", f"{advice}, or create more pods")
    else:
        yield LintFinding("warning", where, problem, f"{advice}, or create more pods, if no other file has them")
