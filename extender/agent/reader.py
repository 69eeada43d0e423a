"""Reads GPUs through NVML. A value that NVML does not give stays unknown; it is never an error.

As a program it is the agent's reader process: it prints the readings as a line of JSON for each line that it gets.
That process imports nothing else of Berth, and no package but `pynvml`, so that it needs little memory.

The place of a GPU (`Sysfs`) is what the kernel tells of its PCI device: its NUMA node and its PCIe root. A container
sees the host's sysfs, read-only, without a mount of its own. A virtual machine may know neither value: then numa_node
is -1, or the device is on no PCI root (VFs of Hyper-V).

Sources: Documentation/ABI/testing/sysfs-bus-pci and sysfs-devices-node of Linux; deviceattribute of
k8s.io/dynamic-resource-allocation for the form of a root; NVIDIA's NVML reference (fields, events), its XID catalogue,
logs of real machines.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from ctypes import byref
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_NODE = re.compile(r"node([0-9]{1,4})")


class Sysfs:
    """Reads below one root. NUMA nodes are read once, because they change with the machine only."""

    def __init__(self, root: Path) -> None:
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


T = TypeVar("T")

_GPU, _SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t
# NVML's enum of NVLink versions (1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0) to the major version.
_VERSIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
# nvmlGpuTopologyLevel_t to the position in model.gpu_topology.DISTANCES; None is unknown.
_LEVELS = {0: 1, 10: 1, 20: 2, 30: 3, 40: 4, 50: 5}
_FABRIC_COMPLETED = 3  # nvmlGpuFabricState
_MAX_LINKS = 36  # the most links of any GPU; older bindings of NVML say 18
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # of a field's value, by nvmlValueType_t
_LOST = frozenset({15, 16})  # GPU is lost, GPU needs a reset: only NVML that is begun anew sees the GPU again
_LOST_READINGS = 30  # while a GPU is lost, NVML begins anew once in so many readings: five minutes
_ACTIONS = {1: "needs a GPU reset", 2: "needs a node reboot", 3: "drain peer-to-peer", 4: "drain and reset"}
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})  # caused by a program, not by the GPU
_MAX_EVENTS = 64  # limit per reading
_RISING_ROUNDS = 60  # readings after a rise for which the GPU stays unhealthy: ten minutes of the agent's rounds
_ERROR_FIELDS = (
    "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
)
Field = Callable[[Any, str], int]


class Reader:
    """Reads all GPUs of a node. `nvml` is the pynvml module. One instance per process, one call at a time."""

    def __init__(self, nvml: Any, sysfs: Sysfs) -> None:
        self._nvml = nvml
        self._sysfs = sysfs
        self._health = HealthMonitor(nvml)
        self._readings = -1  # since NVML was begun; -1: it was not
        self._lost = False

    def read(self, xids: dict[str, int] | None = None) -> list[dict[str, Any]]:
        """Return the fields of a `Reading` for each GPU, in PCI order.

        `xids` are those that an earlier process has read, by UUID. Raises NVMLError only if NVML itself is missing.
        """
        self._begin()
        nvml = self._nvml
        self._health.remember(xids or {})
        handles = [
            handle
            for i in range(nvml.nvmlDeviceGetCount())
            if (handle := self._try(partial(nvml.nvmlDeviceGetHandleByIndex, i), None))
        ]
        addresses = [self._address(handle) for handle in handles]
        order = sorted(range(len(handles)), key=lambda i: (addresses[i], i))
        ordered = [handles[i] for i in order]
        self._health.listen({self._text(partial(nvml.nvmlDeviceGetUUID, handle)): handle for handle in ordered})
        peers = {addresses[i]: position for position, i in enumerate(order) if addresses[i]}
        return [self._gpu(handle, ordered, peers, position) for position, handle in enumerate(ordered)]

    def _begin(self) -> None:
        """Begin NVML, once; again while a GPU is lost. After an error the process ends, and the next one begins it."""
        if self._readings >= 0 and not (self._lost and self._readings >= _LOST_READINGS):
            self._readings += 1
            return
        if self._readings >= 0:
            self._health.stop_listening()
            self._try(self._nvml.nvmlShutdown, None)
        self._nvml.nvmlInit()
        self._readings, self._lost = 0, False

    def _gpu(self, handle: Any, handles: list[Any], peers: dict[str, int], position: int) -> dict[str, Any]:
        nvml = self._nvml
        links, switched = self._links(handle, peers, position)
        total, free, reserved = self._memory(handle)
        uuid = self._text(lambda: nvml.nvmlDeviceGetUUID(handle))
        errors = self._health.link_errors(uuid, handle, self._field)
        rows = self._try(lambda: nvml.nvmlDeviceGetRemappedRows(handle), None)
        address = self._address(handle)
        note = self._health.note(uuid, self._field(handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"), rows)
        return {
            "uuid": uuid,
            "product": self._text(lambda: nvml.nvmlDeviceGetName(handle)),
            "pci_bus_id": address,
            "numa": self._sysfs.numa(address),
            "pcie_root": self._sysfs.pcie_root(address),
            "links": links,
            "switch_links": switched,
            "link_mbps": self._field(handle, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON") if links or switched else 0,
            "nvlink_version": _VERSIONS.get(self._try(lambda: int(nvml.nvmlDeviceGetNvLinkVersion(handle, 0)), 0), 0),
            "pcie_generation": self._try(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)), 0),
            "distances": [self._distance(handle, other, i == position) for i, other in enumerate(handles)],
            "memory_total_bytes": total,
            "memory_free_bytes": free,
            "memory_reserved_bytes": reserved,
            "mig": bool(self._try(lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0)),
            "nvlink_errors": errors,
            "xid": self._health.xid(uuid),
            "clique": self._clique(handle),
            "healthy": not note,
            "note": note,
        }

    # -- links -----------------------------------------------------------------------------------------------

    def _links(self, handle: Any, peers: dict[str, int], position: int) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return (((peer position, working links), ...), working links into switches)."""
        direct: dict[int, int] = {}
        switched = 0
        count = self._field(handle, "NVML_FI_DEV_NVLINK_LINK_COUNT", absent=_MAX_LINKS)  # older drivers lack the field
        for link in range(min(count, _MAX_LINKS)):
            if self._try(partial(self._nvml.nvmlDeviceGetNvLinkState, handle, link), 0) != 1:
                continue
            peer = peers.get(self._far_address(handle, link))
            if peer is not None and peer != position:
                direct[peer] = direct.get(peer, 0) + 1
            elif self._far_kind(handle, link) != _GPU:
                switched += 1  # a switch, or a far end that a VM or a newer driver hides
        return tuple(sorted(direct.items())), switched

    def _far_address(self, handle: Any, link: int) -> str:
        return _normal_address(self._try(lambda: self._nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId, ""))

    def _far_kind(self, handle: Any, link: int) -> int:
        """Return the type of the far end. An unknown end counts as a switch, because `peers` has the node's GPUs."""
        return self._try(lambda: int(self._nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)), _SWITCH)

    def _distance(self, handle: Any, other: Any, same: bool) -> int | None:  # noqa: FBT001 - reads well at the one call
        if same:
            return 0
        level = self._try(lambda: int(self._nvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)), -1)
        return _LEVELS.get(level)

    # -- memory, fabric, health ------------------------------------------------------------------------------

    def _memory(self, handle: Any) -> tuple[int, int | None, int | None]:
        """Return (total, free, reserved by the driver) in bytes; total 0 and None for unknown values.

        With MIG enabled NVML denies the agent the parent's memory. Only version 2 of the call has `reserved`.
        """
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        info = (
            self._try(lambda: self._nvml.nvmlDeviceGetMemoryInfo(handle, version), None)
            if version is not None
            else None
        )
        info = info or self._try(lambda: self._nvml.nvmlDeviceGetMemoryInfo(handle), None)
        if info is None:
            return 0, None, None
        total, free, reserved = int(info.total), int(info.free), getattr(info, "reserved", None)
        if not 0 <= free <= total:
            return max(total, 0), None, None
        if reserved is None or not 0 <= reserved <= total - free:
            return total, free, None
        return total, free, int(reserved)

    def _clique(self, handle: Any) -> str:
        """Return '<cluster UUID>.<clique>' as in the driver's node label; '' without multi-node NVLink."""
        info = self._try(lambda: self._fabric_info(handle), None)
        if info is None or int(info.state) != _FABRIC_COMPLETED:
            return ""
        cluster = bytes(b & 0xFF for b in info.clusterUuid)
        if not any(cluster):
            return ""
        text = cluster.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}.{int(info.cliqueId)}"

    def _fabric_info(self, handle: Any) -> Any:
        """pynvml gives this function its argument as it is: the structure's address, else the process crashes."""
        info = self._nvml.c_nvmlGpuFabricInfo_v2_t()
        self._nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
        return info

    # -- guarded calls ---------------------------------------------------------------------------------------

    def _field(self, handle: Any, name: str, absent: int = 0) -> int:
        """Return a field value; `absent` if the driver or the binding does not know the field."""
        number = getattr(self._nvml, name, None)
        if number is None:
            return absent
        values = self._try(lambda: self._nvml.nvmlDeviceGetFieldValues(handle, [number]), None)
        if not values or values[0].nvmlReturn != 0:
            return absent
        kind = int(values[0].valueType)
        return max(int(getattr(values[0].value, _MEMBERS[kind])), 0) if 0 <= kind < len(_MEMBERS) else absent

    def _address(self, handle: Any) -> str:
        return _normal_address(self._try(lambda: self._nvml.nvmlDeviceGetPciInfo(handle).busId, ""))

    def _text(self, call: Callable[[], Any]) -> str:
        value = self._try(call, "")
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def _try(self, call: Callable[[], T], default: T) -> T:
        """The call's value; `default` if driver or binding do not know the call, or if a text is not Unicode."""
        try:
            return call()
        except self._nvml.NVMLError as error:
            self._lost |= error.value in _LOST
            return default
        except (AttributeError, UnicodeDecodeError):
            return default


