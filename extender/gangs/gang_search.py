"""A complete search for a gang in one domain, for the gangs that do not fit with the preferred devices of each member.

The search tries every node and every set of devices of every member, so it finds a plan if one exists. It ends after
MAX_STEPS. Each evaluation is a step, even if the memory has its result, so that equal input gives equal plans.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate

from extender.allocation import NodeInfo, Snapshot
from extender.gangs.gang_problem import Placed
from extender.gangs.node_rooms import Ban, GangTrial, NodeRooms
from extender.scheduling import Placement, PodRequirements

MAX_STEPS = 2_000  # of one plan; an evaluation takes about 50 us


class GaveUp(Exception):
    """The steps are used up, so a plan may or may not exist."""


class Steps:
    """The steps that are left for one plan."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def spend(self, steps: int = 1) -> None:
        """Raises GaveUp if too few steps are left."""
        self.left -= steps
        if self.left < 0:
            raise GaveUp


def local_nodes(names: Sequence[str], snapshot: Snapshot) -> set[str]:
    """The nodes that share no pool with another of these nodes."""
    pools = Counter(pool.key for name in names for pool in snapshot.node_infos[name].inventory.pools)
    return {name for name in names if all(pools[pool.key] == 1 for pool in snapshot.node_infos[name].inventory.pools)}


