"""Where the devices of a node are, who says so, and which free devices are beside a free GPU."""

from __future__ import annotations

from extender.allocation import NodeInfo
from extender.allocation.nodes import Nearness, Places, published_place
from extender.api.drivers import is_part, numa_attributes
from extender.api.fields import Json
from extender.base.bits import members
from extender.topology.device_pairs import near_words

_MOST_BESIDE = 4  # names of one driver beside a GPU
_DRIVER, _AGENT, _GPU, _ROOT = "driver", "agent", "its GPU", "its PCIe root"


def place_detail(node_info: NodeInfo, bit: int) -> Json:
    """The PCIe roots and the NUMA nodes of a device, the first one counts, with the source of each, as JSON."""
    pool_device = node_info.inventory.devices[bit]
    own_roots, own_numa = published_place(pool_device.device, pool_device.id.driver, numa_attributes)
    state = None
    if node_info.fabric is not None and bit in node_info.gpu_bits:
        state = node_info.fabric.gpus[node_info.gpu_bits.index(bit)]
    is_of_gpu = is_part(pool_device.device, pool_device.id.driver)
    roots, roots_from = own_roots, _DRIVER
    if not roots and state is not None and state.pcie_root:
        roots, roots_from = (state.pcie_root,), _AGENT
    elif not roots and is_of_gpu:
        roots, roots_from = _roots_like(node_info, bit), _GPU
    agent = (state.numa,) if state is not None and state.numa is not None else ()
    places = node_info.places
    numa = places.numa[bit] if places is not None else own_numa + tuple(n for n in agent if n not in own_numa)
    other = _GPU if is_of_gpu else _ROOT
    numa_from = [_DRIVER if node in own_numa else _AGENT if node in agent else other for node in numa]
    return {"roots": list(roots), "roots_from": roots_from if roots else "", "numa": list(numa), "numa_from": numa_from}


def _roots_like(node_info: NodeInfo, bit: int) -> tuple[str, ...]:
    """The PCIe root of another device that is on the same one."""
    places = node_info.places
    if places is None or not places.roots[bit]:
        return ()
    for other, pool_device in enumerate(node_info.inventory.devices):
        roots, _ = published_place(pool_device.device, pool_device.id.driver, numa_attributes)
        if roots and places.roots[other] == places.roots[bit]:
            return roots
    return ()


def beside(node_info: NodeInfo, bit: int) -> list[Json]:
    """The nearest free devices of each other driver, as JSON, without those that are far or not known to be near."""
    places = node_info.places
    if places is None or node_info.busy >> bit & 1:
        return []
    driver = places.kind(bit)
    found = (_nearest(node_info, places, bit, mask) for other, mask in places.kinds if other != driver)
    return [one for one in found if one is not None]


def _nearest(node_info: NodeInfo, places: Places, bit: int, mask: int) -> Json | None:
    free = members(mask & ~node_info.busy)
    best = max((places.nearness(bit, other) for other in free), default=Nearness.FAR)
    if best <= Nearness.FAR:
        return None
    near = [other for other in free if places.nearness(bit, other) is best]
    devices = node_info.inventory.devices
    return {
        "driver": devices[near[0]].id.driver,
        "devices": [devices[other].id.device for other in near[:_MOST_BESIDE]],
        "more": len(near[_MOST_BESIDE:]),
        "nearness": near_words(places, bit, near[0]),
    }