def _normal_address(bus_id: Any) -> str:
    """Turn '00000000:65:00.0', text or bytes, into '0000:65:00.0'; '' for a hidden address (ffffffff:ff:ff.0)."""
    text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else str(bus_id)
    text = text.strip("\x00").lower()
    domain, colon, rest = text.partition(":")
    if not colon or domain.startswith("ffff"):
        return ""
    return f"{domain[-4:]}:{rest}"


# -- health: recovery actions, failed row remapping, critical XIDs, rising NVLink errors ---------------------


class HealthMonitor:
    """Keeps the state that NVML reports only once: XIDs, and the counters of the reading before."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._registered: set[str] = set()
        self._xids: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._rising: dict[str, int] = {}

    def listen(self, gpus: dict[str, Any]) -> None:
        """Collect the XIDs since the last call; none if the driver has no events. `gpus` maps UUID to NVML handle."""
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
        except (nvml.NVMLError, AttributeError):
            return
        for uuid, handle in gpus.items():
            if uuid not in self._registered:
                self._registered.add(uuid)
                with suppress(nvml.NVMLError):  # this GPU has no events
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        self._collect_events(gpus)

    def _collect_events(self, gpus: dict[str, Any]) -> None:
        nvml = self._nvml
        for _ in range(_MAX_EVENTS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError_Timeout:
                return
            except nvml.NVMLError:
                self.stop_listening()  # the next reading registers again
                return
            uuid = self._uuid(event.device)
            if uuid in gpus and int(event.eventData) not in _APPLICATION_XIDS:
                self._xids[uuid] = int(event.eventData)

    def _uuid(self, handle: Any) -> str:
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(handle) if handle else ""
        except self._nvml.NVMLError:
            return ""  # the GPU is lost
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    def stop_listening(self) -> None:
        """Free the event set, before NVML shuts down or after an error."""
        if self._events is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
        self._events = None
        self._registered.clear()

    def remember(self, xids: dict[str, int]) -> None:
        """Take over the XIDs that an earlier process has read, by UUID."""
        self._xids = xids | self._xids

    def xid(self, uuid: str) -> int:
        """Return the last critical XID of a GPU; 0 if there was none."""
        return self._xids.get(uuid, 0)

    def link_errors(self, uuid: str, handle: Any, field: Field) -> int:
        """Return the number of NVLink errors since the driver was loaded, and remember whether it rose."""
        found = sum(field(handle, name) for name in _ERROR_FIELDS)
        before = self._errors.get(uuid)
        self._errors[uuid] = found
        if before is not None and found > before:
            self._rising[uuid] = _RISING_ROUNDS
        elif self._rising.get(uuid):
            self._rising[uuid] -= 1
        return found

    def note(self, uuid: str, action: int, remapped: Any) -> str:
        """Return why a GPU is unhealthy, in a few words; '' for a healthy GPU.

        `action` is NVML's recovery action, `remapped` its tuple (.., .., pending, failed) of remapped rows or None.
        """
        if action:
            return _ACTIONS.get(action, f"recovery action {action}")
        if self.xid(uuid):
            return f"XID {self.xid(uuid)}"
        if remapped is not None and remapped[3]:
            return "row remapping failed"
        if remapped is not None and remapped[2]:
            return "row remapping is pending"
        return "NVLink errors are rising" if self._rising.get(uuid) else ""


def main() -> None:
    """Answer each line of standard input, {UUID: XID}, with {"gpus": [...]}, or with {"problem": text}, and then end.

    Only answers go to standard output; what a library prints goes to standard error.
    """
    import pynvml

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the agent, whose end closes standard input
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reader = Reader(pynvml, Sysfs(Path("/sys")))
    for line in sys.stdin:
        answer: dict[str, Any]
        try:
            answer = {"gpus": reader.read(json.loads(line))}
        except pynvml.NVMLError as error:
            answer = {"problem": f"NVML: {error}"}
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()
        if "problem" in answer:
            return  # a new process loads the library anew: an updated driver needs its new one


if __name__ == "__main__":
    main()
