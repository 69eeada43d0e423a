"""Limits the search on a node whose devices change again and again: a driver can make each search use up its steps."""

from __future__ import annotations

from dataclasses import dataclass

from cachetools import LRUCache

from extender.allocation import Inventory, NodeInfo

_FEW = 500  # steps, some 1.5 ms: a node whose searches take fewer is not remembered
_REFILL_SECONDS = 10.0  # until an allowance that is used up is full again
_NODES = 64  # remembered


@dataclass(frozen=True, slots=True)
class _Node:
    inventory: Inventory  # that the steps are spent on
    left: float
    at: float  # seconds of the clock of calls


class SearchAllowances:
    """The steps that one PodRequirements may spend on each changed inventory of a node; use of devices costs none."""

    def __init__(self) -> None:
        self._nodes: LRUCache[str, _Node] = LRUCache(_NODES)

    def most(self, node_info: NodeInfo, most: int, now: float) -> int:
        """The steps of a search on the node. `most` is the number for a node whose devices stay the same."""
        known = self._nodes.get(node_info.node.name)
        if known is None or known.inventory is node_info.inventory:
            return most
        return int(self._left(known, most, now))

    def spend(self, node_info: NodeInfo, steps: int, most: int, now: float) -> None:
        """A search on the node took so many steps."""
        known = self._nodes.get(node_info.node.name)
        if known is not None and known.inventory is node_info.inventory:
            return
        left = (self._left(known, most, now) if known is not None else most) - steps
        if known is not None or steps > _FEW:
            self._nodes[node_info.node.name] = _Node(node_info.inventory, max(0.0, left), now)

    def _left(self, known: _Node, most: int, now: float) -> float:
        return min(most, known.left + (now - known.at) * most / _REFILL_SECONDS)
