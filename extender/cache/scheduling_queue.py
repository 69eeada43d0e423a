"""The pods that kube-scheduler has not tried yet, in the order in which it will take them from its queue."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count

from extender.model import Pod

_Entry = tuple[int, str, int, str]  # negative priority, creation time, number of arrival, UID


class SchedulingQueue:
    """UIDs of waiting pods that concern Berth, one queue for each schedulerName.

    A pod leaves with its first failed attempt, or when it has a nominated node. kube-scheduler's PrioritySort compares
    priorities, and then the times at which pods entered its queue. Berth does not know these times. So the queue uses
    the creation time, in seconds, and the order in which the watch showed the pods.
    """

    def __init__(self) -> None:
        self._entries: dict[str, list[_Entry]] = {}  # sorted, by schedulerName
        self._known: dict[str, tuple[str, _Entry]] = {}  # UID to schedulerName and entry
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._known)

    def put(self, uid: str, pod: Pod | None) -> None:
        """Put the new state of a pod; None deletes it."""
        if pod is None or not pod.is_waiting or pod.tried or pod.nominated_node or not pod.concerns_berth:
            self._remove(uid)
        elif uid not in self._known:
            entry = (-pod.priority, pod.created, next(self._numbers), uid)
            self._known[uid] = pod.scheduler, entry
            insort(self._entries.setdefault(pod.scheduler, []), entry)

    def first(self, scheduler: str) -> Iterator[str]:
        """The UIDs of the pods with this schedulerName, the next one first. Valid until the queue changes."""
        return (entry[-1] for entry in self._entries.get(scheduler, ()))

    def _remove(self, uid: str) -> None:
        known = self._known.pop(uid, None)
        if known is None:
            return
        scheduler, entry = known
        entries = self._entries[scheduler]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._entries[scheduler]
