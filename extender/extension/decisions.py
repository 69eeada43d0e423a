"""What follows a decision: one sink, told by filter, prioritize and bind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from extender.extension.background_evaluation import BackgroundEvaluator
from extender.extension.orphans import OrphanCollector
from extender.extension.requeue import Requeuer
from extender.model import Claim, ObjectKey, Pod, Reservation
from extender.records import Attempted, Record, Released, Reserved
from extender.runtime import HoldExpirer
from extender.scheduling import Attempt

_REASONS = 3  # of the most frequent reasons of an attempt


class FilterSink(Protocol):
    """What the filter service tells while it decides; none of it may raise, wait, or call the filter service."""

    def attempted(self, pod: Pod, fitting: int, asked: int, reasons: Iterable[tuple[str, int]] = ()) -> None:
        """Filter answered: so many nodes of those asked about; otherwise the reasons, each with its nodes."""

    def unfinished(self) -> None:
        """A budget ended before the work: it goes on in the background."""

    def fits(self) -> None:
        """A pod that was rejected fits now, as work in the background found out."""

    def unsuitable(self, claim: Claim) -> None:
        """A claim that only this pod uses is allocated where the pod cannot go."""

    def stale_special(self, key: ObjectKey) -> None:
        """A special claim is left of an attempt that ended half way."""


class NoSink:
    """For a judge that only answers."""

    def attempted(self, pod: Pod, fitting: int, asked: int, reasons: Iterable[tuple[str, int]] = ()) -> None:
        """Nothing follows."""

    def unfinished(self) -> None:
        """Nothing follows."""

    def fits(self) -> None:
        """Nothing follows."""

    def unsuitable(self, claim: Claim) -> None:
        """Nothing follows."""

    def stale_special(self, key: ObjectKey) -> None:
        """Nothing follows."""


class ServeSink:
    """In `berth serve`: records go to the console, and tasks are told that there is work."""

    def __init__(
        self,
        put: Callable[[Record], None],
        now_rfc3339: Callable[[], str],
        requeuer: Requeuer,
        continuation: BackgroundEvaluator,
        orphans: OrphanCollector,
    ) -> None:
        self._put = put
        self._now = now_rfc3339
        self._orphans = orphans
        self.fits = requeuer.requeue_now
        self.unfinished = continuation.wake
        self.unsuitable = orphans.deallocate_unsuitable
        self.stale_special = orphans.remove_stale_special

    def attempted(self, pod: Pod, fitting: int, asked: int, reasons: Iterable[tuple[str, int]] = ()) -> None:
        """See FilterSink."""
        frequent = sorted(((text, n) for text, n in reasons if n), key=lambda item: (-item[1], item[0]))[:_REASONS]
        self._put(Attempted(pod.key, pod.uid, Attempt(self._now(), fitting, asked, tuple(frequent))))


class ReservationSink:
    """In `berth serve`: what follows a change of the cache's reservations, see MirrorListener."""

    def __init__(
        self, put: Callable[[Record], None], clock: Callable[[], float], requeuer: Requeuer, expirer: HoldExpirer
    ) -> None:
        self._put = put
        self._clock = clock
        self.freed = requeuer.supply_changed
        self.sooner = expirer.reschedule

    def reservation_changed(self, claim_uid: str, new: Reservation | None) -> None:
        """See MirrorListener."""
        if new is None:
            self._put(Released(claim_uid))
        else:
            seconds = new.deadline - self._clock()
            self._put(Reserved(claim_uid, new.pod_uid, new.node, new.results, new.state, seconds))
