"""The statuses of one ranking, by number of the equivalence class."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterator
from itertools import chain

from extender.api.claim_specs import DeviceRequest
from extender.scheduling.evaluate import FilterStatus, Placement, Unschedulable

# Estimated bytes, measured with tracemalloc over half-full fleets.
_STATUS_BYTES, _UNSCHEDULABLE_BYTES, _PLACEMENT_BYTES, _PICK_BYTES = 64, 640, 480, 112


class StatusStore:
    """Placements and unschedulable statuses. `order` has the numbers with a placement, by descending score.

    Thousands of numbers share one Unschedulable. With `share_placements`, a number keeps the placement that it shares
    with other rankings, which may name the request of another pod. `get` and `placement` return it with the request of
    this ranking.
    """

    def __init__(self, *, share_placements: bool) -> None:
        self.placements: dict[int, Placement] = {}
        self.unschedulable: dict[int, Unschedulable] = {}
        self.order: list[int] = []
        self._share_placements = share_placements
        self._by_text: dict[str, Unschedulable] = {}
        self._request: DeviceRequest | None = None  # the single request of this ranking, once a placement is shared
        self._own_placements = 0  # placements that are not shared
        self._own_picks = 0  # devices in these placements

    def __len__(self) -> int:
        return len(self.placements) + len(self.unschedulable)

    def __contains__(self, number: object) -> bool:
        return number in self.placements or number in self.unschedulable

    def items(self) -> Iterator[tuple[int, FilterStatus]]:
        """Each number with its status, which may name the request of another pod."""
        return chain[tuple[int, FilterStatus]](self.placements.items(), self.unschedulable.items())

    def get(self, number: int) -> FilterStatus | None:
        """The status of a number; None if it has none."""
        placement = self.placements.get(number)
        return self._own(placement) if placement is not None else self.unschedulable.get(number)

    def placement(self, number: int) -> Placement:
        """The placement of a number. It is kept with this ranking's request, because callers read the best ones often.

        Raises KeyError.
        """
        placement = self.placements[number]
        own = self._own(placement)
        if own is not placement:
            self.placements[number] = own
            self._count(own, 1)
        return own

    def put(self, number: int, status: FilterStatus) -> FilterStatus:
        """Store the status of a number in place of an older one. Returns the status with this ranking's request."""
        if number in self.placements or number in self.unschedulable:
            self.forget(number)
        if isinstance(status, Unschedulable):
            status = self.unschedulable[number] = self._by_text.setdefault(status.text, status)
            return status
        stored = status
        if status.shared_from is not None and self._share_placements:
            self._request, stored = status.solution.picks[0][0].request, status.shared_from
        else:
            self._count(status, 1)
        self.placements[number] = stored
        insort(self.order, number, key=self._by_score)
        return status

    def forget(self, number: int) -> None:
        """Drop the status of a number, if it has one."""
        self.unschedulable.pop(number, None)
        placement = self.placements.get(number)
        if placement is not None:
            position = bisect_left(self.order, -placement.score, key=self._by_score)
            del self.order[self.order.index(number, position)]
            del self.placements[number]
            if self._own(placement) is placement:
                self._count(placement, -1)

    def forget_vacant(self, occupied: Container[int], kept: int) -> list[int]:
        """Drop the statuses of numbers that are not `occupied`, except the newest `kept` of each kind.

        Returns the dropped numbers.
        """
        dropped: list[int] = []
        for statuses in (self.placements, self.unschedulable):
            dropped += [number for number in statuses if number not in occupied][:-kept]
        for number in dropped:
            self.forget(number)
        self._by_text = {status.text: status for status in self.unschedulable.values()}
        return dropped

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory in bytes, without shared placements."""
        return (
            len(self) * _STATUS_BYTES
            + len(self._by_text) * _UNSCHEDULABLE_BYTES
            + self._own_placements * _PLACEMENT_BYTES
            + self._own_picks * _PICK_BYTES
        )

    def _by_score(self, number: int) -> float:
        return -self.placements[number].score

    def _own(self, placement: Placement) -> Placement:
        """The placement with this ranking's request."""
        if self._request is None or placement.solution.picks[0][0].request is self._request:
            return placement
        return placement.for_request(self._request)

    def _count(self, placement: Placement, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) one placement that is not shared."""
        self._own_placements += sign
        self._own_picks += sign * sum(map(len, placement.solution.picks))
