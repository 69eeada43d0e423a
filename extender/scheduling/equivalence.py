"""Equivalence classes: nodes that get the same status for a pod's requirements. A ranking evaluates one node of each.

Most requirements read no identity of a device, such as its UUID. Then the NodeStates of the snapshot, which list their
nodes, are the equivalence classes (ByState), and nothing is stored per node. Other requirements have classes of their
own (ByKey): the key of a node has what their selectors and constraints read from its devices. A class has a number that
is never used again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from weakref import WeakKeyDictionary

from extender.allocation import UNREADABLE, NodeInfo, Snapshot, attribute_values
from extender.allocation.nodes import NodeState, PoolGroup
from extender.api.resource_slices import is_identity
from extender.base.berth_errors import InvalidClaim
from extender.base.deadline import DeadlineExceeded
from extender.cel import CompileError
from extender.cel.dra import compile_selector, compile_value
from extender.scheduling.evaluate import EvaluationContext
from extender.scheduling.requirements.pod_requirements import PodRequirements

# Estimated bytes, measured with tracemalloc over half-full fleets.
_GROUP_BYTES, _NODE_BYTES, _CLASS_BYTES = 112, 80, 320

_Pattern = tuple[object, ...]


def ignores_identity(requirements: PodRequirements, context: EvaluationContext) -> bool:
    """Whether the requirements read no identity of a device, such as its UUID. Raises DeadlineExceeded."""
    return IdentityCheck(requirements).ignores_identity(context)


class IdentityCheck:
    """Checks whether requirements read no identity of a device. After DeadlineExceeded, the next call continues."""

    def __init__(self, requirements: PodRequirements) -> None:
        constraints = [constraint.attribute for spec in requirements.specs for constraint in spec.constraints]
        self._ignored = not any(map(is_identity, constraints))
        # What compiles each expression, and the expression.
        self._left = [(compile_selector, text) for class_ in requirements.classes.values() for text in class_.selectors]
        for spec in requirements.specs:
            for option in (option for request in spec.requests for option in request.alternatives):
                self._left += [(compile_selector, text) for text in option.selectors]
                self._left += [(compile_value, text) for _, text in option.derived]

    def ignores_identity(self, context: EvaluationContext) -> bool:
        """True if no selector and no constraint reads an identity. Raises DeadlineExceeded."""
        while self._ignored and self._left:
            selector = context.masks.compiled(*self._left[-1], context.deadline)
            reads = () if isinstance(selector, CompileError) else selector.reads
            self._ignored = not (any(map(_is_every_attribute, reads)) or any(map(is_identity, reads)))
            self._left.pop()
        return self._ignored


def _is_every_attribute(path: str) -> bool:
    """Whether a selector reads the whole attribute map, and so all that identifies a device."""
    return path.startswith("attributes:") and path.endswith("*")


class ByState:
    """Each NodeState of the snapshot is an equivalence class, with the number of the state.

    States that differ only in the use of shared pools count as one if the requirements match no shared device. So a
    claim on a shared device changes no number of requirements that cannot have such a device. A group of shared pools
    looks the same from all its nodes, because the requirements read no identity.
    """

    def __init__(self, requirements: PodRequirements) -> None:
        self.nodes: Mapping[int, NodeState] = {}  # the states with nodes, by number
        self._requirements = requirements
        # Whether the requirements match a device in a group. No limit may drop an entry, or nodes would lose their
        # status. An entry ends with its group.
        self._reads: WeakKeyDictionary[PoolGroup, bool] = WeakKeyDictionary()
        self._unread: dict[int, None] = {}  # the states of changed nodes, by number
        self._version = -1

    @property
    def estimated_bytes(self) -> int:
        return len(self._reads) * _GROUP_BYTES

    def number_of(self, node_info: NodeInfo) -> int:
        """The number of the node's class. Before the node's group is read, no status has this number."""
        return self._number(node_info.state)

    def _number(self, state: NodeState) -> int:
        read = state.shared is None or self._reads.get(state.shared.group, True)
        return state.number if read else state.own.number

    def find(self, node_info: NodeInfo, context: EvaluationContext) -> int:
        """The number of the node's class. Raises DeadlineExceeded."""
        shared = node_info.state.shared
        if shared is not None and shared.group not in self._reads:
            self._reads[shared.group] = self._reads_shared(node_info, context)
        return self._number(node_info.state)

    def update(
        self, snapshot: Snapshot, context: EvaluationContext, known: Container[int]
    ) -> Iterator[tuple[int, NodeInfo]]:
        """Yield the number of each state of changed nodes, with one of its nodes, unless it is `known`.

        Raises DeadlineExceeded; the next call continues with the rest.
        """
        self.nodes = snapshot.states
        changed = snapshot.states_since(self._version)
        numbers = [
            -1 if state.shared is not None and state.shared.group not in self._reads else self._number(state)
            for state in changed
        ]
        self._unread |= {state.number: None for state, one in zip(changed, numbers, strict=True) if one not in known}
        self._version = snapshot.version
        while self._unread:
            number, _ = self._unread.popitem()
            if number not in snapshot.states:  # no node is in it now
                continue
            state = snapshot.states[number]
            node_info = snapshot.node_infos[state.names[0]]
            try:
                found = self.find(node_info, context) if state.shared is not None else number
            except DeadlineExceeded:
                self._unread[number] = None
                raise
            if found not in known:
                yield found, node_info

    def forget(self, number: int) -> None:
        """A ranking drops the status of a state: nothing of the state is kept here."""

    def _reads_shared(self, node_info: NodeInfo, context: EvaluationContext) -> bool:
        """Whether the requirements may match a device of the node's shared pools, on any node."""
        shared = 0
        for first, pool in node_info.inventory.shared_pools:
            shared |= ((1 << len(pool.devices)) - 1) << first
        # Another node of the group may reach devices that this node does not reach.
        everywhere = replace(node_info, inventory=replace(node_info.inventory, reachable=-1))
        problem = replace(context, selections=None).problem(everywhere, self._requirements)
        try:
            for name, spec in zip(problem.names, problem.specs, strict=True):
                for option in (option for request in spec.requests for option in request.alternatives):
                    found = problem.select(name, option)
                    if (found.match | found.unsupported | found.error) & shared:
                        return True
        except InvalidClaim:
            return True
        return False


