"""Nodes that share a status, as a filter reply and an explanation count them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Container, Sequence
from typing import NamedTuple

from extender.scheduling.evaluate import FilterStatus

_FIRST = 3  # node names per status


class NodesOfStatus(NamedTuple):
    """Nodes that share a status."""

    status: FilterStatus
    nodes: int  # number of nodes
    first: list[str]  # names of the first nodes, sorted, at most 3


def nodes_of_status(
    status: FilterStatus, names: Sequence[str], among: Container[str] | None, without: Collection[str]
) -> NodesOfStatus:
    """The nodes of a status among `names` (sorted): `among` limits the nodes, and `without` excludes a few."""
    counted = names if among is None else [name for name in names if name in among]
    if not without:
        return NodesOfStatus(status, len(counted), list(counted[:_FIRST]))
    excluded = [name for name in without if counted[bisect_left(counted, name) :][:1] == [name]]
    first = [name for name in counted[: _FIRST + len(excluded)] if name not in excluded]
    return NodesOfStatus(status, len(counted) - len(excluded), first[:_FIRST])
