"""Gangs that wait: for members, for room, for another gang, or for the end of a pause after plans that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf

from extender.extension.gang_state import WaitingGang
from extender.model import Code, FairLRU, GroupKey, Reason

MISSING = (Code.GANG_INCOMPLETE, Code.GANG_UNKNOWN)  # reasons of gangs whose members or PodGroup do not exist
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds until a gang whose plan failed is planned again
_CHANGED_SECONDS = 1.0  # until a gang with other members is planned again: a tenant may edit them many times a second


class WaitingGangs:
    """At most `limit` gangs, see FairLRU. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float], limit: int) -> None:
        self._clock = clock
        self._gangs: FairLRU[GroupKey, WaitingGang] = FairLRU(limit)
        self._not_before: FairLRU[GroupKey, float] = FairLRU(limit)  # see collects_not_before
        self._failures: FairLRU[GroupKey, int] = FairLRU(limit)  # plans that failed since a member was bound
        self._named: FairLRU[GroupKey, str] = FairLRU(limit)  # UID of the pod that the reasons name since then
        self._complete_since: FairLRU[GroupKey, float] = FairLRU(limit)  # also of gangs with a plan

    def __len__(self) -> int:
        return len(self._gangs)

    def get(self, key: GroupKey) -> WaitingGang | None:
        """The gang, if it waits."""
        return self._gangs.get(key)

    def pop(self, key: GroupKey) -> WaitingGang | None:
        """Remove and return the gang, if it waits."""
        return self._gangs.pop(key)

    def gone(self, key: GroupKey) -> None:
        """No member of the gang waits any more."""
        self._gangs.pop(key)
        self._complete_since.pop(key)

    def complete_since(self, key: GroupKey) -> float:
        """When a filter request first found that enough members of the gang exist; now, if this one is the first."""
        found = self._complete_since.get(key)
        if found is None:
            found = self._clock()
            self._complete_since.put(key.namespace, key, found)
        return found

    def failures(self, key: GroupKey) -> int:
        """How many plans of the gang failed since a member was bound."""
        return self._failures.get(key) or 0

    def succeeded(self, key: GroupKey) -> None:
        """A member is bound: the gang does not wait any more, and its failures are forgotten."""
        self.gone(key)
        self._failures.pop(key)
        self._named.pop(key)

    def named_pod(self, key: GroupKey) -> str:
        """UID of the pod that the reason of the last failed plan named; '' if it named none."""
        return self._named.get(key) or ""

    def name_pod(self, key: GroupKey, uid: str) -> None:
        """The reason of a failed plan names this pod."""
        self._named.put(key.namespace, key, uid)

    @property
    def namespaces(self) -> list[str]:
        """The namespaces with waiting gangs."""
        return self._gangs.namespaces

    def without_room(self, namespace: str, version: int) -> list[GroupKey]:
        """The gangs of a namespace for which an older snapshot than this version had no room, the longest waiting
        first."""
        return [key for key, gang in self._gangs.of(namespace) if gang.version not in (-1, version)]

    def next_to_collect(self, now: float) -> GroupKey | None:
        """Of the gangs without room that may collect devices, the one that has been complete for longest.

        Those that have collected before come last.
        """
        found = [
            (not_before, self.complete_since(key), key)
            for key, gang in self._gangs.items()
            if gang.reason.code is Code.GANG_NO_ROOM and (not_before := self.may_collect_at(key)) <= now
        ]
        return min(found, key=lambda entry: entry[:2])[2] if found else None

    def collects_not_before(self, key: GroupKey, at: float) -> None:
        """The gang has collected devices, or no domain could hold it: it may not collect before this time."""
        self._not_before.put(key.namespace, key, at)

    def may_collect_at(self, key: GroupKey) -> float:
        """When the gang may collect devices again; -inf if the gang may collect now."""
        found = self._not_before.get(key)
        return -inf if found is None else found

    def plan_again(self, code: Code) -> None:
        """End the pauses of the gangs that wait with this code."""
        for gang in self._gangs.values():
            if gang.reason.code is code:
                gang.retry_at = -inf

    def wait(self, key: GroupKey, uid: str, reason: Reason, other: GroupKey | None = None) -> WaitingGang:
        """Let a gang wait for an event that Berth sees: new members, or the end of the plan of the gang `other`."""
        gang = self._gangs.get(key)
        if gang is None or gang.reason != reason:
            if reason.code not in MISSING:
                self.complete_since(key)
            pause = gang.retry_at if gang is not None else -inf  # missing members do not end a pause
            gang = WaitingGang(reason, retry_at=pause)
            self._gangs.put(key.namespace, key, gang)
        gang.other = other
        gang.note(uid)
        return gang

    def rejected(self, key: GroupKey, uid: str, reason: Reason) -> None:
        """Note a member that cannot run until a user edits it. A gang that already waits keeps its reason."""
        gang = self._gangs.get(key)
        if gang is None:
            gang = WaitingGang(reason)
            self._gangs.put(key.namespace, key, gang)
        gang.note(uid)

    def pause(self, key: GroupKey, reason: Reason, version: int = -1, uid: str = "", *, wakes: bool = True) -> None:
        """After a failed plan, give the members this reason during a pause. Each failure in a row doubles the pause.

        `version` is that of the snapshot without room; -1 if the gang did not fail for want of devices. `wakes`:
        whether a plan may succeed later although Berth sees no change.
        """
        failures = self.failures(key)
        self._failures.put(key.namespace, key, failures + 1)
        seconds = min(_FIRST_PAUSE * 2.0 ** min(failures, 16), _LONGEST_PAUSE)
        self._pause(key, reason, version, uid, seconds).wakes = wakes

    def go_on(self, key: GroupKey, reason: Reason, version: int, uid: str) -> None:
        """Give a gang without a plan for the nodes of one filter request this reason, without a pause.

        The next request may name other nodes. For `version` see `pause`.
        """
        gang = self._pause(key, reason, version, "", 0.0)
        gang.wakes = False
        gang.note(uid)

    def changed(self, key: GroupKey) -> bool:
        """The gang has other members or another minimum: a pause ends soon, since a plan may succeed now.

        `requeue_due` is True at the end of the pause, unless the gang waited for missing members. Returns whether the
        gang pauses.
        """
        gang, now = self._gangs.get(key), self._clock()
        if gang is None:
            return False
        gang.needs = None
        gang.retry_at = min(gang.retry_at, now + _CHANGED_SECONDS)
        gang.wakes = True
        gang.asked_early |= gang.reason.code not in MISSING
        return gang.retry_at > now

    def changed_while_planned(self, key: GroupKey) -> None:
        """The plan of the gang ended because the gang changed. It pauses as any gang that changes."""
        self._pause(key, Reason(Code.GANG_CHANGED, (key.name,)), -1, "", _CHANGED_SECONDS)

    def postpone(self, key: GroupKey, reason: Reason, uid: str, seconds: float) -> None:
        """A plan takes longer than a call: kube-scheduler asks again after `seconds`, if the queue takes longer."""
        self._pause(key, reason, -1, uid, seconds)

    def ask_again(self, gang: WaitingGang, seconds: float) -> None:
        """The planner could not decide whether the gang fits; kube-scheduler retries after `seconds`."""
        gang.version, gang.retry_at = -1, self._clock() + seconds
        gang.wakes = gang.asked_early = True

    def _pause(self, key: GroupKey, reason: Reason, version: int, uid: str, seconds: float) -> WaitingGang:
        self.complete_since(key)
        gang = WaitingGang(reason, version=version, retry_at=self._clock() + seconds)
        self._gangs.put(key.namespace, key, gang)
        if uid:
            gang.note(uid)
            gang.asked_early = True  # kube-scheduler gave up this pod
        return gang

    def requeue_due(self, version: int) -> bool:
        """Whether a gang may be planned now: kube-scheduler asked about it during a pause that is over. Once per pause.

        `version` is that of the current snapshot: without a change, a gang without room is still without room.
        """
        due = [gang for gang in self._gangs.values() if gang.asked_early and gang.retry_at <= self._clock()]
        for gang in due:
            gang.asked_early = False
        return any(gang.wakes or gang.version not in (-1, version) for gang in due)

    @property
    def next_deadline(self) -> float:
        """The earliest time at which `requeue_due` can be True; infinite if there is none."""
        return min((gang.retry_at for gang in self._gangs.values() if gang.asked_early), default=inf)

    def any_for(self, *codes: Code) -> bool:
        """Whether a gang waits with one of these codes."""
        return any(gang.reason.code in codes for gang in self._gangs.values())

    def reasons(self) -> Counter[str]:
        """Number of waiting gangs by the code of the reason."""
        return Counter(gang.reason.code.name for gang in self._gangs.values())
