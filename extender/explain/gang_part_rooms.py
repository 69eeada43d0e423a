"""Where each slice and sub-group of a gang would go, or the most room that there is for it alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from extender.allocation import Snapshot
from extender.api.group_topology import ONE_NODE
from extender.base.text_limits import counted
from extender.gangs.gang_problem import GangMember, GangPlan, GangProblem, GangShortage
from extender.scheduling import path_labels
from extender.scheduling.gang_parts import GangPart

MAX_EXPLAINED = 64  # parts in one explanation, the largest first
MAX_PLANNED = 16  # different ones of these; a plan takes some 30 ms


@dataclass(frozen=True, slots=True)
class ExplainedPart:
    """A slice or a sub-group: `pods` must be in one domain of `level`.

    `domain` is where it is planned. Without a plan it is the one with the most room for this part alone, for `room`
    pods.
    """

    part: str
    pods: int
    level: str
    domain: str
    room: int


def planned_parts(problem: GangProblem, plan: GangPlan, snapshot: Snapshot) -> tuple[ExplainedPart, ...]:
    """The parts of a plan."""
    found = []
    for part, members in _parts(problem):
        node = plan.placements[members[0].uid][0]
        found.append(_explained(part, members, _domain(part, node, problem, snapshot), len(members)))
    return tuple(found)


def part_rooms(
    problem: GangProblem, snapshot: Snapshot, plan: Callable[[GangProblem], GangPlan | GangShortage]
) -> tuple[ExplainedPart, ...]:
    """The parts of a gang without a plan. Those that differ from MAX_PLANNED others are left out.

    Raises DeadlineExceeded.
    """
    known: dict[Hashable, tuple[str, int]] = {}
    found = []
    for part, members in _parts(problem):
        key = part.level, tuple(sorted(part.placed.items())), tuple(map(_needs, members)), _shape(part)
        if key not in known and len(known) < MAX_PLANNED:
            known[key] = _alone(part, members, problem, snapshot, plan)
        if key in known:
            found.append(_explained(part, members, *known[key]))
    return tuple(found)


def lacking_parts(parts: Iterable[ExplainedPart], when: str) -> Iterator[str]:
    """The smallest part that has no room even alone, as a sentence; nothing if each has room. `when` is a word.

    A larger one can lack room because of the parts in it.
    """
    lacking = min((one for one in parts if one.room < one.pods), key=lambda one: (one.pods, -one.room), default=None)
    if lacking is not None:
        needs = f"{lacking.part} needs {counted(lacking.pods, 'pod')} in one {_word(lacking.level)}"
        most = f"the most room is in {lacking.domain}, for {lacking.room}" if lacking.room else "none has room"
        yield f"{needs}: {when} {most}"


def _word(level: str) -> str:
    return "node" if level == ONE_NODE else f"domain of {level}"


def _parts(problem: GangProblem) -> Iterator[tuple[GangPart, list[GangMember]]]:
    """The parts that have members to place, with these, in the order of the tree."""
    members = {member.uid: member for member in problem.members}
    for number, part in enumerate(_flat(problem.parts)):
        own = [members[uid] for uid in part.members if uid in members]
        if own and number < MAX_EXPLAINED:
            yield part, own


def _flat(parts: Iterable[GangPart]) -> Iterator[GangPart]:
    for part in parts:
        yield part
        yield from _flat(part.parts)


def _shape(part: GangPart) -> Hashable:
    """What decides the plan of a part besides its members."""
    return tuple((one.level, len(one.members), tuple(sorted(one.placed.items())), _shape(one)) for one in part.parts)


def _needs(member: GangMember) -> Hashable:
    return member.requirements.key, member.nodes, member.excluded, member.limits


def _explained(part: GangPart, members: list[GangMember], domain: str, room: int) -> ExplainedPart:
    return ExplainedPart(part.name, len(members), part.level, domain, room)


def _domain(part: GangPart, node: str, problem: GangProblem, snapshot: Snapshot) -> str:
    if part.level == ONE_NODE:
        return node
    return snapshot.domains(path_labels(part.level, problem.levels)).name_of.get(node, "")


def _alone(
    part: GangPart,
    members: list[GangMember],
    problem: GangProblem,
    snapshot: Snapshot,
    plan: Callable[[GangProblem], GangPlan | GangShortage],
) -> tuple[str, int]:
    """(the domain for this part alone, or the one with the most room, the members that fit there)."""
    is_node = part.level == ONE_NODE
    alone = replace(
        problem,
        members=tuple(members),
        topology=ONE_NODE if is_node else "preferred",
        topology_label="" if is_node else part.level,
        placed=part.placed,
        parts=part.parts,
    )
    found = plan(alone)
    if isinstance(found, GangPlan):
        return _domain(part, found.placements[members[0].uid][0], problem, snapshot), len(members)
    return found.domain, found.room