class GangSearch:
    """One search. The members of a unit are placed one after the other on one node."""

    def __init__(
        self, wanted: Sequence[tuple[NodeRooms, int, Sequence[str]]], snapshot: Snapshot, steps: Steps
    ) -> None:
        """`wanted` are the rooms of equal units, their number, and the nodes for them in the order to try these."""
        self._rooms = [rooms for rooms, _, _ in wanted]
        self._wanted = [number for _, number, _ in wanted]
        self._names = [[name for name in names if name in rooms.most] for rooms, _, names in wanted]
        # The most units that fit on a node and all later nodes, by index in `wanted`.
        self._ahead = [
            list(accumulate(min(rooms.most[name], number) for name in reversed(own)))[::-1]
            for (rooms, number, _), own in zip(wanted, self._names, strict=True)
        ]
        self._positions = [
            (index, unit, step)
            for index, (rooms, number, _) in enumerate(wanted)
            for unit in range(number)
            for step in range(rooms.members_per_unit)
        ]
        self._node_infos = snapshot.node_infos
        self._trial = GangTrial(in_turn=False)
        self._steps = steps
        self._chosen: list[tuple[int, Placement]] = []  # index in the names of the rooms, and devices, by position
        self._failed: set[Hashable] = set()
        every = list(dict.fromkeys(name for _, _, names in wanted for name in names))
        self._classes = self._equivalence_classes(every, local_nodes(every, snapshot))

    def run(self) -> list[Placed] | None:
        """All units with their nodes and devices; None if no plan exists. Raises GaveUp and DeadlineExceeded."""
        stack = [self._choices(0)]  # not recursion: a gang can have more members than Python's stack has frames
        while stack:
            if next(stack[-1], None) is None:
                stack.pop()
            elif len(stack) < len(self._positions):
                stack.append(self._choices(len(stack)))
            elif all(rooms.limits_hold(self._trial) for rooms in self._rooms):
                return self._result()
        return None

    def _choices(self, position: int) -> Iterator[bool]:
        """Take the choices for a position, one in each iteration. The next iteration first undoes the last choice."""
        index, unit, step = self._positions[position]
        rooms, names = self._rooms[index], self._names[index]
        if step:
            nodes = [self._chosen[-1][0]]
        else:
            # These units are equal, so each goes to the node of the previous unit, or to a later node.
            first = self._chosen[-rooms.members_per_unit][0] if unit else 0
            nodes = self._distinct(index, first, self._wanted[index] - unit)
        key = (position, tuple(nodes[:1]), self._trial.key)
        if key in self._failed:
            return
        for node in nodes:
            node_info = self._node_infos[names[node]]
            for placement in self._placements(rooms, step, node_info):
                rooms.add(self._trial, node_info, step, placement)
                self._chosen.append((node, placement))
                yield True
                self._chosen.pop()
                self._trial.undo()
        self._failed.add(key)

    def _distinct(self, index: int, first: int, left: int) -> list[int]:
        """The nodes to try for a unit. Of equal nodes that the trial does not use, only the first."""
        names, ahead, seen, found = self._names[index], self._ahead[index], set[int](), list[int]()
        for node in range(first, len(names)):
            if ahead[node] < left:
                break
            if self._rooms[index].left(self._trial, names[node]) < 1:
                continue
            is_fresh = self._trial.is_fresh(self._node_infos[names[node]])
            class_ = self._classes.get(names[node]) if is_fresh else None
            if class_ is None:
                found.append(node)
            elif class_ not in seen:
                found.append(node)
                seen.add(class_)
        return found

    def _placements(self, rooms: NodeRooms, step: int, node_info: NodeInfo) -> Iterator[Placement]:
        """Every choice of devices for a member on a node, the preferred one first.

        Each other choice lacks some device or alternative of an earlier one. So the search evaluates the node again
        with each of these forbidden.
        """
        requirements = rooms.requirements(node_info, step)
        queue, seen, effects = deque([frozenset[Ban]()]), {frozenset[Ban]()}, set[Hashable]()
        while queue:
            bans = queue.popleft()
            self._steps.spend()
            placement = rooms.evaluate(self._trial, node_info, step, bans)
            if placement is None:
                continue
            effect = _effect(placement)
            if effect not in effects:
                effects.add(effect)
                yield placement
            for more in _bans(placement, requirements):
                narrower = bans | {more}
                if narrower not in seen:
                    seen.add(narrower)
                    queue.append(narrower)

    def _equivalence_classes(self, names: Sequence[str], local: set[str]) -> dict[str, int]:
        """The number of each node's equivalence class: its nodes have equal room while the trial does not use them.

        A node that shares a pool with another node has no number. Equal nodes are open to the same units.
        """
        numbers: dict[Hashable, int] = {}
        open_to = [set(own) for own in self._names]
        return {
            name: numbers.setdefault(
                tuple(
                    name in own and rooms.equivalence_key(name) for rooms, own in zip(self._rooms, open_to, strict=True)
                ),
                len(numbers),
            )
            for name in names
            if name in local
        }

    def _result(self) -> list[Placed]:
        found: list[Placed] = [[] for _ in self._rooms]
        units: dict[tuple[int, int], list[Placement]] = {}
        nodes: dict[tuple[int, int], str] = {}
        for (index, unit, _), (node, placement) in zip(self._positions, self._chosen, strict=True):
            units.setdefault((index, unit), []).append(placement)
            nodes[index, unit] = self._names[index][node]
        for (index, unit), placements in units.items():
            found[index].append((nodes[index, unit], tuple(placements)))
        return found


def _effect(placement: Placement) -> Hashable:
    """The devices that a placement takes. Equal effects leave equal nodes."""
    return tuple(
        sorted(
            (pick.bit, tuple(sorted((name, amount.nanos) for name, amount in (pick.consumed or {}).items())))
            for claim in placement.solution.picks
            for pick in claim
            if not pick.request.admin_access
        )
    )


def _bans(placement: Placement, requirements: PodRequirements) -> Iterator[Ban]:
    """The devices and the alternatives of the placement, each as a ban that leads to another placement."""
    rows = zip(
        requirements.claim_names,
        requirements.specs,
        placement.solution.picks,
        placement.solution.alternatives,
        strict=True,
    )
    for claim, spec, picks, chosen in rows:
        for pick in picks:
            if pick.request.mode == "ExactCount" and not pick.request.admin_access:
                yield claim, pick.request.name, pick.bit
        for request, option in zip(spec.requests, chosen, strict=True):
            if request.prioritized:
                yield claim, request.alternatives[option].name, -1
