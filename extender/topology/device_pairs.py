"""The pairs of devices that a pod gets on its node, for users: "gpu-4 + nic-2: same PCIe root".

A pair that could be nearer says why it is not: the nearer devices that its request accepts are in use, or there are
none. Names differ between equal nodes. So these texts belong to one node, and the score has only numbers of pairs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from extender.allocation import Features, NodeInfo
from extender.allocation.nodes import Inventory, PoolDevice
from extender.allocation.nodes.locality import Locality, Nearness
from extender.allocation.what_if import claims_problem
from extender.api.claim_specs import ClaimSpec
from extender.api.device_classes import DeviceClass
from extender.api.resource_claims import Result
from extender.base.berth_errors import InvalidClaim
from extender.base.bits import lowest, members, union
from extender.base.text_limits import counted
from extender.cel.dra import Masks
from extender.topology.affinity import Pair, pairs_of
from extender.vendors import GPU, NIC, driver_of, product_of, whole_identity

_MAX_SHOWN = 8  # pairs in a text; all of a machine with 8 GPUs
_NOUNS = {"gpu": "GPU", "nic": "NIC", "cpu": "CPU group"}
_WORDS = {
    Nearness.ROOT: "same PCIe root",
    Nearness.NUMA: "same NUMA node",
    Nearness.NUMA_LIST: "near NUMA nodes",
    Nearness.FAR: "other NUMA node",
}
_PAIR = re.compile(r"(\S+) \+ (\S+): ([^,;]+)(?:, ([^;]+))?")
_MORE = re.compile(r"and ([0-9]{1,4}) more pairs?")
_NETWORK = "predicted "


def possible_devices(
    node_info: NodeInfo,
    results: Iterable[Result],
    specs: Iterable[ClaimSpec],
    classes: Callable[[str], DeviceClass | None],
    masks: Masks,
) -> int:
    """The devices of a node that claims with these specs may have, as a mask; all if they have those of one driver."""
    if len({one.device.driver for one in results}) <= 1:
        return -1
    named = ((str(number), spec) for number, spec in enumerate(specs))
    found, problem = 0, claims_problem(node_info, named, classes, masks, Features())
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for option in chain.from_iterable(request.alternatives for request in spec.requests):
            with suppress(InvalidClaim):
                found |= problem.select(name, option).match
    return found


class Accepted(NamedTuple):
    """The devices that a request accepts, and those of them that are certainly free, as masks."""

    match: int
    free: int
    is_bound: bool = False  # whether a constraint may forbid devices that match


class DevicePair(NamedTuple):
    """Two devices of one pod that are used together. `note` says why they are not nearer, or is empty."""

    device: str
    other: str
    nearness: str
    note: str = ""

    @property
    def text(self) -> str:
        """The pair as users read it."""
        return f"{self.device} + {self.other}: {self.nearness}{f', {self.note}' if self.note else ''}"


class DevicePairs(NamedTuple):
    """At most 8 pairs of a pod, the number of further ones, and the predicted bandwidth of the network as text."""

    pairs: tuple[DevicePair, ...] = ()
    more: int = 0
    network: str = ""

    def text(self) -> str:
        """All of it in one line, which `parse_pairs` reads; '' without pairs."""
        more = f"and {self.more} more pair{'s' if self.more > 1 else ''}" if self.more else ""
        return "; ".join(filter(None, (*(pair.text for pair in self.pairs), more, self.network)))


def device_pairs(node_info: NodeInfo, devices: int, accepted: Callable[[int], Accepted | None]) -> DevicePairs:
    """The pairs of a pod's devices; those that are far apart come first if there are too many.

    `accepted` gives what the request of a chosen device accepts; None for a device that the pod had before. Devices of
    drivers that say no locality, such as channels, are in no pair.
    """
    locality = node_info.locality
    if locality is None:
        return DevicePairs()
    found = pairs_of(locality, devices)
    shown = sorted(sorted(found, key=lambda pair: pair.nearness)[:_MAX_SHOWN])
    pairs_of_each = Counter(bit for pair in found for bit in pair[:2])
    return DevicePairs(
        tuple(_named(node_info, locality, pair, accepted, pairs_of_each) for pair in shown),
        len(found) - len(shown),
        predicted_network(node_info.inventory, found),
    )


def parse_pairs(text: str) -> DevicePairs:
    """Read a text of `DevicePairs.text`; what cannot be read is left out."""
    pairs, more, network = list[DevicePair](), 0, ""
    for part in text.split("; "):
        if found := _PAIR.fullmatch(part):
            pairs.append(DevicePair(found[1], found[2], found[3], found[4] or ""))
        elif counted := _MORE.fullmatch(part):
            more = int(counted[1])
        elif part.startswith(_NETWORK):
            network = part
    return DevicePairs(tuple(pairs), more, network)


def noun(driver: str) -> str:
    """What users call a device of this driver."""
    return _NOUNS.get(driver_of(driver).kind, "device")


def near_words(locality: Locality, one: int, other: int) -> str:
    """How near two devices are, in words."""
    nearness = locality.nearness(one, other)
    if nearness is Nearness.UNKNOWN:
        return "other PCIe root" if _are_on_two_roots(locality, one, other) else "not known how near"
    return _WORDS[nearness]


def _are_on_two_roots(locality: Locality, one: int, other: int) -> bool:
    """Whether it is certain that two devices are not on one PCIe root."""
    roots, others = locality.roots[one], locality.roots[other]
    return bool(roots and others and not roots & others)


def _named(
    node_info: NodeInfo,
    locality: Locality,
    pair: Pair,
    accepted: Callable[[int], Accepted | None],
    pairs_of_each: Mapping[int, int],
) -> DevicePair:
    devices, note = node_info.inventory.devices, ""
    if pair.nearness < Nearness.ROOT:
        for bit, partner in ((pair.other, pair.anchor), (pair.anchor, pair.other)):
            if (found := accepted(bit)) is not None:
                # One that is nearer to this partner may be farther from the device's other ones.
                note = _note(node_info, locality, pair, bit, partner, found, shares=pairs_of_each[bit] > 1)
                break
    names = devices[pair.anchor].device.name, devices[pair.other].device.name
    return DevicePair(*names, near_words(locality, pair.anchor, pair.other), note)


def _note(
    node_info: NodeInfo, locality: Locality, pair: Pair, chosen: int, partner: int, accepted: Accepted, *, shares: bool
) -> str:
    """Why the chosen device is not nearer to its partner; '' if that is not certain, or if a NUMA node is the best."""
    is_unknown = pair.nearness is Nearness.UNKNOWN
    if is_unknown and not _are_on_two_roots(locality, pair.anchor, pair.other):
        return ""
    least = Nearness.NUMA if is_unknown else pair.nearness  # of other roots, one may be as near as the other
    driver = locality.kind(chosen)
    same_kind = next(mask for name, mask in locality.kinds if name == driver)
    bits = members(accepted.match & same_kind)
    nearer = union([1 << bit for bit in bits if locality.nearness(partner, bit) > least])
    if free := nearer & accepted.free:
        return (
            ""
            if shares or accepted.is_bound
            else f"{node_info.inventory.devices[lowest(free)].device.name} is nearer and free"
        )
    if nearer & ~node_info.inventory.simple & ~node_info.busy:
        return ""  # taints, counters or capacity decide whether they are free
    if nearer:
        return f"no nearer {noun(driver)} is free"
    return f"no {noun(driver)} that fits is nearer" if pair.nearness is Nearness.FAR else ""


# -- measured network bandwidths -------------------------------------------------------------------------------
# Of machines, by the products and numbers of GPUs and NICs: beside each other, and apart. Users read them beside the
# pairs of a pod. The choice of devices never does.

_NIC_PRODUCT = "dra.net/pciDevice"  # the attribute of DRANET with the name in the PCI database


class NetworkRate(NamedTuple):
    """GB/s of so many GPUs with so many NICs: all pairs at least `near`, and all pairs far; 0 if not measured."""

    gpu: str  # a part of the product name
    gpus: int
    nic: str
    nics: int
    near: Nearness
    near_gbps: float
    apart_gbps: float = 0.0


# Source: what owners measured with the tests of NCCL and RCCL on two machines of a kind, whose ResourceSlices are
# examples of DRANET (kubernetes-sigs/dranet, 2026): AWS p4d.24xlarge, Azure ND GB300 v6, Azure ND MI300X v5.
_EFA, _AZURE = "Elastic Fabric Adapter", "ConnectX Family mlx5Gen Virtual Function"
_RATES = (
    NetworkRate("A100-SXM4-40GB", 1, _EFA, 1, Nearness.ROOT, 11.35, 6.04),
    NetworkRate("GB300", 1, _AZURE, 1, Nearness.NUMA, 56.0, 25.0),
    NetworkRate("GB300", 1, _AZURE, 2, Nearness.NUMA, 112.0),
    NetworkRate("MI300X", 4, _AZURE, 4, Nearness.NUMA, 42.53, 6.10),
    NetworkRate("MI300X", 8, _AZURE, 8, Nearness.NUMA, 67.73),
)


def predicted_network(inventory: Inventory, pairs: Iterable[Pair]) -> str:
    """The predicted bandwidth of a pod's GPUs with its NICs, as text; '' if nobody measured such a set."""
    devices, gpus, nics, nearness = inventory.devices, set[int](), set[int](), list[Nearness]()
    for pair in pairs:
        drivers = [devices[bit].driver for bit in (pair.anchor, pair.other)]
        if [driver_of(driver).kind for driver in drivers] == [GPU, NIC]:
            gpus.add(pair.anchor)
            nics.add(pair.other)
            nearness.append(pair.nearness)
    products = {_whole_product(devices[bit]) for bit in gpus}
    models = {str(devices[bit].device.attributes.get(_NIC_PRODUCT)) for bit in nics}
    if len(products) != 1 or len(models) != 1:
        return ""
    product, model = products.pop(), models.pop()
    for rate in _RATES:
        if (len(gpus), len(nics)) == (rate.gpus, rate.nics) and rate.gpu in product and rate.nic in model:
            return _text(rate, nearness)
    return ""


def _whole_product(gpu: PoolDevice) -> str:
    """The product of a whole GPU; '' for a part of one, which nobody measured."""
    return product_of(gpu.device, gpu.driver) if whole_identity(gpu.device, gpu.driver) else ""


def _text(rate: NetworkRate, nearness: list[Nearness]) -> str:
    near, apart = f"{rate.near_gbps:.0f}", f"{rate.apart_gbps:.0f}"
    of = f"GB/s with {counted(rate.nics, 'NIC')}"
    if all(one >= rate.near for one in nearness):
        return f"predicted {near} {of}" + (f", apart {apart}" if rate.apart_gbps else "")
    if rate.apart_gbps and all(one is Nearness.FAR for one in nearness):
        return f"predicted {apart} {of}, near {near}"
    return ""
