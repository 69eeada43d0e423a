"""The cheapest restarts after which pods fit that do not fit now, and where the restarted pods go.

Domains are tried in the order of their lower bounds (fits.py), until the bound of the next one is not below the cost
of the best advice. In a domain with few restarts, all sets of them are tried, the cheapest first. In a larger one,
the slots of one pod each that cost least are made free until the pods fit, or else whole nodes; then every restart is
dropped that they do not need, the dearest first. After that, the cheapest sets are tried, up to a number of them.

For each set, the wanted pods get their places first. Then the restarted pods get theirs on other nodes, the largest
first, and at the end on the free rest of the same nodes: a taint reserves these meanwhile. Pods without a place cost
WAIT_COST for each GPU, as in the proof. Further restarts are tried that may give it one, if they cost less than that.

Of each set and its further restarts, the cheapest advice is proved if it seems better than the best one: it costs what
the proof says.

At the end come the sets after which more GPUs wait than must, however the pods are packed. For these, other orders of
the restarts and other reserved nodes are tried (orders.py). In a cluster of few nodes these are all sets that may be
cheaper, so only the number of these ways limits the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import heappop, heappush
from itertools import combinations, islice, takewhile
from math import inf
from typing import NamedTuple

from extender.api.label_domains import natural
from extender.base.deadline import DeadlineExceeded
from extender.defrag.clusters import NO_NODES, Cluster, Domain, Nodes, Placed
from extender.defrag.fits import Fit, fit_of
from extender.defrag.orders import Orders, Refill, Steps, refill
from extender.defrag.restarts import (
    WAIT_COST,
    Asked,
    Restart,
    cost_of,
    deletion_order,
    disruptions,
    gpus_in,
    sizes_of,
    within,
)
from extender.explain import free_devices

_MAX_EXHAUSTIVE = 12  # restarts of a domain of which all sets are tried
_MAX_SETS = 1 << _MAX_EXHAUSTIVE  # of a domain with more restarts; the cheapest
_MAX_ASKED = 64  # further such questions of one domain, that tell which restarts are needed
_MAX_TRIES = 512  # sets of one domain that the filter or the planner is asked about
_MAX_ADDED = 256  # sets of further restarts of an advice; of more, single ones and those that the waiting pods need
_MAX_TRIALS = 2048  # sets for which all restarted pods are placed
_MAX_STEPS = 1 << 14  # restarts that are placed, plans of gangs, and sets of reserved nodes, for other orders
_MAX_STEP_NODES = 1 << 19  # steps times nodes of the cluster: a step takes longer in a large one
_PROOF_STEPS = 512  # a proof on few nodes takes as long as so many steps
_FEW_NODES = 8  # of a cluster of which any may be reserved, and all sets are tried; in a larger one, fewer
_MAX_LARGE = 8  # domains with many restarts
_NEAR_FACTOR = 1.1  # of the least cost: as good


class AdviceKind(StrEnum):
    """The answer. GAVE_UP: a limit ended the search before it had any advice; there may be one."""

    FITS = "fits"
    ADVICE = "advice"
    IMPOSSIBLE = "impossible"
    GAVE_UP = "gave-up"


@dataclass(frozen=True, slots=True)
class Advice:
    """Restarts in their order, and what comes of them."""

    verdict: AdviceKind
    restarts: tuple[Restart, ...] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)  # of the wanted pods, by UID
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by name of the restart: of its new pods
    reserved: Nodes = NO_NODES  # until the wanted pods have their places
    cost: float = 0.0  # infinite if the proof did not place the wanted pods
    least: float = 0.0  # no way costs less: neither this advice, nor what the limits left out
    ends: tuple[Restart, ...] = ()  # what ends by itself before

    @property
    def is_cheapest(self) -> bool:
        """False: a limit ended the search, and there may be an advice that is cheaper by more than a tenth."""
        return self.verdict is not AdviceKind.GAVE_UP and self.cost <= _NEAR_FACTOR * self.least < inf


Prove = Callable[[Advice], float]
"""What an advice costs in its proof; infinite if that does not place the wanted pods."""


def advise(
    cluster: Cluster, asked: Asked, restarts: Collection[Restart], budgets: Mapping[str, int], prove: Prove
) -> Advice:
    """The cheapest of these restarts with which the pods fit. `budgets` are the disruptions that each budget allows."""
    ordered, memory = sorted(restarts, key=_by_order), cluster.memory
    memory.by_node, memory.domains = _by_node(ordered), {}
    cluster.count_free([*asked.pods, *(pod for one in ordered for pod in one.pods)])
    search = _Search(cluster, asked, ordered, memory.by_node, budgets, prove)
    try:
        now = cluster.place(asked)
        if now is not None:
            return Advice(AdviceKind.FITS, nodes=now.nodes)
        search.run()
    except DeadlineExceeded:
        search.leave_out(search.least)
    if search.best is None:
        return Advice(AdviceKind.IMPOSSIBLE if search.left_out == inf else AdviceKind.GAVE_UP)
    return replace(search.best, least=min(search.left_out, search.best.cost))


def over_budget(
    cluster: Cluster, asked: Asked, restarts: Collection[Restart], budgets: Mapping[str, int]
) -> Mapping[str, int]:
    """The disruptions that the cheapest restarts need that make room, of each budget that allows fewer.

    Empty if no restarts make room, or none was found before the deadline. `advise` comes first.
    """
    if not any(one.budgets for one in restarts):
        return {}
    every = dict.fromkeys(budgets, sum(len(one.pods) for one in restarts))
    search = _Search(cluster, asked, sorted(restarts, key=_by_order), cluster.memory.by_node, every, None)
    with suppress(DeadlineExceeded):
        search.run()
    needed = disruptions(search.best.restarts) if search.best is not None else {}
    return {name: pods for name, pods in needed.items() if pods > budgets.get(name, 0)}


class _Trial(NamedTuple):
    """An advice, with the cluster in which all its pods have their new places."""

    advice: Advice
    refill: Refill
    nodes: Sequence[str]  # for the wanted pods


class _Open(NamedTuple):
    """A set of restarts after which more GPUs wait than must. `least` is what it costs at least in any order."""

    least: float
    number: int
    nodes: Sequence[str]  # for the wanted pods
    chosen: Sequence[Restart]


class _Search:
    """Looks for the best advice among restarts, which are sorted. Advice that costs `most` or more is not looked for.

    An inner search, which proves nothing, looks for room for a pod or a gang that was restarted. It gets only the
    restarts of each node.
    """

    def __init__(
        self,
        cluster: Cluster,
        asked: Asked,
        restarts: Sequence[Restart],
        by_node: Mapping[str, Sequence[Restart]],
        budgets: Mapping[str, int],
        prove: Prove | None,
        most: float = inf,
    ) -> None:
        self._cluster = cluster.knowing(asked)
        self._asked = asked
        self._restarts = restarts
        self._budgets = budgets
        self._most = most
        self._prove = prove
        self._trials = 0
        self._tried: set[object] = set()  # sets of restarts with further ones, and the nodes of the wanted pods
        self._floor = 0.0  # the least cost of waiting
        self._by_node = by_node
        self._wanted = Counter[int]()  # the wanted pods by their GPUs, as far as these are known
        self._unsettled: list[_Trial] = []
        self._open: list[_Open] = []
        self.least = 0.0  # the search finds no advice below this cost, unless a limit left it out
        self.best: Advice | None = None
        self.left_out = inf  # the least cost of what a limit left out

    def run(self) -> None:
        """Find `best`. Raises DeadlineExceeded; then it has the best so far."""
        fit = fit_of(self._cluster, self._asked, self._by_node)
        if fit is None:
            return
        self._wanted = fit.pods
        # If the fleet has fewer free GPUs than the wanted pods get, restarted pods lack the difference in any case.
        free = self._cluster.free_by_node()
        self._floor = WAIT_COST * max(gpus_in(fit.pods) - gpus_in(free), 0) if free is not None else 0.0
        try:
            self._try_domains(fit)
        except DeadlineExceeded:
            self.leave_out(self.least)
            self.settle()
        if fit.gave_up:
            self.leave_out(self.least)
        self._cluster.memory.context.deadline.check_time()
        if self._prove is not None:
            self._try_orders(is_certain=not fit.gave_up)

    def _try_domains(self, fit: Fit) -> None:
        """Try the sets of each domain that may have the best. Raises DeadlineExceeded, also after too many trials."""
        large = 0
        for domain in fit.domains():
            if domain.bound + self._floor >= self._limit:
                break
            if not fit.has_amounts(domain):
                continue
            self.least = self.least or domain.bound + self._floor  # the bound of the first domain is the lowest
            if len(domain.restarts) <= _MAX_EXHAUSTIVE:
                if fit.fits(domain, domain.restarts):
                    self._try_sets(fit, domain)
            elif large == _MAX_LARGE:
                self.leave_out(domain.bound + self._floor)
            elif self._try_slots(fit, domain):
                large += 1
                self._try_sets(fit, domain)

    def leave_out(self, least: float) -> None:
        """A limit leaves out what costs so much at least."""
        self.left_out = min(self.left_out, least)

    @property
    def _limit(self) -> float:
        return self._most if self.best is None else min(self._most, self.best.cost)

    # -- one domain ------------------------------------------------------------------------------------------

    def _try_sets(self, fit: Fit, domain: Domain) -> None:
        """Try the sets of the restarts of a domain, the cheapest first, without those that have one that fits.

        None is tried if the bound says that the best advice is not dearer.
        """
        fitting, needed, tries, asked = list[frozenset[str]](), list[frozenset[str]](), 0, 0
        if domain.bound + self._floor >= self._limit:
            return
        for number, chosen in enumerate(_cheapest_first(domain.restarts)):
            if cost_of(chosen) + self._floor >= self._limit:
                return
            if number == _MAX_SETS:
                self.leave_out(cost_of(chosen) + self._floor)
                return
            names = frozenset(one.name for one in chosen)
            if any(one <= names for one in fitting) or any(map(names.isdisjoint, needed)):
                continue
            if not within(self._budgets, chosen):
                continue
            if not fit.may_fit(domain, chosen):
                continue
            tries += 1
            if tries > _MAX_TRIES:
                self.leave_out(cost_of(chosen) + self._floor)
                return
            if fit.fits(domain, chosen):
                fitting.append(names)
                self._try(fit.nodes(domain, chosen), chosen)
            elif len(domain.nodes) == 1 and len(names) < len(domain.restarts) and asked < _MAX_ASKED:
                # For a gang, each question would take a plan.
                needed.append(_needed(fit, domain, names))
                asked += len(domain.restarts) - len(names)

    def _try_slots(self, fit: Fit, domain: Domain) -> bool:
        """Free slots of a domain until the pods fit, and drop what they do not need.

        False if they do not fit, or only with more disruptions than the budgets allow.
        """
        names = [name for name in domain.nodes if name in self._by_node]
        names.sort(key=lambda name: (cost_of(self._by_node[name]), natural(name)))
        whole_nodes = [self._by_node[name] for name in names]
        for slots in (fit.slots(domain), whole_nodes):
            for count in _growing(len(slots)):
                chosen = self._allowed(slots[:count])
                if fit.may_fit(domain, chosen) and fit.fits(domain, chosen):
                    chosen = _only_needed(fit, domain, chosen, slots[:count])
                    self._try(fit.nodes(domain, chosen), chosen)
                    return True
        if len(self._allowed(whole_nodes)) < len(domain.restarts):
            self.leave_out(domain.bound + self._floor)
        return False

    def _allowed(self, slots: Sequence[Sequence[Restart]]) -> list[Restart]:
        """The restarts of these slots, as many as the budgets allow, the cheapest first."""
        found = list[Restart]()
        for one in sorted({one.name: one for slot in slots for one in slot}.values(), key=_by_order):
            if not one.budgets or within(self._budgets, [*found, one]):
                found.append(one)
        return found

    # -- the rest of the cluster -----------------------------------------------------------------------------

    def _try(self, nodes: Sequence[str], chosen: Sequence[Restart]) -> None:
        """Place all pods after these restarts, the wanted ones on these nodes. Further restarts may cost less."""
        found = self._placed(nodes, chosen)
        while found is not None and found.refill.waiting_gpus and self._prove is not None:
            more = (self._placed(nodes, one) for one in self._additions(found, tuple(nodes)))
            best = min((one for one in more if one is not None), key=_cost, default=found)
            if _cost(best) >= _cost(found):
                break
            found = best
        self.settle()

    def _placed(self, nodes: Sequence[str], chosen: Sequence[Restart]) -> _Trial | None:
        """The wanted pods get their places on these nodes, and then those that are restarted get theirs."""
        self._trials += 1
        if self._trials > _MAX_TRIALS:
            raise DeadlineExceeded
        wanted = self._cluster.without(chosen).place(self._asked, among=nodes)
        if wanted is None:
            return None
        reserved = self._asked.holding(wanted.nodes)
        found = refill(wanted.cluster, deletion_order(chosen), reserved)
        self._unsettled.append(_Trial(_advice(wanted, found, reserved), found, nodes))
        return self._unsettled[-1]

    def settle(self) -> None:
        """Prove the trials that may be the best, the cheapest first, and note those that other orders may make cheaper.

        It proves at least one, also when the time is over. Raises DeadlineExceeded.
        """
        trials, self._unsettled = sorted(self._unsettled, key=_cost), []
        for number, trial in enumerate(trials):
            if number and trial.advice.cost < self._limit:
                self._cluster.memory.context.deadline.check_time()
            cost, chosen = self._proved(trial.advice), trial.advice.restarts
            if self._prove is not None and cost > cost_of(chosen):
                least = self._least_cost(chosen)
                if cost > least:
                    self._open.append(_Open(least, len(self._open), trial.nodes, chosen))

    def _least_cost(self, chosen: Sequence[Restart]) -> float:
        """What a set of restarts costs at least, in any order."""
        waiting = self._cluster.without(chosen).least_waiting(map(sizes_of, chosen), self._wanted)
        return cost_of(chosen) + WAIT_COST * waiting

    def _proved(self, advice: Advice) -> float:
        """The cost of an advice, in its proof if it may be the best, which it becomes then."""
        cost = advice.cost
        if cost < self._limit:
            cost = cost if self._prove is None else self._prove(advice)
            if self.best is None or cost < self.best.cost:
                self.best = replace(advice, cost=cost)
        return cost

    def _additions(self, found: _Trial, nodes: tuple[str, ...]) -> Iterator[tuple[Restart, ...]]:
        """The restarts of an advice with a few more that may give those a place that wait, and cost less than that."""
        advice, cluster = found.advice, found.refill.cluster
        names, lacking = {one.name for one in advice.restarts}, found.refill.waiting_gpus
        free = cluster.free_by_node()
        most = lacking if free is None else min(lacking, gpus_in(free) + found.refill.held_gpus)
        saved = WAIT_COST * most  # the most that they may save
        if not saved:
            return
        others = [one for one in self._restarts if one.name not in names]
        saving = takewhile(lambda more: cost_of(more) < saved, _cheapest_first(others))
        sets: list[Sequence[Restart]] = list(islice(saving, _MAX_ADDED + 1))
        if len(sets) > _MAX_ADDED:
            cheapest = [cost_of(others[:2]), *(one.cost for one in others[_MAX_EXHAUSTIVE:][:1])]
            self.leave_out(cost_of(advice.restarts) + min(cheapest) + self._floor)
            sets = [*([one] for one in others[:_MAX_EXHAUSTIVE]), *self._found_for(found)]
        for more in sets:
            together = (*advice.restarts, *more)
            tried = nodes, frozenset(one.name for one in together)
            if cost_of(together) + self._floor >= min(self._limit, advice.cost):
                continue
            if tried not in self._tried and cost_of(more) < saved and within(self._budgets, together):
                self._tried.add(tried)
                yield together

    def _found_for(self, found: _Trial) -> Iterator[Sequence[Restart]]:
        """For each restart that waits, the cheapest others that make room for its gang, or for one of its pods."""
        cluster, gpus = found.refill.cluster, {one.name: one.gpus for one in found.advice.restarts}
        by_node = dict(self._by_node)
        for name in {name for one in found.advice.restarts for name in one.nodes}:
            by_node[name] = [one for one in by_node[name] if one.name not in gpus]
            if not by_node[name]:
                del by_node[name]
        for name, waiting in found.refill.waiting.items():
            is_gang = cluster.knowing(waiting).gang(waiting) is not None
            asked = waiting if is_gang else replace(waiting, pods=waiting.pods[:1])
            inner = _Search(cluster, asked, (), by_node, self._budgets, None, WAIT_COST * gpus[name])
            inner.run()
            if inner.best is not None:
                yield inner.best.restarts

    # -- other orders ----------------------------------------------------------------------------------------

    def _try_orders(self, *, is_certain: bool) -> None:
        """Other orders of the restarts and other reserved nodes, for the sets that may cost least first.

        In a cluster of few nodes, it tries every set that may be cheaper, also those that a limit left out before.
        """
        if self.best is None and self.left_out == inf:
            return
        steps = Steps(min(_MAX_STEPS, _MAX_STEP_NODES // len(self._cluster.snapshot.node_infos)))
        opened = self._open
        if self._are_few_nodes and is_certain:
            self.left_out = inf
            opened = list(self._every_set())
        for one in sorted(opened):
            self.least = one.least
            if one.least >= self._limit:
                return
            for wanted, reserved in self._reservations(one, steps):
                self._try_order(one, wanted, reserved, steps)
                if steps.left <= 0:
                    self.leave_out(one.least)
                    return
                if one.least >= self._limit:
                    break

    def _every_set(self) -> Iterator[_Open]:
        """All sets that may be cheaper than the best advice, on whatever nodes the wanted pods get their places."""
        nodes = sorted(self._cluster.snapshot.node_infos, key=natural)
        for number, chosen in enumerate(_cheapest_first(self._restarts)):
            if cost_of(chosen) + self._floor >= self._limit:
                return
            if number == _MAX_SETS:
                self.leave_out(cost_of(chosen) + self._floor)
                return
            if within(self._budgets, chosen) and (least := self._least_cost(chosen)) < self._limit:
                yield _Open(least, number, nodes, chosen)

    def _try_order(self, one: _Open, wanted: Placed, reserved: Nodes, steps: Steps) -> None:
        orders = Orders(one.chosen, reserved, steps)
        orders.below = self._below(one)
        for found in orders.better(wanted.cluster):
            advice = _advice(wanted, found, reserved)
            if self._proved(advice) > advice.cost:
                if self._are_few_nodes:
                    steps.left -= _PROOF_STEPS
                else:
                    self.leave_out(advice.cost)
            self._cluster.memory.context.deadline.check_time()
            orders.below = self._below(one)

    @property
    def _are_few_nodes(self) -> bool:
        return len(self._cluster.snapshot.node_infos) <= _FEW_NODES

    def _below(self, one: _Open) -> float:
        """An advice with this set is the best if fewer GPUs wait."""
        return (self._limit - cost_of(one.chosen)) / WAIT_COST

    def _reservations(self, one: _Open, steps: Steps) -> Iterator[tuple[Placed, Nodes]]:
        """Places for the wanted pods, with the nodes to reserve: theirs, and others that restarted pods might take.

        At the end come all nodes of a small cluster: then serve plans no restarted gang meanwhile. If one is left, a
        gang fails there, and pauses.
        """
        after, infos = self._cluster.without(one.chosen), self._cluster.snapshot.node_infos
        found = list(self._wanted_places(after, one.nodes, steps))
        names = set(after.changed)
        if self._are_few_nodes:
            names |= {name for name, info in infos.items() if free_devices(info)}
        for more in range(len(names)):
            for wanted in found:
                own = self._asked.holding(wanted.nodes)
                for further in combinations(sorted(names - own), more):
                    steps.left -= 1
                    yield wanted, own.union(further)
        if self._are_few_nodes:
            yield from ((wanted, frozenset(infos)) for wanted in found if len(names) < len(infos))

    def _wanted_places(self, after: Cluster, nodes: Sequence[str], steps: Steps) -> Iterator[Placed]:
        """Each set of nodes on which the wanted pods may be. `after` is the cluster after the restarts."""
        usual = after.place(self._asked, among=nodes)
        if usual is None:
            return
        yield usual
        seen = {self._asked.holding(usual.nodes)}
        for size in range(1, len(self._asked.pods) + 1):
            for names in combinations(nodes, size):
                if steps.left <= 0:
                    return
                steps.left -= 1
                placed = after.place(self._asked, among=names)
                if placed is not None and (own := self._asked.holding(placed.nodes)) not in seen:
                    seen.add(own)
                    yield placed


def _by_node(restarts: Iterable[Restart]) -> dict[str, list[Restart]]:
    found: dict[str, list[Restart]] = {}
    for one in restarts:
        for name in one.nodes:
            found.setdefault(name, []).append(one)
    return found


def _advice(wanted: Placed, found: Refill, reserved: Nodes) -> Advice:
    cost = cost_of(found.order) + WAIT_COST * found.waiting_gpus
    return Advice(AdviceKind.ADVICE, found.order, wanted.nodes, found.places, reserved, cost)


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


def _only_needed(fit: Fit, domain: Domain, chosen: list[Restart], slots: Sequence[Sequence[Restart]]) -> list[Restart]:
    """The restarts without those of whole slots, and then without single ones, that the pods do not need."""
    for slot in reversed(slots):
        chosen = _without(fit, domain, chosen, slot)
    for one in sorted(chosen, key=_by_order, reverse=True):
        chosen = _without(fit, domain, chosen, [one])
    return chosen


def _needed(fit: Fit, domain: Domain, names: frozenset[str]) -> frozenset[str]:
    """The names of restarts of which a set needs one at least, as those with these names do not make room.

    All others together do not make room either, so no set without one of these has to be tried. As few as possible:
    of two halves, each keeps what it needs besides the other one (QuickXplain).
    """

    def few_of(some: Sequence[str], besides: Sequence[str], *, is_new: bool) -> Sequence[str]:
        left_out = {*besides}
        if is_new and not fit.fits(domain, [one for one in domain.restarts if one.name not in left_out]):
            return []
        if len(some) == 1:
            return some
        first, second = some[: len(some) // 2], some[len(some) // 2 :]
        of_second = few_of(second, [*besides, *first], is_new=True)
        return [*few_of(first, [*besides, *of_second], is_new=bool(of_second)), *of_second]

    return frozenset(few_of([one.name for one in domain.restarts if one.name not in names], (), is_new=False))


def _without(fit: Fit, domain: Domain, chosen: list[Restart], dropped: Sequence[Restart]) -> list[Restart]:
    """The restarts without some that the pods do not need; all of them if they need these."""
    left = [one for one in chosen if one not in dropped]
    is_enough = left and len(left) < len(chosen) and fit.may_fit(domain, left) and fit.fits(domain, left)
    return left if is_enough else chosen


def _by_order(one: Restart) -> tuple[float, int, str]:
    return one.order
