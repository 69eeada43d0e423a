"""Grants shared by demands that come to the same on a node: under other names, by other selectors, the same devices."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from extender.allocation.plain import Plain
from extender.allocation.problem import Pick, Solution
from extender.allocation.view import Fleet, NodeView
from extender.model.claim import DeviceRequest
from extender.scoring.parts import Part
from extender.verdict.demand import Demand

_LIMIT = 8_192  # of about 2.5 KB; a half-full fleet of mixed kinds has a thousand states


@dataclass(frozen=True, slots=True)
class Grant:
    """The node can serve the demand with these devices."""

    solution: Solution
    parts: tuple[Part, ...]
    score: float
    ring_gbps: float
    origin: Grant | None = field(default=None, compare=False, repr=False)  # the same for the request of another demand

    def to(self, request: DeviceRequest) -> Grant:
        """The same devices for the only request of another demand."""
        picks = tuple(Pick(pick.bit, request, None) for pick in self.solution.picks[0])
        return Grant(Solution((picks,), self.solution.alternatives), self.parts, self.score, self.ring_gbps, self)


class Grants:
    """A bounded memory; the one that was made first goes first. It holds for one fleet at a time, as scores are relative to it."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._known: OrderedDict[tuple[object, ...], Grant] = OrderedDict()
        self._fleet: Fleet | None = None

    def __len__(self) -> int:
        return len(self._known)

    def get(self, asked: tuple[object, ...], fleet: Fleet) -> Grant | None:
        """What was granted where the same was asked."""
        return self._known.get(asked) if fleet is self._fleet else None

    def put(self, asked: tuple[object, ...], fleet: Fleet, grant: Grant) -> None:
        """Remember a grant."""
        if fleet is not self._fleet:
            self._known.clear()
            self._fleet = fleet
        self._known[asked] = grant
        if len(self._known) > self._limit:
            self._known.popitem(last=False)


def asked_of(view: NodeView, demand: Demand, simple: Plain) -> tuple[object, ...] | None:
    """What a plain demand comes to on a node: equal ones get equal grants. None for a node that is imagined."""
    if view.state.imagined:
        return None
    wanted = demand.topology, demand.min_gbps, demand.expected_bytes, demand.policy
    return view.state.signature, simple.free, simple.request.count, *wanted
