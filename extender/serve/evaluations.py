"""Decides when Berth evaluates the claims of tenants: in the call that asks, or later in a queue.

An evaluation runs selectors and searches that any tenant may write, in the one thread that answers all calls. Three
rules keep it from stopping others. (1) A call evaluates for at most 0.1 s (`evaluation_seconds`), and so do all calls
of one namespace in a second; all namespaces that evaluate share twice this time. The first millisecond of a call always
is free, and pods of a known shape need less; their binds have a whole call, whatever other calls have used. (2) An
evaluation that does not end in time goes into the queue. Until the queue has ended it, calls return the error that it
is not finished, and kube-scheduler retries. A namespace with queued work has only that one millisecond for anything
else in a call. While no other namespace calls, neither rule limits the calls of a namespace together, up to half of
each second. (3) The queue takes the namespaces in turn, with a tenth of the time, or with half of it while no call
evaluates.

Items of the queue are evaluations of a pod's requirements, scores that are out of date, plans of gangs, searches for
rejected pods that fit after a change, and the search for the domain in which a gang collects devices. Statuses and
masks stay where a deadline stops an evaluation, so each attempt goes on where the last one stopped. The deadline
decides when a status is found, never which one. A selector or a search that is too costly for any call is given up by
its number of steps, with a reason that says so (extender.cel, extender.allocation).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from extender.base.deadline import Deadline, DeadlineExceeded
from extender.base.fair_lru import FairLRU

_FREE_SECONDS = 0.001  # of a call; about what the rest of a filter request takes
_SECONDS_ALONE = 0.5  # of a namespace in a second, if no other one has called for a second
_MAX_CALLS_TOGETHER = 2.0  # calls: the time of all namespaces in a second, beside the free one
_SLICE_SECONDS = 0.002  # of an item at a time
_STEP_SECONDS = 0.01  # of a step of a search, which evaluates one node
_PAUSE_FACTOR = 1.0  # after a slice, as a multiple of its time
_LONG_PAUSE_FACTOR = 9.0  # if a call came meanwhile
_MAX_ITEMS = 4096

Work = Callable[[Deadline], bool]
"""Works until the deadline. True, or an error other than DeadlineExceeded, if nothing is left."""


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    namespace: str
    work: Work
    is_awaited: bool  # by calls, so that the namespace has queued work
    size: int  # for how many items it counts


class Evaluations:
    """Gives deadlines to calls, and works on what they do not finish. `clock` returns seconds.

    At most 4,096 items, see FairLRU. One that is dropped is queued again by the next call that needs it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds = 0.1  # of a call; the policy sets it
        self.queued = 0  # items that calls waited for, since the start
        self._clock = clock
        self._items: FairLRU[Hashable, _Item] = FairLRU(_MAX_ITEMS, attrgetter("size"))
        self._awaited: Counter[str] = Counter()  # items that calls wait for, by namespace
        self._worked: dict[str, float] = {}  # seconds of the queue, by namespace with items
        self._used: dict[str, float] = {}  # seconds of calls in this second, by namespace
        self._second_ends = 0.0
        self._calls = 0
        self._caller, self._called_at = "", -inf  # the namespace of the last call, and its time
        self._other_called_at = -inf  # of the last call for any other namespace
        self._sharing = 1  # namespaces that evaluated in calls in the last second
        self._added = asyncio.Event()

    # -- calls -----------------------------------------------------------------------------------------------

    def deadline_of_call(self, namespace: str) -> AbstractContextManager[Deadline]:
        """The deadline of a call for a pod of this namespace: its other calls in this second leave it less."""
        return self._call(namespace, self._left(namespace))

    def full_deadline(self, namespace: str) -> AbstractContextManager[Deadline]:
        """The deadline of a call that has all its time, whatever other calls have used: an earlier one allowed it."""
        return self._call(namespace, self.seconds)

    @contextmanager
    def _call(self, namespace: str, seconds: float) -> Iterator[Deadline]:
        began = self._clock()
        self._calls += 1
        if namespace != self._caller:
            self._caller, self._other_called_at = namespace, self._called_at
        self._called_at = began
        try:
            yield Deadline(seconds, self._clock)
        finally:
            spent = self._clock() - began - _FREE_SECONDS
            if spent > 0:
                self._used[namespace] = self._used.get(namespace, 0.0) + spent

    def has_time(self, namespace: str) -> bool:
        """Whether a call for this namespace has more than the free time now."""
        return self._left(namespace) > _FREE_SECONDS

    def _left(self, namespace: str) -> float:
        now = self._clock()
        if now >= self._second_ends:
            self._sharing = len(self._used) if now < self._second_ends + 1.0 else 1
            self._used.clear()
            self._second_ends = now + 1.0
        others_called_at = self._other_called_at if namespace == self._caller else self._called_at
        if now >= others_called_at + 1.0:
            share = _SECONDS_ALONE
        elif self._awaited[namespace]:
            return _FREE_SECONDS
        else:
            share = self.seconds * min(1.0, _MAX_CALLS_TOGETHER / max(self._sharing, len(self._used), 1))
        return min(max(share - self._used.get(namespace, 0.0), _FREE_SECONDS), self.seconds)

    def deadline_of_step(self) -> Deadline:
        """The deadline of a step of a search in the queue."""
        return Deadline(_STEP_SECONDS, self._clock, ends_one=True)

    def deadline_of_plan(self) -> Deadline:
        """The deadline of a plan in the queue: a plan keeps no part of its result."""
        return Deadline(self.seconds, self._clock)

    # -- queue -----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """berth_unfinished_demands: how many items calls wait for."""
        return self._awaited.total()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._items

    def queue(self, namespace: str, key: Hashable, work: Work, size: int = 1, *, is_awaited: bool = True) -> None:
        """Add an item, unless it is queued already. If calls wait for it, they have no other time in this namespace.

        `size`: for how many items it counts, because it keeps large claims.
        """
        if key in self._items:
            return
        self.queued += is_awaited
        self._awaited[namespace] += is_awaited
        self._worked.setdefault(namespace, min(self._worked.values(), default=0.0))
        for _, dropped in self._items.put(namespace, key, _Item(namespace, work, is_awaited, size)):
            self._ended(dropped)
        self._added.set()

    def _ended(self, item: _Item) -> None:
        self._awaited[item.namespace] -= item.is_awaited
        if not self._awaited[item.namespace]:
            del self._awaited[item.namespace]
        if next(self._items.of(item.namespace), None) is None:
            del self._worked[item.namespace]

    def work(self) -> bool:
        """Work on one item for one slice: the next one of the namespace that had the least time. True if items are
        left. Raises the bug of an item, which is removed."""
        if not self._worked:
            return False
        namespace = min(self._worked, key=self._worked.__getitem__)
        key, item = next(self._items.of(namespace))
        began, done = self._clock(), True
        try:
            # One piece of work always ends, so that the item comes to its end.
            done = item.work(Deadline(_SLICE_SECONDS, self._clock, ends_one=True))
        except DeadlineExceeded:
            done = False
        finally:
            if namespace in self._worked:
                self._worked[namespace] += self._clock() - began
            if self._items.get(key) is item and done:  # `get` also makes it the last one of its namespace
                self._items.pop(key)
                self._ended(item)
        return bool(self._worked)

    async def run(self, refreshed: Callable[[], Awaitable[None]], report: Callable[[str, Exception], None]) -> None:
        """Work until cancelled. See CacheRefresh.wait for `refreshed`. `report` receives bugs."""
        while True:
            await self._added.wait()
            await refreshed()
            began, calls = self._clock(), self._calls
            try:
                if not self.work():
                    self._added.clear()
            except Exception as bug:  # noqa: BLE001 - a bug with one item must not delay the others
                report("evaluations", bug)
            took = self._clock() - began
            await asyncio.sleep(_PAUSE_FACTOR * took)
            if self._calls != calls:
                await asyncio.sleep((_LONG_PAUSE_FACTOR - _PAUSE_FACTOR) * took)


def in_steps(steps: Iterator[object]) -> Work:
    """Work that is done step by step; each step must be short, or have a deadline of its own."""

    def work(deadline: Deadline) -> bool:
        for _ in steps:
            deadline.check_time()
        return True

    return work
