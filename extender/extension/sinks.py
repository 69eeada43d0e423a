"""Sinks: they pass the events of filter requests, gangs and reservations to the other parts of serve."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from extender.cache import CacheListener
from extender.cluster import WallClock, rfc3339
from extender.extension.orphans import OrphanCollector
from extender.extension.outbox import PutRecord
from extender.extension.requeue import Requeuer
from extender.model import Claim, ObjectKey, Pod, Reservation
from extender.records import Attempted, Released, Reserved
from extender.runtime import HoldExpirer
from extender.scheduling import Attempt

_REASONS = 3  # most frequent reasons that the record of an attempt has


class FilterSink:
    """Receives the events of filter requests and gangs, and ignores them.

    A method of a subclass must not raise, block, or call the filter service.
    """

    def attempted(self, pod: Pod, fitting: int, asked: int, reasons: Collection[tuple[str, int]] = ()) -> None:
        """Filter answered: `fitting` of `asked` nodes passed. `reasons` has (text, number of nodes) if none passed.

        A bind that ends the plan of a gang counts as such an answer for its node.
        """

    def fits(self) -> None:
        """A rejected pod or gang may fit now, so kube-scheduler should retry the pods that Berth rejected."""

    def unsuitable(self, claim: Claim) -> None:
        """A claim is allocated on nodes where its pod cannot run, and no other pod has it reserved."""

    def stale_special(self, key: ObjectKey) -> None:
        """The special claim `key` is left over from a bind that did not complete."""


class ServeSink(FilterSink):
    """The sink of `berth serve`: it sends records to the console, and wakes the background tasks."""

    def __init__(
        self,
        put: PutRecord,
        wall_clock: WallClock,
        requeuer: Requeuer,
        orphans: OrphanCollector,
    ) -> None:
        self._put = put
        self._wall_clock = wall_clock
        self._requeuer = requeuer
        self._orphans = orphans

    def fits(self) -> None:
        self._requeuer.requeue_now()

    def unsuitable(self, claim: Claim) -> None:
        self._orphans.deallocate_unsuitable(claim)

    def stale_special(self, key: ObjectKey) -> None:
        self._orphans.remove_stale_special(key)

    def attempted(self, pod: Pod, fitting: int, asked: int, reasons: Collection[tuple[str, int]] = ()) -> None:
        key, uid, at = pod.key, pod.uid, self._wall_clock()
        frequent = _most_frequent(reasons) if reasons else ()
        self._put(lambda: Attempted(key, uid, Attempt(rfc3339(at), fitting, asked, frequent)))


class ReservationSink(CacheListener):
    """In `berth serve`: sends each change of a reservation to the console, and wakes the requeuer and the expirer."""

    def __init__(self, put: PutRecord, clock: Callable[[], float], requeuer: Requeuer, expirer: HoldExpirer) -> None:
        self._put = put
        self._clock = clock
        self._requeuer = requeuer
        self._expirer = expirer

    def freed(self) -> None:
        self._requeuer.supply_changed()

    def deadline_moved(self) -> None:
        self._expirer.reschedule()

    def reservation_changed(self, claim_uid: str, new: Reservation | None) -> None:
        self._put(partial(self._record, claim_uid, new))

    def _record(self, claim_uid: str, new: Reservation | None) -> Released | Reserved:
        if new is None:
            return Released(claim_uid)
        seconds = max(0.0, new.deadline - self._clock())
        return Reserved(claim_uid, new.pod_uid, new.node, new.results, new.state, seconds)


def _most_frequent(reasons: Collection[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(((text, n) for text, n in reasons if n), key=lambda item: (-item[1], item[0]))[:_REASONS])
