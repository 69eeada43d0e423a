"""The ComputeDomains that have devices in each NVLink clique.

The driver runs the daemons of a ComputeDomain on the nodes of its pods. Two domains in one clique can break each other:
their daemons set the access to the memory of one fabric, and then programs fail now and then (the vendor's file names
the report). A domain is in a clique while a claim or a reservation has a device of that
driver on one of the clique's nodes, or while one of the nodes has the domain's label. An event costs as much as the
nodes that it names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

from extender.api.nodes import Node
from extender.api.resource_claims import Result
from extender.cache.slice_index import set_or_drop
from extender.vendors import CLIQUE_LABEL, COMPUTE_DOMAIN_DRIVER, COMPUTE_DOMAIN_LABEL


class Channels:
    """ComputeDomains by clique. A holder is a claim, a reservation, or a node with the label of a domain."""

    def __init__(self) -> None:
        self.by_clique: dict[str, Counter[str]] = {}  # clique to the UIDs of its domains, with their holders
        self._clique_of: dict[str, str] = {}  # by node
        self._on_node: dict[str, Counter[str]] = {}  # node to the UIDs of its domains, with their holders
        self._held: dict[Hashable, tuple[str, tuple[str, ...]]] = {}  # holder to the UID of its domain, and nodes

    def put_results(self, holder: Hashable, domain: str, results: Iterable[Result]) -> None:
        """Replace the devices of a holder. The driver names its pools after their nodes."""
        nodes = {r.device.pool for r in results if r.device.driver == COMPUTE_DOMAIN_DRIVER}
        if nodes or holder in self._held:
            self._put(holder, domain, nodes)

    def put_node(self, name: str, new: Node | None) -> None:
        """Replace a node; None deletes it."""
        labels = new.labels if new is not None else {}
        clique, before = labels.get(CLIQUE_LABEL, ""), self._clique_of.get(name, "")
        if clique != before:
            for domain, holders in self._on_node.get(name, {}).items():
                _add(self.by_clique, before, domain, -holders)
                _add(self.by_clique, clique, domain, holders)
            set_or_drop(self._clique_of, name, clique or None)
        self._put(("node", name), labels.get(COMPUTE_DOMAIN_LABEL, ""), (name,))

    def _put(self, holder: Hashable, domain: str, nodes: Iterable[str]) -> None:
        before = self._held.pop(holder, None)
        if before is not None:
            self._count(*before, -1)
        if domain and nodes:
            self._held[holder] = domain, tuple(nodes)
            self._count(*self._held[holder], 1)

    def _count(self, domain: str, nodes: tuple[str, ...], amount: int) -> None:
        for name in nodes:
            _add(self._on_node, name, domain, amount)
            _add(self.by_clique, self._clique_of.get(name, ""), domain, amount)


def _add(table: dict[str, Counter[str]], key: str, domain: str, amount: int) -> None:
    """Add to a count. Nodes without a clique have the key '', and count nowhere."""
    if not key:
        return
    counts = table.setdefault(key, Counter())
    counts[domain] += amount
    if not counts[domain]:
        del counts[domain]
    if not counts:
        del table[key]