@dataclass(slots=True, eq=False)
class _Class:
    key: Hashable
    number: int
    names: list[str] = field(default_factory=list)  # its nodes, sorted


class ByKey:
    """Assigns every node to an equivalence class by a key. A class without nodes stays until the ranking forgets it."""

    def __init__(self, requirements: PodRequirements) -> None:
        self.nodes: dict[int, _Class] = {}  # the classes with nodes, by number
        self._requirements = requirements
        self._checks: dict[object, IdentityCheck] = {}  # by requirements key
        self._patterns = Patterns()
        self._by_key: dict[Hashable, _Class] = {}
        self._vacant: dict[int, _Class] = {}
        self._class_of: dict[str, _Class] = {}
        # Changed nodes that are not assigned yet. The last one is next: its key may be half made.
        self._unassigned: dict[str, None] = {}
        self._version = -1
        self._last_number = 0

    @property
    def estimated_bytes(self) -> int:
        return len(self._class_of) * _NODE_BYTES + len(self._by_key) * _CLASS_BYTES

    def number_of(self, node_info: NodeInfo) -> int | None:
        """The number of the node's class since the last `update`; None for a node that is not assigned."""
        found = self._class_of.get(node_info.node.name)
        return found.number if found is not None else None

    def find(self, node_info: NodeInfo, context: EvaluationContext) -> int:
        """The number for this NodeInfo; the node need not be assigned yet. Raises DeadlineExceeded."""
        return self._find(node_info, context).number

    def update(
        self, snapshot: Snapshot, context: EvaluationContext, known: Container[int]
    ) -> Iterator[tuple[int, NodeInfo]]:
        """Assign the changed nodes. Yield the number of each class that a node entered, unless it is `known`.

        A call that ends early still leaves statuses that filter can use. Raises DeadlineExceeded; the next call
        continues with the rest.
        """
        changed = snapshot.changed_since(self._version) if self._version >= 0 else None
        every = changed if changed is not None else chain(snapshot.node_infos, self._class_of)
        self._unassigned = dict.fromkeys(every) | self._unassigned
        self._version = snapshot.version
        while self._unassigned:
            name, _ = self._unassigned.popitem()
            node_info = snapshot.node_infos.get(name)
            try:
                found = self._find(node_info, context) if node_info is not None else None
            except DeadlineExceeded:
                self._unassigned[name] = None
                raise
            self._leave(name)
            if node_info is not None and found is not None:
                self._enter(name, found)
                context.deadline.progressed = True
                if found.number not in known:
                    yield found.number, node_info

    def forget(self, number: int) -> None:
        """Drop an equivalence class, unless a node is in it."""
        gone = self._vacant.pop(number, None)
        if gone is not None:
            del self._by_key[gone.key]

    def _find(self, node_info: NodeInfo, context: EvaluationContext) -> _Class:
        key = self._key(node_info, context)
        found = self._by_key.get(key)
        if found is None:
            self._last_number += 1
            found = self._by_key[key] = self._vacant[self._last_number] = _Class(key, self._last_number)
        return found

    def _leave(self, name: str) -> None:
        old = self._class_of.pop(name, None)
        if old is not None:
            del old.names[bisect_left(old.names, name)]
            if not old.names:
                self._vacant[old.number] = self.nodes.pop(old.number)

    def _enter(self, name: str, new: _Class) -> None:
        self._class_of[name] = new
        insort(new.names, name)
        if len(new.names) == 1:
            self.nodes[new.number] = new
            self._vacant.pop(new.number, None)

    def _key(self, node_info: NodeInfo, context: EvaluationContext) -> Hashable:
        requirements = self._requirements.for_node(node_info.node)
        if node_info.state.attribute_signature is not None:
            check = self._checks.get(requirements.key)
            if check is None:
                check = self._checks[requirements.key] = IdentityCheck(requirements)
            if check.ignores_identity(context):
                return requirements.key, node_info.state.number
        read = equivalence_key(node_info, requirements, context, self._patterns)
        key = requirements.key, node_info.state.allocation_signature, *read
        self._patterns.clear()
        return key


