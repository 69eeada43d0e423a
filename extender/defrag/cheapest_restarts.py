"""The cheapest restarts after which pods fit that do not fit now, and where the restarted pods go.

Domains are tried in the order of their lower bounds (bounds.py), until the bound of the next one is not below the cost
of the best advice. In a domain with few restarts, all sets of them are tried, the cheapest first. In a larger one,
the places of one pod each that cost least are made free until the pods fit, or else whole nodes; then every restart is
taken back that they do not need, the dearest first. After that, the cheapest sets are tried, up to a number of them.

For each set, the wanted pods get their places first. Then the restarted pods get theirs on other nodes, the largest
first, and at the end on the free rest of the same nodes: a taint reserves these meanwhile. Pods without a place cost
WAIT_COST for each GPU, as in the proof. Further restarts are tried that may give it one, if they cost less than that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import heappop, heappush
from itertools import islice, takewhile
from math import inf
from typing import NamedTuple

from extender.base.deadline import DeadlineExceeded
from extender.defrag.bounds import free_gpus
from extender.defrag.clusters import NO_NODES, Cluster, Nodes
from extender.defrag.fits import Domain, Fit, fit_of
from extender.defrag.restarts import WAIT_COST, Asked, Restart, again, cost_of, deletion_order, within
from extender.gangs.domains import natural

_MAX_EXHAUSTIVE = 12  # restarts of a domain of which all sets are tried
_MAX_SETS = 4096  # of a domain with more restarts; the cheapest
_MAX_TRIES = 512  # sets of one domain that the filter or the planner is asked about
_MAX_ADDED = 256  # sets of further restarts of an advice; of more, single ones and those that the waiting pods need
_MAX_TRIALS = 2048  # sets for which all restarted pods are placed
_ROUNDING = 1e-6  # of sums of costs
_OTHERS = 7  # advices besides the best
_MAX_LARGE = 8  # domains with many restarts


class Verdict(StrEnum):
    """The answer. GAVE_UP: a limit ended the search before it had any advice; there may be one."""

    FITS = "fits"
    ADVICE = "advice"
    IMPOSSIBLE = "impossible"
    GAVE_UP = "gave-up"


@dataclass(frozen=True, slots=True)
class Advice:
    """Restarts in their order, and what comes of them."""

    verdict: Verdict
    restarts: tuple[Restart, ...] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)  # of the wanted pods, by UID
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by name of the restart: of its new pods
    reserved: Nodes = NO_NODES  # until the wanted pods have their places
    waiting_gpus: int = 0  # of restarted pods that find no place
    cost: float = 0.0
    is_cheapest: bool = True  # False: a limit ended the search, and there may be a cheaper advice
    others: tuple[Advice, ...] = ()  # that were tried, too, the next cheapest first


def advise(cluster: Cluster, asked: Asked, restarts: Collection[Restart], budgets: Mapping[str, int]) -> Advice:
    """The cheapest of these restarts with which the pods fit. `budgets` are the disruptions that each budget allows."""
    search = _Search(cluster, asked, restarts, budgets)
    try:
        now = cluster.place(asked)
        if now is not None:
            return Advice(Verdict.FITS, nodes=now.nodes)
        search.run()
    except DeadlineExceeded:
        search.is_complete = False
    if search.best is None:
        return Advice(Verdict.IMPOSSIBLE if search.is_complete else Verdict.GAVE_UP, is_cheapest=search.is_complete)
    is_cheapest = search.is_complete or search.best.cost <= search.least + _ROUNDING
    others = (one for one in sorted(search.found, key=lambda one: one.cost) if one is not search.best)
    return replace(search.best, is_cheapest=is_cheapest, others=tuple(islice(others, _OTHERS)))


class _Trial(NamedTuple):
    """An advice, the cluster with all its pods in their new places, and by restart those that find none."""

    advice: Advice
    cluster: Cluster
    waiting: Mapping[str, Asked]


class _Search:
    """Looks for the best advice. Advice that costs `most` or more is not looked for."""

    def __init__(
        self,
        cluster: Cluster,
        asked: Asked,
        restarts: Collection[Restart],
        budgets: Mapping[str, int],
        most: float = inf,
    ) -> None:
        self._cluster = cluster.knowing(asked)
        self._asked = asked
        self._restarts = sorted(restarts, key=_by_order)
        self._budgets = budgets
        self._most = most
        self._is_inner = most < inf  # no further restarts for pods that find no place
        self._trials = 0
        self._tried: set[object] = set()  # sets of restarts with further ones, and the nodes of the wanted pods
        self._floor = 0.0  # the least cost of waiting
        self._by_node: dict[str, list[Restart]] = {}
        for one in self._restarts:
            for name in one.nodes:
                self._by_node.setdefault(name, []).append(one)
        self.least = 0.0  # no advice costs less
        self.best: Advice | None = None
        self.found: list[Advice] = []  # all
        self.is_complete = True

    def run(self) -> None:
        """Find `best`. Raises DeadlineExceeded; then it has the best so far."""
        fit = fit_of(self._cluster, self._asked, self._by_node)
        if fit is None:
            return
        free, large = free_gpus(self._cluster.snapshot.node_infos.values()), 0
        # If the fleet has fewer free GPUs than the wanted pods get, restarted pods lack the difference in any case.
        self._floor = WAIT_COST * max(fit.gpus - free, 0) if free is not None else 0.0
        domains = sorted(fit.domains(), key=lambda one: (one.bound, natural(one.nodes[0])))
        self.least = domains[0].bound + self._floor if domains else 0.0
        for domain in domains:
            if domain.bound + self._floor >= self._limit:
                break
            if len(domain.restarts) <= _MAX_EXHAUSTIVE:
                if fit.fits(domain, domain.restarts):
                    self._try_sets(fit, domain, 1 << _MAX_EXHAUSTIVE)
            elif large == _MAX_LARGE:
                self.is_complete = False
            elif self._try_places(fit, domain):
                large += 1
                self._try_sets(fit, domain, _MAX_SETS)
        self.is_complete &= not fit.gave_up

    @property
    def _limit(self) -> float:
        return self._most if self.best is None else min(self._most, self.best.cost)

    # -- one domain ------------------------------------------------------------------------------------------

    def _try_sets(self, fit: Fit, domain: Domain, most: int) -> None:
        """Try all sets of the restarts of a domain, the cheapest first, without those that have one that fits.

        At most as many as `most`. None is tried if the bound says that the best advice is not dearer.
        """
        fitting, tries = list[frozenset[str]](), 0
        if domain.bound + self._floor >= self._limit:
            return
        for number, chosen in enumerate(_cheapest_first(domain.restarts)):
            if cost_of(chosen) + self._floor >= self._limit:
                return
            if number == most:
                self.is_complete = False
                return
            names = frozenset(one.name for one in chosen)
            if any(one <= names for one in fitting) or not within(self._budgets, chosen):
                continue
            if not fit.may_fit(domain, chosen):
                continue
            tries += 1
            if tries > _MAX_TRIES:
                self.is_complete = False
                return
            if fit.fits(domain, chosen):
                fitting.append(names)
                self._try(fit.nodes(domain, chosen), chosen)

    def _try_places(self, fit: Fit, domain: Domain) -> bool:
        """Free places of a domain until the pods fit, and take back what they do not need.

        False if they do not fit, or only with more disruptions than the budgets allow.
        """
        names = [name for name in domain.nodes if name in self._by_node]
        names.sort(key=lambda name: (cost_of(self._by_node[name]), natural(name)))
        whole_nodes = [self._by_node[name] for name in names]
        for places in (fit.places(domain), whole_nodes):
            for count in _growing(len(places)):
                chosen = self._allowed(places[:count])
                if fit.may_fit(domain, chosen) and fit.fits(domain, chosen):
                    chosen = _only_needed(fit, domain, chosen, places[:count])
                    self._try(fit.nodes(domain, chosen), chosen)
                    return True
        self.is_complete &= len(self._allowed(whole_nodes)) == len(domain.restarts)
        return False

    def _allowed(self, places: Sequence[Sequence[Restart]]) -> list[Restart]:
        """The restarts of these places, as many as the budgets allow, the cheapest first."""
        found = list[Restart]()
        for one in sorted({one.name: one for place in places for one in place}.values(), key=_by_order):
            if not one.budgets or within(self._budgets, [*found, one]):
                found.append(one)
        return found

    # -- the rest of the cluster -----------------------------------------------------------------------------

    def _try(self, nodes: Sequence[str], chosen: Sequence[Restart]) -> None:
        """Place all pods after these restarts, the wanted ones on these nodes. Keep the cheapest advice."""
        found = self._placed(nodes, chosen)
        while found is not None and found.advice.waiting_gpus and not self._is_inner:
            more = (self._placed(nodes, one) for one in self._additions(found, tuple(nodes)))
            best = min((one for one in more if one is not None), key=_cost, default=found)
            if _cost(best) >= _cost(found):
                break
            found = best

    def _keep(self, advice: Advice) -> None:
        """Note an advice at once: a limit may end the search before the next one."""
        self.found.append(advice)
        if advice.cost < self._limit:
            self.best = advice

    def _placed(self, nodes: Sequence[str], chosen: Sequence[Restart]) -> _Trial | None:
        """The wanted pods get their places on these nodes, and then those that are restarted get theirs."""
        self._trials += 1
        if self._trials > _MAX_TRIALS:
            raise DeadlineExceeded
        wanted = self._cluster.without(chosen).place(self._asked, among=nodes)
        if wanted is None:
            return None
        cluster, reserved, ordered = wanted.cluster, frozenset(wanted.nodes.values()), deletion_order(chosen)
        waiting, places = {one.name: again(one) for one in ordered}, {one.name: dict[str, str]() for one in ordered}
        for barred in (reserved, NO_NODES):
            for name, asked in list(waiting.items()):
                placed = cluster.place(asked, barred)
                if placed is None:
                    continue
                cluster, places[name] = placed.cluster, {**places[name], **placed.nodes}
                if (left := asked.after(placed.nodes)) is None:
                    del waiting[name]
                else:
                    waiting[name] = left
        gpus = sum(one.waiting_gpus(waiting[one.name].pods) for one in ordered if one.name in waiting)
        cost = cost_of(chosen) + WAIT_COST * gpus
        advice = Advice(Verdict.ADVICE, ordered, wanted.nodes, places, reserved, gpus, cost)
        self._keep(advice)
        return _Trial(advice, cluster, waiting)

    def _additions(self, found: _Trial, nodes: tuple[str, ...]) -> Iterator[tuple[Restart, ...]]:
        """The restarts of an advice with a few more that may give those a place that wait, and cost less than that."""
        advice, cluster, waiting = found
        names, lacking = {one.name for one in advice.restarts}, advice.waiting_gpus
        in_part = any(one.is_whole and advice.places[one.name] for one in advice.restarts if one.name in waiting)
        free = None if in_part else free_gpus(cluster.snapshot.node_infos.values())
        saved = WAIT_COST * (lacking if free is None else min(lacking, free))  # the most that they may save
        if not saved:
            return
        others = [one for one in self._restarts if one.name not in names]
        saving = takewhile(lambda more: cost_of(more) < saved, _cheapest_first(others))
        sets: list[Sequence[Restart]] = list(islice(saving, _MAX_ADDED + 1))
        if len(sets) > _MAX_ADDED:
            self.is_complete = False
            sets = [*([one] for one in others[:_MAX_EXHAUSTIVE]), *self._found_for(found, others)]
        for more in sets:
            together = (*advice.restarts, *more)
            tried = nodes, frozenset(one.name for one in together)
            if cost_of(together) + self._floor >= self._limit:
                continue
            if tried not in self._tried and cost_of(more) < saved and within(self._budgets, together):
                self._tried.add(tried)
                yield together

    def _found_for(self, found: _Trial, others: Sequence[Restart]) -> Iterator[Sequence[Restart]]:
        """For each restart that waits, the cheapest others that make room for its gang, or for one of its pods."""
        cluster, gpus = found.cluster, {one.name: one.gpus for one in found.advice.restarts}
        for name, waiting in found.waiting.items():
            is_gang = cluster.knowing(waiting).gang(waiting) is not None
            asked = waiting if is_gang else replace(waiting, pods=waiting.pods[:1])
            inner = _Search(cluster, asked, others, self._budgets, WAIT_COST * gpus[name])
            inner.run()
            if inner.best is not None:
                yield inner.best.restarts


def _cost(found: _Trial) -> float:
    return found.advice.cost


def _cheapest_first(restarts: Sequence[Restart]) -> Iterator[tuple[Restart, ...]]:
    """All sets of at least one of the restarts, which are sorted by cost, the cheapest first."""
    costs = [one.cost for one in restarts]
    queue: list[tuple[float, tuple[int, ...]]] = [(costs[0], (0,))] if costs else []
    while queue:
        cost, chosen = heappop(queue)
        yield tuple(restarts[position] for position in chosen)
        last = chosen[-1]
        if last + 1 < len(costs):
            heappush(queue, (cost + costs[last + 1], (*chosen, last + 1)))
            heappush(queue, (cost - costs[last] + costs[last + 1], (*chosen[:-1], last + 1)))


def _growing(most: int) -> Iterator[int]:
    """Numbers from 1 to `most`, of large ones only some."""
    count = 1
    while count < most:
        yield count
        count += max(1, count // 4)
    if most:
        yield most


def _only_needed(fit: Fit, domain: Domain, chosen: list[Restart], places: Sequence[Sequence[Restart]]) -> list[Restart]:
    """The restarts without those of whole places, and then without single ones, that the pods do not need."""
    for place in reversed(places):
        chosen = _without(fit, domain, chosen, place)
    for one in sorted(chosen, key=_by_order, reverse=True):
        chosen = _without(fit, domain, chosen, [one])
    return chosen


def _without(fit: Fit, domain: Domain, chosen: list[Restart], dropped: Sequence[Restart]) -> list[Restart]:
    """The restarts without some that the pods do not need; all of them if they need these."""
    left = [one for one in chosen if one not in dropped]
    is_enough = left and len(left) < len(chosen) and fit.may_fit(domain, left) and fit.fits(domain, left)
    return left if is_enough else chosen


def _by_order(one: Restart) -> tuple[float, int, str]:
    return one.order
