"""A bounded history of attempts and decisions by pod, from serve's records: for explain, the page and Events."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

from extender.diagnosis import ComparedSets
from extender.model import Code, ObjectKey, counted
from extender.records import Attempted, Bound
from extender.scheduling import Attempt, Decision

_PODS = 2048
_BYTES = 8 << 20  # estimated size of all entries
_ENTRY_BYTES, _ATTEMPT_BYTES, _REASON_BYTES, _DECISION_BYTES = 1024, 256, 160, 2048  # without texts
_SETS_BYTES, _GPU_BYTES = 1024, 8  # of a comparison of sets without its texts, of one GPU in a set
_TEXT_BYTES, _PART_BYTES = 80, 128  # of one text without its characters, of one part without its texts
_ATTEMPTS = 8  # per pod
_INCOMPLETE = Code.GANG_INCOMPLETE.text.partition("{")[0]  # beginning of the reason of a pod with an incomplete group


@dataclass(slots=True)
class PodHistory:
    """The last attempts and the decision of one pod."""

    pod: ObjectKey
    uid: str
    attempts: deque[Attempt] = field(default_factory=lambda: deque(maxlen=_ATTEMPTS))
    first_at: str = ""  # RFC 3339: the first attempt, also if `attempts` does not have it any more
    complete_at: str = ""  # RFC 3339: the first attempt since all pods of its group existed
    decision: Decision | None = None
    sets: ComparedSets | None = None  # the GPUs of the decision, and those of first fit
    version: int = 0  # of the decision history when this entry last changed
    size: int = _ENTRY_BYTES  # estimated bytes

    @property
    def is_unschedulable(self) -> bool:
        """Whether no node passed the last filter request, and the pod is not bound."""
        return bool(self.attempts) and not self.attempts[-1].fitting and self.decision is None

    def add_attempt(self, attempt: Attempt) -> None:
        """Add an attempt."""
        gone = _attempt_bytes(self.attempts[0]) if len(self.attempts) == _ATTEMPTS else 0
        self.attempts.append(attempt)
        self.first_at = self.first_at or attempt.at
        is_incomplete = any(text.startswith(_INCOMPLETE) for text, _ in attempt.reasons)
        self.complete_at = "" if is_incomplete else self.complete_at or attempt.at
        self.size += _attempt_bytes(attempt) - gone

    def set_decision(self, decision: Decision) -> None:
        """Set the decision of a bound pod."""
        gone = _decision_bytes(self.decision) if self.decision is not None else 0
        self.decision = decision
        self.size += _decision_bytes(decision) - gone

    def set_sets(self, sets: ComparedSets) -> None:
        """Set the comparison with first fit."""
        gone = _sets_bytes(self.sets) if self.sets is not None else 0
        self.sets = sets
        self.size += _sets_bytes(sets) - gone

    def change(self) -> str:
        """The difference between the reasons of the last attempt and of the attempt before; '' if there is none.

        An attempt that finds nodes has no reasons: the other nodes may still be unschedulable.
        """
        if len(self.attempts) < 2 or self.attempts[-1].fitting:  # noqa: PLR2004 - two attempts to compare
            return ""
        before, now = dict(self.attempts[-2].reasons), dict(self.attempts[-1].reasons)
        gone = [f"no longer '{text}' on {counted(count, 'node')}" for text, count in before.items() if text not in now]
        new = [f"now '{text}' on {counted(count, 'node')}" for text, count in now.items() if text not in before]
        both = [(text, count) for text, count in now.items() if before.get(text, count) != count]
        moved = [f"'{text}' on {counted(count, 'node')} instead of {before[text]}" for text, count in both]
        return "; ".join((*gone, *new, *moved))


@dataclass(slots=True)
class _Share:
    """The entries of one namespace by UID, the least recently changed first, and their estimated bytes."""

    entries: dict[str, PodHistory] = field(default_factory=dict)
    size: int = 0


class DecisionHistory:
    """Entries by pod UID, at most `pods` and about `limit_bytes`.

    Beyond a limit, the namespace with the most entries or bytes loses the least recently changed one of its own: the
    pods of one namespace hide no explanation of another.

    `since` is the start of the history, as RFC 3339.
    """

    def __init__(self, since: str = "", pods: int = _PODS, limit_bytes: int = _BYTES) -> None:
        self.since = since
        self._pods = pods
        self._limit_bytes = limit_bytes
        self._bytes = 0
        # Not a FairCache: entries grow, and `recent` needs their order.
        self._entries: dict[str, PodHistory] = {}  # the least recently changed first
        self._namespaces: dict[str, _Share] = {}
        self._newest: dict[ObjectKey, str] = {}  # the UID of the newest pod of each name
        self.version = 0  # grows with every record
        self.joined = 0  # pods bound with two GPUs or more
        self.joined_share = 0.0  # sum of their ratios of ring bandwidth to the best ring bandwidth in the fleet

    def record_attempt(self, record: Attempted) -> None:
        """Add the answer to a filter request."""
        entry = self._take(record.pod, record.uid)
        entry.add_attempt(record.attempt)
        self._put(entry)

    def record_decision(self, record: Bound) -> None:
        """Add the decision of a bind."""
        chosen = record.decision.chosen
        if chosen.best_gbps:
            self.joined += 1
            self.joined_share += chosen.ring_gbps / chosen.best_gbps
        entry = self._take(record.pod, record.uid)
        entry.set_decision(record.decision)
        self._put(entry)

    def record_sets(self, uid: str, sets: ComparedSets) -> None:
        """Add the comparison with first fit to a decision, unless the entry is dropped already."""
        entry = self._entries.get(uid)
        if entry is not None:
            self._drop(entry)
            entry.set_sets(sets)
            self._put(entry)

    def newest(self, pod: ObjectKey) -> PodHistory | None:
        """The entry of the newest pod of this name."""
        return self._entries.get(self._newest.get(pod, ""))

    def entry(self, uid: str) -> PodHistory | None:
        """The entry of a pod by UID."""
        return self._entries.get(uid)

    def pods_named(self, name: str) -> set[ObjectKey]:
        """Pods of this name in all namespaces."""
        return {entry.pod for entry in self._entries.values() if entry.pod.name == name}

    def recent(self, count: int, since: int = 0) -> list[PodHistory]:
        """The entries that changed last, newest first: at most `count`, and only those newer than version `since`."""
        newest = reversed(self._entries.values())
        return [entry for entry, _ in zip(newest, range(count), strict=False) if entry.version > since]

    def unschedulable(self, waiting: Container[str]) -> list[PodHistory]:
        """The entries of `waiting` UIDs whose last filter request no node passed, the least recently changed first."""
        return [entry for uid, entry in self._entries.items() if entry.is_unschedulable and uid in waiting]

    def _take(self, pod: ObjectKey, uid: str) -> PodHistory:
        """Remove and return the entry of a pod: the caller changes it and puts it back. Creates a missing one."""
        entry = self._entries.get(uid)
        if entry is None:
            return PodHistory(pod, uid)
        self._drop(entry)
        entry.pod = pod
        return entry

    def _put(self, entry: PodHistory) -> None:
        """Add an entry as the newest one, and drop others beyond the limits."""
        self.version += 1
        entry.version = self.version
        self._entries[entry.uid] = entry
        self._newest[entry.pod] = entry.uid
        share = self._namespaces.setdefault(entry.pod.namespace, _Share())
        share.entries[entry.uid] = entry
        share.size += entry.size
        self._bytes += entry.size
        while len(self._entries) > self._pods:
            self._drop_of(max(self._namespaces.values(), key=lambda share: len(share.entries)))
        while self._bytes > self._limit_bytes and len(self._entries) > 1:
            self._drop_of(max(self._namespaces.values(), key=lambda share: share.size))

    def _drop_of(self, share: _Share) -> None:
        self._drop(next(iter(share.entries.values())))

    def _drop(self, entry: PodHistory) -> None:
        del self._entries[entry.uid]
        if self._newest.get(entry.pod) == entry.uid:
            del self._newest[entry.pod]
        share = self._namespaces[entry.pod.namespace]
        del share.entries[entry.uid]
        share.size -= entry.size
        if not share.entries:
            del self._namespaces[entry.pod.namespace]
        self._bytes -= entry.size


def _text_bytes(text: str) -> int:
    """A text as an object, of up to four bytes per character."""
    return _TEXT_BYTES + len(text) * (1 if text.isascii() else 4)


def _attempt_bytes(attempt: Attempt) -> int:
    return _ATTEMPT_BYTES + sum(_REASON_BYTES + _text_bytes(text) for text, _ in attempt.reasons)


def _decision_bytes(decision: Decision) -> int:
    chosen = decision.chosen
    parts = sum(_PART_BYTES + _text_bytes(part.name) + _text_bytes(part.sentence) for part in chosen.parts)
    return _DECISION_BYTES + sum(map(_text_bytes, chosen.all_devices)) + parts


def _sets_bytes(sets: ComparedSets) -> int:
    gpus = len(sets.busy) + len(sets.chosen.gpus) + len(sets.first_fit.gpus)
    texts = sum(map(_text_bytes, (*sets.names, sets.links, sets.switch)))
    return _SETS_BYTES + gpus * _GPU_BYTES + texts
