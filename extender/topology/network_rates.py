"""Measured network bandwidths of machines, by the products of GPU and NIC: beside each other, and apart.

Users read them beside the pairs of a pod. The choice of devices never does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from extender.allocation.nodes import Inventory, Nearness, PoolDevice
from extender.api.drivers import product_of
from extender.topology.affinity import Pair

_NIC_PRODUCT = "dra.net/pciDevice"  # the attribute of DRANET with the name in the PCI database


class NetworkRate(NamedTuple):
    """GB/s of one NIC: with a GPU that is at least `near` to it, and with one that is far from it."""

    gpu: str  # a word of the product name
    nic: str
    near: Nearness
    near_gbps: float
    apart_gbps: float


# Source: what owners measured with all_reduce of NCCL and RCCL on the machines whose ResourceSlices are examples of
# DRANET (kubernetes-sigs/dranet, examples, 2026): AWS p4d.24xlarge, Azure ND GB300 v6, Azure ND MI300X v5.
# Two NICs of GB300 gave twice the bandwidth of one. MI300X: 42 to 49 GB/s.
_RATES = (
    NetworkRate("A100-SXM4-40GB", "Elastic Fabric Adapter", Nearness.ROOT, 11.35, 6.04),
    NetworkRate("GB300", "ConnectX", Nearness.NUMA, 56.0, 25.0),
    NetworkRate("MI300X", "ConnectX", Nearness.NUMA, 42.0, 6.0),
)


def predicted_network(inventory: Inventory, pairs: Iterable[Pair]) -> str:
    """The predicted bandwidth of a pod's NICs, as text; '' if it was not measured for each pair of a GPU and a NIC."""
    rates, near, apart = set[NetworkRate](), 0, 0
    for pair in pairs:
        rate = _rate(inventory.devices[pair.anchor], inventory.devices[pair.other])
        if rate is None:
            continue
        rates.add(rate)
        if pair.nearness >= rate.near:
            near += 1
        elif pair.nearness is Nearness.FAR:
            apart += 1
        else:
            return ""
    if len(rates) != 1:
        return ""
    (rate,) = rates
    if near and apart:
        return f"predicted {rate.near_gbps:.0f} GB/s per NIC that is near, {rate.apart_gbps:.0f} per NIC that is not"
    if near:
        return f"predicted {rate.near_gbps:.0f} GB/s per NIC, apart {rate.apart_gbps:.0f}"
    return f"predicted {rate.apart_gbps:.0f} GB/s per NIC, near {rate.near_gbps:.0f}"


def _rate(gpu: PoolDevice, nic: PoolDevice) -> NetworkRate | None:
    product, model = product_of(gpu.device, gpu.id.driver), nic.device.attributes.get(_NIC_PRODUCT)
    if not isinstance(model, str):
        return None
    return next((rate for rate in _RATES if rate.gpu in product and rate.nic in model), None)
