"""A candidate policy in the shadow of the active one: what it would have chosen, decision by decision, off the hot path."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from extender.allocation.view import Snapshot
from extender.model.budget import Budget, BudgetSpent
from extender.model.claim import Pod
from extender.model.errors import WireError
from extender.model.pieces import in_pieces, run_out
from extender.policy import Policy
from extender.service.judge import Judge
from extender.service.stopwatch import Stopwatch
from extender.service.turns import Turns
from extender.verdict.decision import Candidate, candidate
from extender.verdict.demand import Asked, Demand, demand_of
from extender.verdict.grants import Grant
from extender.verdict.rankings import Rankings
from extender.verdict.verbs import shortlist

_WAITING = 64  # decisions not compared yet; more are left out and counted
_REMEMBERED = 512  # pods
_WORK_SECONDS = 0.5  # of one comparison; a costlier one is left out
_RANKINGS_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """One decision under both policies. `candidate` is None where the candidate policy would place the pod nowhere."""

    pod: str
    at: str
    active: Candidate
    candidate: Candidate | None

    @property
    def differs(self) -> bool:
        """Whether node or devices would be others."""
        return self.candidate is None or (self.active.node, self.active.devices) != (self.candidate.node, self.candidate.devices)


class Shadow:
    """Runs beside the service; `decided` is called by the judge and only remembers."""

    def __init__(
        self, judge: Judge, turns: Turns, now_rfc3339: Callable[[], str], keep: Callable[[Snapshot], Snapshot],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._keep = keep
        self._judge = judge
        self._turns = turns
        self._now = now_rfc3339
        self._rankings = Rankings(_RANKINGS_BYTES, as_of=True)
        self._todo: deque[tuple[Pod, Asked, Snapshot, Sequence[str], str, Grant]] = deque()
        self._something = asyncio.Event()
        self._known: OrderedDict[str, Comparison] = OrderedDict()  # by pod UID
        self.policy: Policy | None = None
        self.problem = ""  # why the newest candidate file is not compared
        self.left_out = 0

    def use(self, policy: Policy | None) -> None:
        """Compare with this policy from now on; None ends it."""
        self.policy, self.problem, self.left_out = policy, "", 0
        self._rankings.clear()
        self._todo.clear()
        self._known.clear()

    def refuse(self, problem: str) -> None:
        """The newest candidate is wrong; the last good one stays."""
        self.problem = problem

    def decided(self, pod: Pod, snapshot: Snapshot, names: Sequence[str], node: str, grant: Grant) -> None:
        """Filter placed a pod on its first node."""
        if self.policy is None:
            return
        if len(self._todo) >= _WAITING:
            self.left_out += 1
            return
        # Now, because the pod's claims, which snapshots do not keep, may be allocated before the comparison is made.
        demand = demand_of(pod, snapshot, self.policy)
        self._todo.append((pod, demand, self._keep(snapshot), names, node, grant))
        self._something.set()

    def comparisons(self) -> list[Comparison]:
        """The newest first."""
        return list(reversed(self._known.values()))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._something.wait()
            while self._todo and self.policy is not None:
                pod, demand, snapshot, names, node, grant = self._todo.popleft()
                active, policy = candidate(snapshot.views[node], grant, snapshot), self.policy
                watch = Stopwatch(self._clock)
                try:
                    steps = watch.timed(self._choose(demand, snapshot, names, watch))
                    (other,) = await self._turns.run(steps, chore=True)
                except BudgetSpent:
                    self.left_out += 1
                    continue
                if self.policy is policy:
                    self._known[pod.uid] = Comparison(str(pod.key), self._now(), active, other)
                    self._known.move_to_end(pod.uid)
                    if len(self._known) > _REMEMBERED:
                        self._known.popitem(last=False)
            self._something.clear()

    def _choose(
        self, demand: Asked, snapshot: Snapshot, names: Sequence[str], watch: Stopwatch
    ) -> Iterator[tuple[Candidate | None] | None]:
        """Steps that end with what the candidate policy would have chosen."""
        if not isinstance(demand, Demand):
            yield (None,)
            return
        budget = Budget(_WORK_SECONDS, sys.maxsize, watch)
        budget.keep()
        rules = self._judge.rules(snapshot, budget)
        ranking = self._rankings.at_hand(demand)
        yield from in_pieces(partial(run_out, ranking.catch_up(snapshot, rules)))
        try:
            found = shortlist(ranking, demand, snapshot, names).nodes
        except WireError:  # filter needed but a few of the names, and nobody had read them all
            found = ()
        yield (candidate(snapshot.views[found[0][0]], found[0][1], snapshot) if found else None,)
