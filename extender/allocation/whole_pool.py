"""All slices of a pool in the cluster. Thousands of nodes may have slices of one pool: its facts are found once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extender.model import Slice


class Facts(NamedTuple):
    """What a node must know about the slices of one generation of a pool that other nodes see."""

    broken: Slice | None = None  # a slice with a field that Berth cannot read
    unknown_counter: str = ""  # see unknown_counter
    grouped: frozenset[str] = frozenset()  # see grouped


class WholePool:
    """All slices of a pool, of any generation. A change of one of them makes a new object."""

    __slots__ = ("_facts", "_generations", "names_no_node", "newest")

    def __init__(self, slices: Iterable[Slice] = ()) -> None:
        generations: dict[int, list[Slice]] = {}
        for slice_ in slices:
            generations.setdefault(slice_.generation, []).append(slice_)
        self._generations = {number: tuple(found) for number, found in generations.items()}
        self._facts: dict[int, Facts] = {}
        self.newest = max(generations, default=0)
        self.names_no_node = not all(s.selection.node_name for found in generations.values() for s in found)

    def slices(self, generation: int) -> tuple[Slice, ...]:
        """The slices of a generation. The same object for all callers."""
        return self._generations.get(generation, ())

    def facts(self, generation: int) -> Facts:
        """The facts about the slices of a generation."""
        found = self._facts.get(generation)
        if found is None:
            slices = self.slices(generation)
            counters = {one.name: one.counters for slice_ in slices for one in slice_.counter_sets}
            broken = next((slice_ for slice_ in slices if slice_.problem), None)
            found = Facts(broken, unknown_counter(counters, slices), grouped(slices))
            self._facts[generation] = found
        return found


def unknown_counter(counters: Mapping[str, Mapping[str, int]], slices: Iterable[Slice]) -> str:
    """The first counter that a device consumes and that is not among `counters`, as a sentence; '' without one."""
    for slice_ in slices:
        for device in slice_.devices:
            for use in device.consumes:
                known = counters.get(use.counter_set)
                if known is None:
                    return f"device {device.name}: counter set {use.counter_set} not found"
                missing = next((name for name, _ in use.counters if name not in known), None)
                if missing is not None:
                    return f"device {device.name}: counter {missing} not found in counter set {use.counter_set}"
    return ""


def grouped(slices: Iterable[Slice]) -> frozenset[str]:
    """The counter sets that some device uses with compatibility groups."""
    uses = (use for slice_ in slices for device in slice_.devices for use in device.consumes)
    return frozenset(use.counter_set for use in uses if use.compatibility_groups)