class Patterns:
    """The patterns of the node whose equivalence key is being made, see `_pattern`. Two thousand constraints may name
    as many attributes; after DeadlineExceeded, the next call continues."""

    def __init__(self) -> None:
        self._node_info: NodeInfo | None = None
        self._by_attribute: dict[str, _Pattern] = {}
        self._equal: dict[_Pattern, _Pattern] = {}  # attributes that no device has share one pattern

    def of(self, node_info: NodeInfo, attribute: str, context: EvaluationContext) -> _Pattern:
        """The pattern of an attribute, made once. Raises DeadlineExceeded."""
        if node_info is not self._node_info:
            self.clear()
            self._node_info = node_info
        found = self._by_attribute.get(attribute)
        if found is None:
            context.deadline.check()
            made = _pattern(node_info, attribute, context)
            found = self._by_attribute[attribute] = self._equal.setdefault(made, made)
            context.deadline.progressed = True
        return found

    def clear(self) -> None:
        self._node_info = None
        self._by_attribute.clear()
        self._equal.clear()


def equivalence_key(
    node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext, patterns: Patterns
) -> Iterator[object]:
    """The values that the selectors and constraints of the requirements read from a node. Raises DeadlineExceeded."""
    problem = context.problem(node_info, requirements)
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            for alternative in request.alternatives:
                try:
                    selection = problem.select(name, alternative)
                except InvalidClaim as error:
                    yield str(error)
                    return
                yield selection.match
                yield selection.unsupported
                yield selection.error
                if alternative.derived:
                    yield node_info.node.name
        for constraint in spec.constraints:
            yield patterns.of(node_info, constraint.attribute, context)


def _pattern(node_info: NodeInfo, attribute: str, context: EvaluationContext) -> _Pattern:
    """The numbers of the attribute's values, per device: a value gets its number where it occurs first.

    A constraint only compares values on one node. So two nodes are equal if they group their devices in the same way.
    """
    numbers: dict[object, int] = {}
    lists, found = context.features.list_attributes, []
    for one in node_info.inventory.devices:
        known = attribute_values(one.device, attribute, one.driver, lists=lists)
        # Values of one type have an order; a set does not.
        values = [] if known is None else [(known[0], value) for value in sorted(known[1])]  # type: ignore[type-var]
        marks = tuple([numbers.setdefault(value, len(numbers)) for value in values])
        found.append(marks[0] if len(marks) == 1 else (known is None, known == UNREADABLE, marks))
    return tuple(found)
