"""Where each slice and sub-group of a gang would go, or the most room that there is for it alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from extender.allocation import Snapshot
from extender.api.group_topology import ONE_NODE
from extender.base.text_limits import counted
from extender.gangs.gang_problem import GangMember, GangPlan, GangProblem
from extender.scheduling import path_labels
from extender.scheduling.subgroup_tree import SubGroup

MAX_EXPLAINED = 64  # sub-groups in one explanation, the largest first
MAX_PLANNED = 16  # different ones of these; a plan takes some 30 ms


@dataclass(frozen=True, slots=True)
class ExplainedSubGroup:
    """A slice or a sub-group: `pods` must be in one domain of `level`.

    `domain` is where it is planned. Without a plan it is the one with the most room for it alone, for `room`
    pods.
    """

    part: str
    pods: int
    level: str
    domain: str
    room: int


def planned_subgroups(problem: GangProblem, plan: GangPlan, snapshot: Snapshot) -> tuple[ExplainedSubGroup, ...]:
    """The sub-groups of a plan."""
    found = []
    for subgroup, members in _subgroups(problem):
        node = plan.placements[members[0].uid][0]
        found.append(_explained(subgroup, members, _domain(subgroup, node, problem, snapshot), len(members)))
    return tuple(found)


def rooms_of_subgroups(
    problem: GangProblem, snapshot: Snapshot, plan: Callable[[GangProblem], GangPlan | None]
) -> tuple[ExplainedSubGroup, ...]:
    """The sub-groups of a gang without a plan. Those that differ from MAX_PLANNED others are left out.

    `plan` plans all members, or the most that fit. Raises DeadlineExceeded.
    """
    known: dict[Hashable, tuple[str, int]] = {}
    found = []
    for subgroup, members in _subgroups(problem):
        key = subgroup.level, tuple(sorted(subgroup.placed.items())), tuple(map(_needs, members)), _shape(subgroup)
        if key not in known and len(known) < MAX_PLANNED:
            known[key] = _alone(subgroup, members, problem, snapshot, plan)
        if key in known:
            found.append(_explained(subgroup, members, *known[key]))
    return tuple(found)


def lacking_subgroups(subgroups: Iterable[ExplainedSubGroup], when: str) -> Iterator[str]:
    """The smallest sub-group that has no room even alone, as a sentence; nothing if each has room. `when` is a word.

    A larger one can lack room because of the sub-groups in it.
    """
    lacking = min(
        (one for one in subgroups if one.room < one.pods), key=lambda one: (one.pods, -one.room), default=None
    )
    if lacking is not None:
        needs = f"{lacking.part} needs {counted(lacking.pods, 'pod')} in one {_word(lacking.level)}"
        most = f"the most room is in {lacking.domain}, for {lacking.room}" if lacking.room else "none has room"
        yield f"{needs}: {when} {most}"


def _word(level: str) -> str:
    return "node" if level == ONE_NODE else f"domain of {level}"


def _subgroups(problem: GangProblem) -> Iterator[tuple[SubGroup, list[GangMember]]]:
    """The sub-groups that have members to place, with these, in the order of the tree."""
    members = {member.uid: member for member in problem.members}
    for number, subgroup in enumerate(_flat(problem.subgroups)):
        own = [members[uid] for uid in subgroup.members if uid in members]
        if own and number < MAX_EXPLAINED:
            yield subgroup, own


def _flat(subgroups: Iterable[SubGroup]) -> Iterator[SubGroup]:
    for subgroup in subgroups:
        yield subgroup
        yield from _flat(subgroup.inner)


def _shape(subgroup: SubGroup) -> Hashable:
    """What decides the plan of a sub-group besides its members."""
    return tuple(
        (one.level, len(one.members), tuple(sorted(one.placed.items())), _shape(one)) for one in subgroup.inner
    )


def _needs(member: GangMember) -> Hashable:
    return member.requirements.key, member.nodes, member.excluded, member.limits


def _explained(subgroup: SubGroup, members: list[GangMember], domain: str, room: int) -> ExplainedSubGroup:
    return ExplainedSubGroup(subgroup.name, len(members), subgroup.level, domain, room)


def _domain(subgroup: SubGroup, node: str, problem: GangProblem, snapshot: Snapshot) -> str:
    if subgroup.level == ONE_NODE:
        return node
    return snapshot.domains(path_labels(subgroup.level, problem.levels)).name_of.get(node, "")


def _alone(
    subgroup: SubGroup,
    members: list[GangMember],
    problem: GangProblem,
    snapshot: Snapshot,
    plan: Callable[[GangProblem], GangPlan | None],
) -> tuple[str, int]:
    """(the domain for this sub-group alone, or the one with the most room, the members that fit there)."""
    is_node = subgroup.level == ONE_NODE
    alone = replace(
        problem,
        members=tuple(members),
        topology=ONE_NODE if is_node else "preferred",
        topology_label="" if is_node else subgroup.level,
        placed=subgroup.placed,
        subgroups=subgroup.inner,
    )
    found = plan(alone)
    if found is None:
        return "", 0
    return _domain(subgroup, next(iter(found.nodes)), problem, snapshot), len(found.placements)
