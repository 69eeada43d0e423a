"""The NodeInfos of the cluster, and the states that their nodes are in."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cachetools import LRUCache

from extender.allocation import NodeInfo
from extender.allocation.nodes import AllocatedState, Inventory, NodeState, PoolGroup, SharedUse
from extender.api.resource_slices import PoolKey
from extender.cache.node_info_builder import NodeInfoBuilder


class NodeInfos(Mapping[str, NodeInfo]):
    """NodeInfos by node name.

    A change of the use of shared pools moves whole states: nothing is computed for a node before a reader asks for it.
    """

    def __init__(self, vacant_states: int) -> None:
        """`vacant_states`: how many states without nodes are kept."""
        self.states: dict[int, NodeState] = {}  # see Snapshot.states
        # States with the same own part as another state, which has a newer use of the shared pools.
        self._others: dict[int, list[NodeState]] = {}  # by number of the own part
        self._vacated: LRUCache[int, NodeState] = LRUCache(vacant_states)  # states without nodes
        self._built: dict[str, NodeInfo] = {}  # some with an outdated use of shared pools: see __getitem__
        self._state_of: dict[str, NodeState] = {}
        self._followers: dict[PoolKey, set[str]] = {}  # see `nodes_to_build`

    def __getitem__(self, name: str) -> NodeInfo:
        found, state = self._built[name], self._state_of[name]
        if found.state is not state:
            found = self._built[name] = _in_state(found, state)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._built)

    def __len__(self) -> int:
        return len(self._built)

    def __contains__(self, name: object) -> bool:
        return name in self._built

    def put(self, name: str, new: NodeInfo | None) -> None:
        """Put the NodeInfo of a node; None deletes it."""
        old = self._built.pop(name, None) if new is None else self._built.get(name)
        if new is not None:
            self._built[name] = new
        self._move(name, new.state if new is not None else None)
        before, after = (one.inventory if one is not None else None for one in (old, new))
        if before is not after:
            for key in _to_follow(before):
                self._followers[key].discard(name)
                if not self._followers[key]:
                    del self._followers[key]
            for key in _to_follow(after):
                self._followers.setdefault(key, set()).add(name)

    def nodes_to_build(self, pools: set[PoolKey]) -> set[str]:
        """The nodes to build again after the use of these pools changed, because `use_shared` does not move them.

        A pool that is not shared in the sense of `use_shared` has shared counters, a GPU, or devices that name a node.
        """
        return {name for key in pools & self._followers.keys() for name in self._followers[key]}

    def use_shared(self, pools: set[PoolKey], builder: NodeInfoBuilder) -> tuple[list[str], list[str]]:
        """Move all nodes to the states that have the current use of these shared pools.

        Returns the names of the nodes in moved states, and of those of them that may have gained room.
        """
        uses = dict[PoolGroup, SharedUse]()
        moved, gained = list[str](), list[str]()
        for number, state in list(self.states.items()):
            before = state.shared
            if before is None or number != state.number or before.group.keys.isdisjoint(pools):
                continue
            now = uses.get(before.group)
            if now is None:
                now = uses[before.group] = builder.shared_use(before.group)
            if now is not before:
                names = self._move_all(state, builder.with_shared_use(state, now))
                moved += names
                gained += names if now.gained(before) else ()
        return moved, gained

    def _move_all(self, before: NodeState, after: NodeState) -> list[str]:
        """Move all nodes of a state; returns their names."""
        names, before.names = before.names, []
        self._vacate(before)
        after.names = sorted([*after.names, *names])
        self._occupy(after)
        self._state_of.update(dict.fromkeys(names, after))
        return names

    def _move(self, name: str, after: NodeState | None) -> None:
        """Move a node from its state to another one; None: to no state."""
        before = self._state_of.pop(name, None)
        if after is not None:
            self._state_of[name] = after
        if before is after:
            return
        if before is not None:
            del before.names[bisect_left(before.names, name)]
            if not before.names:
                self._vacate(before)
        if after is not None:
            insort(after.names, name)
            if len(after.names) == 1:
                self._occupy(after)

    def _vacate(self, state: NodeState) -> None:
        self._vacated[state.number] = self.states.pop(state.number)
        if state.shared is None:
            return
        own, others = state.own.number, self._others.get(state.own.number, [])
        if self.states[own] is not state:
            others.remove(state)
        elif others:
            self.states[own] = others.pop()
        else:
            del self.states[own]
        if not others:
            self._others.pop(own, None)

    def _occupy(self, state: NodeState) -> None:
        self._vacated.pop(state.number, None)
        if state.number in self.states:
            return
        self.states[state.number] = state
        if state.shared is not None:
            before = self.states.get(state.own.number)
            if before is not None:
                self._others.setdefault(state.own.number, []).append(before)
            self.states[state.own.number] = state


def _in_state(old: NodeInfo, state: NodeState) -> NodeInfo:
    """The NodeInfo with the use of shared pools from its new state."""
    use, busy, held = state.shared, old.busy, old.held
    assert use is not None, "only states with shared pools move as a whole"
    for position, (first, part) in enumerate(old.inventory.shared_parts):
        others = ~(((1 << len(part.devices)) - 1) << first)
        busy = busy & others | use.busy[position] << first
        held = held & others | use.held[position] << first
    allocated_state = AllocatedState({**old.allocated_state.pools, **use.pools}, old.allocated_state.counters)
    return replace(old, allocated_state=allocated_state, state=state, busy=busy, held=held)


def _to_follow(inventory: Inventory | None) -> list[PoolKey]:
    """The pools of the node that have slices for several nodes, and that `use_shared` does not cover."""
    if inventory is None:
        return []
    shared = {part.key for _, part in inventory.shared_parts}
    return [pool.key for pool in inventory.pools if pool.names_no_node and pool.key not in shared]
