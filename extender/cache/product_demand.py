"""The demand for each product by the jobs that cannot use every GPU. All other jobs leave these products to them.

A job names products if its selectors, with those of its device class, match some of a driver's products and not all: by
the name, the memory, or anything else. Berth evaluates the selectors once, on one GPU of each product. An update
tries selectors of one request, as costly ones take some 30 ms, and the demand changes when all are known.

Only allocated claims count, as in the request mix: anybody can create pods that wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from extender.allocation import NodeInfo
from extender.api.claim_specs import DeviceRequest
from extender.api.device_classes import DeviceClass
from extender.api.gpu_topology import Fabric
from extender.api.resource_slices import Device
from extender.cel import CelError, CompileError
from extender.cel.dra import Masks

_MAX_CHARACTERS = 1024  # characters of a claim's selectors
_SELECTOR_BYTES = 4 << 20  # of the compiled selectors: some hundreds of usual ones
_MAX_COST = 20_000  # of CEL's cost for one evaluation: a millisecond
_STEP = 1 / 16  # shares are rounded to multiples of this
_MIN_MOVE = 1 / 8  # the demand changes after a share moved by at least this


class ProductSelectors(NamedTuple):
    """The device class and the selectors of a request."""

    class_name: str
    selectors: tuple[str, ...]


def product_selectors(request: DeviceRequest) -> ProductSelectors:
    """Those of a request. Long selectors are left out."""
    short = sum(map(len, request.selectors)) <= _MAX_CHARACTERS
    return ProductSelectors(request.class_name, request.selectors if short else ())


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
            rounded = {product: min(round(share / _STEP) * _STEP, 1.0) for product, share in sorted(found.items())}
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
