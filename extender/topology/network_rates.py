"""Measured network bandwidths of machines, by the products and numbers of GPUs and NICs: beside each other, and apart.

Users read them beside the pairs of a pod. The choice of devices never does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from extender.allocation.nodes import Inventory, Nearness, PoolDevice
from extender.base.text_limits import counted
from extender.topology.affinity import Pair
from extender.vendors import GPU, NIC, driver_of, product_of, whole_identity

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
        drivers = [devices[bit].id.driver for bit in (pair.anchor, pair.other)]
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
    return product_of(gpu.device, gpu.id.driver) if whole_identity(gpu.device, gpu.id.driver) else ""


def _text(rate: NetworkRate, nearness: list[Nearness]) -> str:
    near, apart = f"{rate.near_gbps:.0f}", f"{rate.apart_gbps:.0f}"
    of = f"GB/s with {counted(rate.nics, 'NIC')}"
    if all(one >= rate.near for one in nearness):
        return f"predicted {near} {of}" + (f", apart {apart}" if rate.apart_gbps else "")
    if rate.apart_gbps and all(one is Nearness.FAR for one in nearness):
        return f"predicted {apart} {of}, near {near}"
    return ""
