"""Sinks: they pass the events of filter requests, gangs and reservations to the other parts of serve."""

from __future__ import annotations

from extender.cache import CacheListener
from extender.extension.orphans import OrphanCollector
from extender.extension.wake import Requeuer
from extender.model import Claim, ObjectKey
from extender.runtime import HoldExpirer


class FilterSink:
    """Receives the events of filter requests and gangs, and ignores them.

    A method of a subclass must not raise, block, or call the filter service.
    """

    def fits(self) -> None:
        """A rejected pod or gang may fit now, so kube-scheduler should retry the pods that Berth rejected."""

    def unsuitable(self, claim: Claim) -> None:
        """A claim is allocated on nodes where its pod cannot run, and no other pod has it reserved."""

    def stale_special(self, key: ObjectKey) -> None:
        """The special claim `key` is left over from a bind that did not complete."""


class ServeSink(FilterSink):
    """The sink of `berth serve`: it wakes the background tasks."""

    def __init__(self, requeuer: Requeuer, orphans: OrphanCollector) -> None:
        self._requeuer = requeuer
        self._orphans = orphans

    def fits(self) -> None:
        self._requeuer.requeue_now()

    def unsuitable(self, claim: Claim) -> None:
        self._orphans.deallocate_unsuitable(claim)

    def stale_special(self, key: ObjectKey) -> None:
        self._orphans.remove_stale_special(key)


class ReservationSink(CacheListener):
    """In `berth serve`: a change of a reservation wakes the requeuer and the expirer."""

    def __init__(self, requeuer: Requeuer, expirer: HoldExpirer) -> None:
        self._requeuer = requeuer
        self._expirer = expirer

    def freed(self) -> None:
        self._requeuer.supply_changed()

    def deadline_moved(self) -> None:
        self._expirer.reschedule()
