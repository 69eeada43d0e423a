"""The baseline of scores: facts about all nodes, the mix of requests that Berth expects, and the demand by product.

Both are learned from the cluster's recent allocated claims: anybody can create pods that wait, and claims that no pod
uses. If there are too many claims, those of the namespace with the most go first. Shares are rounded, and change only
after one moved far: every change invalidates all scores that rankings store.

The demand for a product is that of the jobs that cannot use every GPU; all other jobs leave these products to them. A
job names products if its selectors, with those of its device class, match some of a driver's products and not all: by
the name, the memory, or anything else. Berth evaluates the selectors once, on one GPU of each product. An update
tries selectors of one request, as costly ones take some 30 ms, and the demand changes when all are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from extender.allocation import FleetBaseline, NodeInfo
from extender.allocation.nodes.locality import Locality, Nearness
from extender.api.claim_specs import DeviceRequest
from extender.api.device_classes import DeviceClass
from extender.api.gpu_topology import DEFAULT_MIX, WHOLE, Fabric, Graph, RequestMix, RequestShape, whole_gpus
from extender.api.resource_claims import MAX_RESULTS, Claim
from extender.api.resource_slices import Device
from extender.base.fair_lru import FairLRU
from extender.cel import CelError, CompileError
from extender.cel.dra import Masks
from extender.topology.affinity import nearest
from extender.topology.sets import best_gbps
from extender.vendors import GPU, OTHER, amount_of_memory, driver_of

_MAX_CLAIMS = 512  # claims remembered
_MIN_CLAIMS = 32  # claims before the learned mix replaces the default mix
_SHARE_STEP = 1 / 64  # the shares of jobs are rounded to multiples of this
_MIN_JOBS, _MIN_GPUS = 1 / 32, 1 / 16  # of all jobs, or of the GPUs that they ask for: shapes below both are left out
_MIN_MOVE = 1 / 8  # the mix changes after a share moved by more than this, the demand after it moved by this
_EIGHTH = WHOLE // 8  # fractions of a GPU are rounded up to multiples of this
_MAX_CHARACTERS = 1024  # characters of a claim's selectors
_SELECTOR_BYTES = 4 << 20  # of the compiled selectors: some hundreds of usual ones
_MAX_COST = 20_000  # of CEL's cost for one evaluation: a millisecond
_DEMAND_STEP = 1 / 16  # the shares of products are rounded to multiples of this


class ProductSelectors(NamedTuple):
    """The device class and the selectors of a request, without long ones."""

    class_name: str
    selectors: tuple[str, ...]


class ProductStock:
    """The number of GPUs of each product in the fleet, and one GPU of each with its driver."""

    def __init__(self) -> None:
        self.gpus: Counter[str] = Counter()
        self.samples: dict[str, tuple[Device, str]] = {}

    def add(self, node_info: NodeInfo, fabric: Fabric, amount: int) -> None:
        """Count the published GPUs of a node `amount` times: 1 or -1."""
        for position, bit in enumerate(node_info.gpu_bits):
            product = fabric.product_at(position)
            if bit < 0 or not product:
                continue
            self.gpus[product] += amount
            if not self.gpus[product]:
                del self.gpus[product], self.samples[product]
            elif product not in self.samples:
                one = node_info.inventory.devices[bit]
                self.samples[product] = one.device, one.driver


class ProductDemand:
    """How much of each product the jobs need that name products; see FleetBaseline.named.

    Shares are rounded, and change only after one moved far: each change invalidates all scores.
    """

    def __init__(self) -> None:
        self.named: Mapping[str, float] = MappingProxyType({})
        self.is_partial = False  # selectors are left to be tried
        self._admitted: dict[ProductSelectors, frozenset[str]] = {}  # for these samples and classes
        self._samples: dict[str, tuple[Device, str]] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._compiled = Masks(selector_bytes=_SELECTOR_BYTES)

    def is_outdated(self, stock: ProductStock, classes: Mapping[str, DeviceClass]) -> bool:
        """Whether selectors may admit other products than at the last update."""
        return self._samples != stock.samples or self._classes != classes

    def update(
        self, asked: Mapping[ProductSelectors, int], stock: ProductStock, classes: Mapping[str, DeviceClass]
    ) -> None:
        """Compute the demand again. `asked` has the GPUs that jobs ask for with each of them, in any unit."""
        if self.is_outdated(stock, classes):
            self._admitted, self._samples, self._classes = {}, dict(stock.samples), dict(classes)
        known = self._admitted
        new = [selectors for selectors in asked if selectors not in known]
        self._admitted = {selectors: known[selectors] for selectors in asked if selectors in known}
        self._admitted |= {selectors: self._admits(selectors) for selectors in new[:1]}
        self.is_partial = len(new) > 1
        if self.is_partial:
            return
        total, fleet = sum(asked.values()), stock.gpus.total()
        found: dict[str, float] = dict.fromkeys(stock.gpus, 0.0)
        for selectors, gpus in asked.items():
            admitted = self._admitted[selectors]
            drivers = {self._samples[product][1] for product in admitted}
            alike = {product for product, (_, driver) in self._samples.items() if driver in drivers}
            if len(admitted) == len(alike):
                continue
            # Each GPU that will do is as likely as any other, and on a full fleet all jobs take `fleet` GPUs.
            choice = sum(stock.gpus[product] for product in admitted)
            for product in admitted:
                found[product] += gpus / total * fleet / choice
        moved = max((abs(min(share, 1) - self.named.get(product, 0)) for product, share in found.items()), default=0)
        if moved >= _MIN_MOVE or self.named.keys() - found.keys():
            rounded = {
                product: min(round(share / _DEMAND_STEP) * _DEMAND_STEP, 1.0)
                for product, share in sorted(found.items())
            }
            self.named = MappingProxyType({product: share for product, share in rounded.items() if share})

    def _admits(self, selectors: ProductSelectors) -> frozenset[str]:
        """The products whose GPUs match them. Selectors without an answer are left out."""
        class_ = self._classes.get(selectors.class_name)
        found = set(self._samples)
        for text in (*(class_.selectors if class_ is not None else ()), *selectors.selectors):
            selector = self._compiled.selector(text)
            if isinstance(selector, CompileError):
                continue
            try:
                found = {one for one in found if selector.match(*self._samples[one], _MAX_COST)}
            except CelError:
                continue
        return frozenset(found)


class _Requested(NamedTuple):
    """What a claim asks for: the number of GPUs, bytes of memory of a shared GPU or 0, and which GPUs it admits."""

    gpus: int
    memory: int
    selectors: ProductSelectors


class RequestMixEstimator:
    """Counts the requests of the last allocated claims."""

    def __init__(self) -> None:
        self._claims: FairLRU[str, _Requested] = FairLRU(_MAX_CLAIMS)  # by UID of the claim
        self._counts: Counter[_Requested] = Counter()
        self._changed = False
        self._mix = DEFAULT_MIX
        self._shares = _shares(dict(DEFAULT_MIX))
        self._requests_changed = False
        self._demand = ProductDemand()

    def __len__(self) -> int:
        """How many different requests are counted."""
        return len(self._counts)

    def observe(self, claim: Claim) -> None:
        """Count a claim, if it is allocated. A known UID is ignored."""
        if claim.allocation is None or claim.uid in self._claims:
            return
        requested = _requested(claim)
        if requested is None:
            return
        self._counts[requested] += 1
        self._changed = self._requests_changed = True
        for _, lost in self._claims.put(claim.key.namespace, claim.uid, requested):
            self._counts[lost] -= 1
            if not self._counts[lost]:
                del self._counts[lost]

    def mix(self, most_memory: int) -> RequestMix:
        """The expected request mix; the same object until it changes. `most_memory` is in bytes, of the largest GPU."""
        if self._changed and self._counts.total() >= _MIN_CLAIMS:
            self._changed = False
            self._refresh(most_memory)
        return self._mix

    def named(self, stock: ProductStock, classes: Mapping[str, DeviceClass], most_memory: int) -> Mapping[str, float]:
        """See FleetBaseline.named; the same object until it changes."""
        outdated = self._requests_changed or self._demand.is_partial or self._demand.is_outdated(stock, classes)
        if outdated and self._counts.total() >= _MIN_CLAIMS:
            self._requests_changed = False
            by_selectors: Counter[ProductSelectors] = Counter()
            for asked, count in self._counts.items():
                shape = _shape(asked.gpus, asked.memory, most_memory)
                by_selectors[asked.selectors] += count * shape.gpus * shape.milli
            self._demand.update(by_selectors, stock, classes)
        return self._demand.named

    def _refresh(self, most_memory: int) -> None:
        counts: Counter[RequestShape] = Counter()
        for asked, count in self._counts.items():
            counts[_shape(asked.gpus, asked.memory, most_memory)] += count
        now, before = _shares(counts), self._shares
        none = _Shares(0.0, 0.0)
        pairs = [(now.get(shape, none), before.get(shape, none)) for shape in now.keys() | before.keys()]
        if max(abs(a - b) for pair in pairs for a, b in zip(*pair, strict=True)) > _MIN_MOVE:
            self._shares = now
            kept = [shape for shape, one in now.items() if one.jobs >= _MIN_JOBS or one.gpus >= _MIN_GPUS]
            kept = kept or [max(now, key=lambda shape: now[shape].jobs)]
            self._mix = tuple((shape, _rounded(now[shape].jobs)) for shape in sorted(kept))


class _Shares(NamedTuple):
    """The share of a shape in all jobs, and in the GPUs that they ask for."""

    jobs: float
    gpus: float


def _shares(counts: Mapping[RequestShape, float]) -> Mapping[RequestShape, _Shares]:
    asked = {shape: count * shape.gpus * shape.milli for shape, count in counts.items()}
    jobs, gpus = sum(counts.values()), sum(asked.values())
    return {shape: _Shares(count / jobs, asked[shape] / gpus) for shape, count in counts.items()}


def _rounded(jobs: float) -> float:
    """A share that is not 0.

    Few large jobs need many of the GPUs. Without them in the mix, small pods break the boards that they need.
    """
    return max(round(jobs / _SHARE_STEP), 1) * _SHARE_STEP


def _shape(gpus: int, requested: int, most_memory: int) -> RequestShape:
    if gpus > 1 or not requested or not most_memory:
        return whole_gpus(gpus)
    return RequestShape(1, min(max(-(-requested * 8 // most_memory), 1), 8) * _EIGHTH)


def _requested(claim: Claim) -> _Requested | None:
    """What the claim asks for. Its first request of GPUs says which ones it admits.

    None for a claim without ExactCount requests of GPUs, and for a claim that no node can satisfy: any tenant can
    create claims with a count up to 2^63-1. Devices of an unknown driver count as GPUs.
    """
    results = claim.allocation.results if claim.allocation is not None else ()
    others = {
        result.request.partition("/")[0]
        for result in results
        if driver_of(result.device.driver).kind not in (GPU, OTHER)
    }
    options = [r.alternatives[0] for r in claim.spec.requests if r.alternatives and r.name not in others]
    counted = [o for o in options if o.mode == "ExactCount" and not o.admin_access]
    if not counted:
        return None
    gpus = sum(option.count for option in counted)
    if not 0 < gpus <= MAX_RESULTS:
        return None
    first = counted[0]
    short = sum(map(len, first.selectors)) <= _MAX_CHARACTERS
    selectors = ProductSelectors(first.class_name, first.selectors if short else ())
    return _Requested(gpus, _memory(first) if gpus == 1 else 0, selectors)


def _memory(option: DeviceRequest) -> int:
    """The requested bytes of memory; 0 without a memory request."""
    amount = amount_of_memory(option.capacity) if option.capacity else None
    return amount.ceil() if amount is not None else 0


T = TypeVar("T")


class FleetBaselineCounter:
    """Counts the hardware of all nodes, so that the FleetBaseline follows node changes at low cost."""

    def __init__(self) -> None:
        self._graphs: Counter[tuple[Graph, int]] = Counter()  # the mask has the GPUs that the node's driver publishes
        self._memory: Counter[int] = Counter()
        self._localities: Counter[Locality] = Counter()
        self._stock = ProductStock()
        self._baseline: FleetBaseline | None = None
        self._is_changed = False

    def replace(self, old: NodeInfo | None, new: NodeInfo | None) -> None:
        if (
            old is not None
            and new is not None
            and old.fabric is new.fabric
            and old.locality is new.locality
            and (old.inventory is new.inventory or old.inventory.has_same_gpus(new.inventory))
        ):
            return
        for node_info, amount in ((old, -1), (new, 1)):
            if node_info is not None and node_info.locality is not None:
                self._add(self._localities, node_info.locality, amount)
            if node_info is None or node_info.fabric is None:
                continue
            published = sum(1 << position for position, bit in enumerate(node_info.gpu_bits) if bit >= 0)
            self._add(self._graphs, (node_info.fabric.graph, published), amount)
            self._stock.add(node_info, node_info.fabric, amount)
            devices = node_info.inventory.devices
            for memory in {devices[bit].memory_bytes for bit in node_info.gpu_bits if bit >= 0}:
                self._add(self._memory, memory, amount)

    def _add(self, counts: Counter[T], key: T, amount: int) -> None:
        before = counts[key]
        counts[key] = before + amount
        if not counts[key]:
            del counts[key]
        if not before or not before + amount:
            self._is_changed = True

    def fleet(self, estimator: RequestMixEstimator, classes: Mapping[str, DeviceClass]) -> FleetBaseline:
        """The current baseline; the same object while the facts are the same: a new one makes all scores outdated."""
        most_memory = max(self._memory, default=0)
        mix, named = estimator.mix(most_memory), estimator.named(self._stock, classes, most_memory)
        known = self._baseline and (self._baseline.request_mix, self._baseline.named)
        if self._baseline is None or self._is_changed or known != (mix, named):
            found = _fleet(self._graphs, self._memory, self._localities, mix, named)
            if found != self._baseline:
                self._baseline = found
            self._is_changed = False
        return self._baseline


def _fleet(
    graphs: Iterable[tuple[Graph, int]],
    memory: Iterable[int],
    localities: Iterable[Locality],
    mix: RequestMix,
    named: Mapping[str, float],
) -> FleetBaseline:
    best: dict[int, float] = {}
    most = 0
    for graph, published in graphs:
        most = max(most, published.bit_count())
        for count in range(2, published.bit_count() + 1):
            best[count] = max(best.get(count, 0.0), best_gbps(graph, published, count))
    known = [amount for amount in memory if amount]
    near: dict[tuple[str, str], Nearness] = {}
    for one in localities:
        near.update(
            {kinds: found for kinds, found in nearest(one).items() if found > near.get(kinds, Nearness.UNKNOWN)}
        )
    return FleetBaseline(best, min(known, default=0), most, mix, near, named)
