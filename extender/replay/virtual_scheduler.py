"""The queue and the cycles of kube-scheduler in a replay: one pod at a time, by priority, the longest waiting first.

A rejected pod is tried again when devices may have become free. If it is rejected again, so would be pods of the same
shape, and they are not asked; likewise gangs. The members of a gang are a class of their own in the queue, and all
other pods of a shape are one class.

`NodeRoom` is NodeResourcesFit: it filters, and scores by its strategy, LeastAllocated by default, MostAllocated in
scheduler-config/. One point of an extender weighs 200 there, and this score is at most 100: so it decides between nodes
with equal points of Berth.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Protocol

from extender.allocation import tolerates
from extender.api.nodes import Node, Toleration
from extender.api.pod_amounts import Amounts
from extender.api.pods import Pod
from extender.api.reasons import FREEABLE_CODES, Code
from extender.base.berth_errors import BerthError
from extender.replay.virtual_api import VirtualApi
from extender.runtime.supervisor import Supervisor
from extender.sandbox import backoff_seconds, tie_breaker
from extender.scheduling import may_run

NO_ROOM = "Insufficient cpu, memory or pods"
FORBIDDEN = Code.NODE_CONSTRAINTS.text
_FREEABLE = tuple(code.text.partition("{")[0] for code in FREEABLE_CODES)


@dataclass(frozen=True, slots=True)
class Offer:
    """The answer about a pod: scores by node, or the number of nodes for each reason; or an error.

    `lasting`: it would be the same for any pod, or gang, of this shape until devices become free. `most_allocated`: of
    nodes with equal scores kube-scheduler takes the fullest.
    """

    scores: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    lasting: bool = True
    most_allocated: bool = False


class Placing(Protocol):
    """Chooses the nodes of pods, and binds pods to them."""

    def offer(self, pod: Pod, names: Sequence[str]) -> Offer:
        """The nodes for a pod among those that have CPU, memory and a place for it."""
        ...

    async def bind(self, pod: Pod, node: str) -> None:
        """Bind a pod. Raises BerthError."""
        ...


@dataclass(slots=True)
class Waiting:
    """A pod without a node. `ready_at` is the end of its back-off, `number` its place in the queue."""

    pod: Pod
    of: Hashable  # its class
    shape: Hashable
    requests: Amounts
    in_gang: bool
    ready_at: float = 0.0
    failures: int = 0
    number: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0
    nodes: frozenset[str] | None = None  # that its constraints admit; None: all


class VirtualScheduler:
    """Schedules the pods that `add` was given. `room` is what each node has left."""

    def __init__(self, api: VirtualApi, placing: Placing, room: NodeRoom, supervisor: Supervisor, seed: int) -> None:
        self._api = api
        self._placing = placing
        self._room = room
        self._supervisor = supervisor
        self._seed = seed
        self._classes: dict[Hashable, dict[str, Waiting]] = {}
        self._number = 0
        self._due: list[tuple[tuple[int, int], Hashable]] = []  # classes, each with the place of its first pod
        self._is_due: set[Hashable] = set()
        self._refused: set[Hashable] = set()  # shapes that were rejected since devices became free
        self._wake = asyncio.Event()
        self._in_flight = 0  # binds
        self._node_of: dict[str, tuple[str, Amounts]] = {}  # UID of a pod that is or is being bound

    @property
    def waiting(self) -> list[Waiting]:
        """The pods without a node, without those that are being bound."""
        return [one for found in self._classes.values() for one in found.values()]

    @property
    def has_work(self) -> bool:
        """Whether a pod waits, or is being bound."""
        return bool(self._classes or self._in_flight)

    def add(self, waiting: Waiting) -> None:
        """A pod was created, or its bind failed."""
        self._number += 1
        waiting.number = self._number
        self._classes.setdefault(waiting.of, {})[waiting.pod.uid] = waiting
        self._make_due(waiting.of)

    def remove(self, uid: str, of: Hashable) -> None:
        """A pod was deleted."""
        self._take(uid, of)
        if (found := self._node_of.pop(uid, None)) is not None:
            self._room.give(*found)

    def requeue(self) -> None:
        """Try all waiting pods: devices may have become free."""
        self._refused.clear()
        for of in self._classes:
            self._make_due(of)

    async def run(self) -> None:
        """Schedule pods until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                _, of = heappop(self._due)
                self._is_due.discard(of)
                await self._try(of)

    def _make_due(self, of: Hashable) -> None:
        if of not in self._is_due:
            self._is_due.add(of)
            first = next(iter(self._classes[of].values()))
            heappush(self._due, ((-first.priority, first.number), of))
        self._wake.set()

    def _take(self, uid: str, of: Hashable) -> None:
        equals = self._classes.get(of, {})
        equals.pop(uid, None)
        if not equals:
            self._classes.pop(of, None)

    async def _try(self, of: Hashable) -> None:
        """Try the first pod of a class, and the class again if it gets a node."""
        now = asyncio.get_running_loop().time()
        waiting = next((one for one in self._classes.get(of, {}).values() if one.ready_at <= now), None)
        if waiting is None or waiting.shape in self._refused:
            return
        offer = self._placing.offer(waiting.pod, self._named(waiting))
        if offer.error:
            self._failed(waiting)
        elif not offer.scores:
            self._reject(waiting, offer)
        else:
            self._take(waiting.pod.uid, of)
            node = self._chosen(offer, waiting)
            self._node_of[waiting.pod.uid] = node, waiting.requests
            self._room.take(node, waiting.requests)
            if of in self._classes:
                self._make_due(of)
            self._in_flight += 1
            if waiting.in_gang:  # its members wait for each other in bind, so the next pod does not wait for them
                self._supervisor.spawn("gang-bind", self._bind(waiting, node))
            else:
                await self._bind(waiting, node)

    def _named(self, waiting: Waiting) -> Sequence[str]:
        """The nodes for which kube-scheduler asks its extender."""
        names = self._room.with_room(waiting.requests)
        return names if waiting.nodes is None else [name for name in names if name in waiting.nodes]

    def _chosen(self, offer: Offer, waiting: Waiting) -> str:
        """The best node."""
        best = max(offer.scores.values())
        names = (name for name, score in offer.scores.items() if score == best)
        equal = self._room.best(names, waiting.requests, most_allocated=offer.most_allocated)
        return tie_breaker(dict.fromkeys(equal, 0), self._seed, waiting.pod.key.name)

    def _reject(self, waiting: Waiting, offer: Offer) -> None:
        """No node. A gang is told, as the condition of a pod tells it: serve ends the plans of such members."""
        waiting.reasons = offer.reasons
        if waiting.nodes is not None:
            forbidden = len(self._room.names) - len(waiting.nodes)
            found = {**offer.reasons, NO_ROOM: offer.reasons.get(NO_ROOM, 0) - forbidden, FORBIDDEN: forbidden}
            waiting.reasons = {reason: count for reason, count in found.items() if count > 0}
        if offer.lasting:
            self._refused.add(waiting.shape)
        if waiting.in_gang:
            counts = ", ".join(sorted(f"{number} {reason}" for reason, number in waiting.reasons.items()))
            text = f"0/{len(self._room.names)} nodes are available: {counts}."
            if text != waiting.pod.unschedulable:
                waiting.pod = replace(waiting.pod, unschedulable=text, tried=True)
                self._api.put_pod(waiting.pod)

    async def _bind(self, waiting: Waiting, node: str) -> None:
        try:
            await self._placing.bind(waiting.pod, node)
        except BerthError as error:
            found = self._node_of.pop(waiting.pod.uid, None)
            if found is not None:  # it was not deleted meanwhile
                self._room.give(node, waiting.requests)
                waiting.reasons = {str(error): 1}
                self.add(waiting)
                self._failed(waiting)
        finally:
            self._in_flight -= 1

    def _failed(self, waiting: Waiting) -> None:
        """Try a pod again after its back-off."""
        delay = backoff_seconds(waiting.failures)
        waiting.failures += 1
        loop = asyncio.get_running_loop()
        waiting.ready_at = loop.time() + delay
        loop.call_at(waiting.ready_at, self._again, waiting)

    def _again(self, waiting: Waiting) -> None:
        if waiting.pod.uid in self._classes.get(waiting.of, {}):
            self._make_due(waiting.of)


