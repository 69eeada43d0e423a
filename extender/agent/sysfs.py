"""The place of a PCI device, as the kernel tells it in sysfs: its NUMA node and its PCIe root. Unknown is no error.

A container sees the host's sysfs, read-only, without a mount of its own. A virtual machine may know neither value:
then numa_node is -1, or the device is on no PCI root (VFs of Hyper-V).

Sources: Documentation/ABI/testing/sysfs-bus-pci and sysfs-devices-node of Linux; deviceattribute of
k8s.io/dynamic-resource-allocation for the form of a root.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_NODE = re.compile(r"node([0-9]{1,4})")


class Sysfs:
    """Reads below one root. NUMA nodes are read once, because they change with the machine only."""

    def __init__(self, root: Path = Path("/sys")) -> None:
        self._root = root
        self._nearest: dict[int, int | None] = {}

    def numa(self, address: str) -> int | None:
        """The NUMA node with CPUs next to a PCI device ('0000:65:00.0'); None if it is not known.

        NVML is not used: on Grace it returns the NUMA node of the GPU's own memory, as some kernels do. That node has
        no CPUs, and no NIC is on it. So the nearest node with CPUs stands for it.
        """
        if not address:
            return None
        node = _number(self._root / "bus/pci/devices" / address / "numa_node")
        if node is None or node < 0:
            return None
        if node not in self._nearest:
            self._nearest[node] = self._with_cpus(node)
        return self._nearest[node]

    def pcie_root(self, address: str) -> str:
        """The PCIe root of a PCI device, such as 'pci0000:64'; '' if it is not known.

        It is the first folder below /sys/devices on the way to the device, as for resource.kubernetes.io/pcieRoot.
        """
        if not address:
            return ""
        try:
            place = os.path.realpath(self._root / "bus/pci/devices" / address, strict=True)
            above = os.path.realpath(self._root / "devices", strict=True)
        except OSError:  # no such device, or links in a circle
            return ""
        first, _, device = os.path.relpath(place, above).partition("/")
        return first if device and _ROOT.fullmatch(first) else ""

    def _with_cpus(self, node: int) -> int | None:
        """The node itself if it has CPUs, else the nearest one that has; None if two are equally near."""
        nodes = self._nodes()
        if self._has_cpus(node):
            return node
        distances = _text(self._root / f"devices/system/node/node{node}/distance").split()
        near = sorted(
            (int(distance), other)
            for distance, other in zip(distances, nodes, strict=False)
            if distance.isdecimal() and len(distances) == len(nodes) and self._has_cpus(other)
        )
        tied = len(near) > 1 and near[0][0] == near[1][0]
        return near[0][1] if near and not tied else None

    def _nodes(self) -> list[int]:
        """The numbers of the online nodes, ascending. A distance file has one entry for each, in this order."""
        try:
            names = [path.name for path in (self._root / "devices/system/node").iterdir()]
        except OSError:
            return []
        return sorted(int(found[1]) for name in names if (found := _NODE.fullmatch(name)))

    def _has_cpus(self, node: int) -> bool:
        """Whether a node has CPUs. A sandbox that hides the nodes (gVisor) leaves the kernel's answer as it is."""
        try:
            return bool((self._root / f"devices/system/node/node{node}/cpulist").read_text().strip())
        except OSError:
            return True


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None
