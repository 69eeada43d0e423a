"""Measured network bandwidths of machines, by the products of GPU and NIC: beside each other, and apart.

Users read them beside the pairs of a pod. The choice of devices never does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from extender.allocation.nodes import Inventory, Nearness, PoolDevice
from extender.topology.affinity import Pair
from extender.vendors import product_of

_NIC_PRODUCT = "dra.net/pciDevice"  # the attribute of DRANET with the name in the PCI database


class NetworkRate(NamedTuple):
    """GB/s with GPUs that are at least `near` to their NICs, and with GPUs that are far from them: of one NIC, or of
    `nics` NICs together, where only this number was measured.
    """

    gpu: str  # a word of the product name
    nic: str
    near: Nearness
    near_gbps: float
    apart_gbps: float
    nics: int = 0


# Source: what owners measured with the tests of NCCL and RCCL on the machines whose ResourceSlices are examples of
# DRANET (kubernetes-sigs/dranet, examples, 2026): AWS p4d.24xlarge, Azure ND GB300 v6, Azure ND MI300X v5.
# Two NICs of GB300 gave twice the bandwidth of one. Four GPUs and four NICs of MI300X gave 42 to 49 GB/s.
_RATES = (
    NetworkRate("A100-SXM4-40GB", "Elastic Fabric Adapter", Nearness.ROOT, 11.35, 6.04),
    NetworkRate("GB300", "ConnectX", Nearness.NUMA, 56.0, 25.0),
    NetworkRate("MI300X", "ConnectX", Nearness.NUMA, 42.0, 6.0, nics=4),
)


def predicted_network(inventory: Inventory, pairs: Iterable[Pair]) -> str:
    """The predicted bandwidth of a pod's NICs, as text; '' if it was not measured for each pair of a GPU and a NIC."""
    rates, nics, near, apart = set[NetworkRate](), set[int](), 0, 0
    for pair in pairs:
        rate = _rate(inventory.devices[pair.anchor], inventory.devices[pair.other])
        if rate is None:
            continue
        rates.add(rate)
        nics.add(pair.other)
        near += pair.nearness >= rate.near
        apart += pair.nearness is Nearness.FAR
        if not (pair.nearness >= rate.near or pair.nearness is Nearness.FAR):
            return ""
    if len(rates) != 1:
        return ""
    (rate,) = rates
    return _text(rate, len(nics), near, apart)


def _text(rate: NetworkRate, nics: int, near: int, apart: int) -> str:
    """The bandwidth of so many NICs, of which pairs are near and apart."""
    if rate.nics and (nics != rate.nics or (near and apart)):
        return ""
    of, close, far = f"with {nics} NICs" if rate.nics else "per NIC", f"{rate.near_gbps:.0f}", f"{rate.apart_gbps:.0f}"
    if near and apart:
        return f"predicted {close} GB/s per NIC that is near, {far} per NIC that is not"
    return f"predicted {close} GB/s {of}, apart {far}" if near else f"predicted {far} GB/s {of}, near {close}"


def _rate(gpu: PoolDevice, nic: PoolDevice) -> NetworkRate | None:
    product, model = product_of(gpu.device, gpu.id.driver), nic.device.attributes.get(_NIC_PRODUCT)
    if not isinstance(model, str):
        return None
    return next((rate for rate in _RATES if rate.gpu in product and rate.nic in model), None)