def tally(reasons: Mapping[str, str], names: Sequence[str], of: int) -> Counter[str]:
    """The number of nodes for each reason, if `reasons` has those of `names`, and there are `of` nodes."""
    found = Counter(reasons.values())
    if len(names) < of:
        found[NO_ROOM] = of - len(names)
    return found


def likely_reason(reasons: Mapping[str, int]) -> str:
    """The most frequent of the reasons that the end of other pods can remove, or else of all; '' without any.

    A pod waits for the nodes that could serve it, even if most nodes never can. What the nodes lack that it may use
    comes before what keeps it from others.
    """
    freeable = {text: count for text, count in reasons.items() if text.startswith(_FREEABLE)}
    best = freeable or {text: count for text, count in reasons.items() if text != FORBIDDEN} or reasons
    return max(best, key=lambda text: (best[text], text), default="")


def excluding_taint(pod: Pod, nodes: Iterable[Node]) -> str:
    """The taint on most of the nodes that a pod could use if it tolerated all taints; '' if there is none.

    It is the end of the reason FORBIDDEN.
    """
    tolerant = replace(pod, tolerations=(Toleration(operator="Exists"),))
    found = Counter(
        f": taint {taint.key}:{taint.effect} is not tolerated"
        for node in nodes
        if may_run(tolerant, node)
        for taint in node.taints
        if not any(tolerates(one, taint) for one in pod.tolerations)
    )
    return max(found, key=lambda text: (found[text], text), default="")


class NodeRoom:
    """The CPU, memory and pods that each node has left of `total`. `names` are all nodes, sorted."""

    def __init__(self, total: Mapping[str, Amounts], left: Mapping[str, Amounts]) -> None:
        self.names = sorted(left)
        self._total = total
        self._left = {name: left[name] for name in self.names}
        self._full = {name for name in self.names if left[name].pods < 1}

    def take(self, node: str, asked: Amounts) -> None:
        """A pod is placed on a node."""
        cpu, ram, pods = self._left[node]
        self._put(node, Amounts(cpu - asked.cpu, ram - asked.ram, pods - asked.pods))

    def give(self, node: str, asked: Amounts) -> None:
        """A pod has left a node."""
        cpu, ram, pods = self._left[node]
        self._put(node, Amounts(cpu + asked.cpu, ram + asked.ram, pods + asked.pods))

    def with_room(self, asked: Amounts) -> list[str]:
        """The nodes that have these amounts, sorted. The caller must not change the list."""
        need_cpu, need_ram, need_pods = asked
        if not need_cpu and not need_ram:
            return [name for name in self.names if name not in self._full] if self._full else self.names
        return [
            name
            for name, (cpu, ram, pods) in self._left.items()
            if cpu >= need_cpu and ram >= need_ram and pods >= need_pods
        ]

    def best(self, names: Iterable[str], asked: Amounts, *, most_allocated: bool) -> list[str]:
        """The nodes with the highest score; all of them if neither CPU nor memory is asked for."""
        if not asked.cpu and not asked.ram:
            return list(names)
        scores = {name: self._free(name, asked) for name in names}
        best = (min if most_allocated else max)(scores.values())
        return [name for name, score in scores.items() if score == best]

    def _free(self, name: str, asked: Amounts) -> int:
        """The percentage of CPU and memory that would stay free, in whole numbers as kube-scheduler computes it."""
        left, total = self._left[name], self._total[name]
        cpu = (left.cpu - asked.cpu) * 100 // max(total.cpu, 1)
        return (cpu + (left.ram - asked.ram) * 100 // max(total.ram, 1)) // 2

    def _put(self, node: str, left: Amounts) -> None:
        self._left[node] = left
        (self._full.add if left.pods < 1 else self._full.discard)(node)
