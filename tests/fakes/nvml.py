"""A pynvml that answers from a machine file. `broken` names calls that raise; `hang` blocks until released."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, NoReturn

from extender.model import UNKNOWN_DISTANCE
from extender.sandbox.machines import Machine, gpu_uuid
from tests.eventually import HANG_SECONDS

_VERSION_ENUM = {1: 1, 2: 2, 3: 4, 4: 6, 5: 7}
_LEVEL = {1: 10, 2: 20, 3: 30, 4: 40, 5: 50}


class NVMLError(Exception):
    pass


class NVMLTimeout(NVMLError):
    pass


class FakeNvml:
    """Give it a machine; the rest is NVML as its documentation and real logs show it."""

    NVMLError = NVMLError
    NVML_FI_DEV_NVLINK_LINK_COUNT = 91
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
    NVMLError_Timeout = NVMLTimeout
    nvmlEventTypeXidCriticalError = 8
    nvmlMemory_v2 = 2

    def __init__(
        self, machine: Machine, *, node: str = "n", hidden_switch: bool = False, clique: str = "", mig: bool = False
    ) -> None:
        self.machine, self.node = machine, node
        self.hidden_switch, self.clique, self.mig = hidden_switch, clique, mig
        self.broken: set[str] = set()
        self.free: dict[int, int] = {}
        self.recovery: dict[int, int] = {}
        self.lost: set[int] = set()
        self.reserved: int | None = 600 << 20
        self.link_errors: dict[int, int] = {}
        self.xids: list[tuple[int, int]] = []  # GPU and XID, reported once
        self.down: set[tuple[int, int]] = set()
        self.hang: threading.Event | None = None
        self.links = [self._far_ends(i) for i in range(machine.count)]

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "broken"):

            def refuse(*_: object) -> NoReturn:
                raise NVMLError(f"{name}: Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def _far_ends(self, i: int) -> list[int]:
        """-1 for a switch, else the peer; one entry per link."""
        reading = self.machine.readings[i]
        return [peer for peer, count in reading.links for _ in range(count)] + [-1] * reading.switch_links

    def _bus(self, i: int) -> str:
        return f"00000000:{i + 1:02X}:00.0"

    def nvmlInit(self) -> None:
        if self.hang is not None:
            self.hang.wait(HANG_SECONDS)

    def nvmlDeviceGetCount(self) -> int:
        return self.machine.count

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        if i in self.lost:
            raise NVMLError("GPU is lost")
        return i + 1000

    def nvmlDeviceGetUUID(self, h: int) -> bytes:
        return gpu_uuid(self.node, h - 1000).encode()

    def nvmlDeviceGetName(self, h: int) -> str:
        return self.machine.product

    def nvmlDeviceGetPciInfo(self, h: int) -> SimpleNamespace:
        return SimpleNamespace(busId=self._bus(h - 1000).encode() + b"\0")

    def numa_of(self, address: str) -> int:
        """The NUMA node in sysfs, by PCI address."""
        return next((r.numa for i, r in enumerate(self.machine.readings) if self._bus(i)[4:].lower() == address), 0)

    def nvmlDeviceGetFieldValues(self, h: int, fields: list[int]) -> list[SimpleNamespace]:
        known = {
            91: len(self.links[h - 1000]),
            90: self.machine.readings[h - 1000].link_mbps,
            230: self.recovery.get(h - 1000, 0),
            38: self.link_errors.get(h - 1000, 0),
        }
        return [
            SimpleNamespace(nvmlReturn=0 if f in known else 3, value=SimpleNamespace(uiVal=known.get(f, 0)))
            for f in fields
        ]

    def nvmlDeviceGetNvLinkState(self, h: int, link: int) -> int:
        ends = self.links[h - 1000]
        if not ends:
            raise NVMLError("Not Supported")
        if link >= len(ends):
            raise NVMLError("Invalid Argument")
        return 0 if (h - 1000, link) in self.down else 1

    def nvmlDeviceGetNvLinkVersion(self, h: int, link: int) -> int:
        return _VERSION_ENUM.get(self.machine.readings[h - 1000].nvlink_version, 0)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, h: int, link: int) -> SimpleNamespace:
        peer = self.links[h - 1000][link]
        bus = (
            self._bus(peer)
            if peer >= 0
            else "FFFFFFFF:FF:FF.0"
            if self.hidden_switch
            else f"00000000:{0xC0 + link % 4:02X}:00.0"
        )
        return SimpleNamespace(busId=bus)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, h: int, link: int) -> int:
        if self.hidden_switch:
            raise NVMLError("Unknown Error")
        return 0 if self.links[h - 1000][link] >= 0 else 2

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        distance = self.machine.readings[a - 1000].distances[b - 1000]
        if distance == UNKNOWN_DISTANCE:
            raise NVMLError("Not Supported")
        return _LEVEL[distance]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, h: int) -> int:
        return self.machine.readings[h - 1000].pcie_generation

    def nvmlDeviceGetMemoryInfo(self, h: int, version: int | None = None) -> SimpleNamespace:
        if self.mig:
            raise NVMLError("Insufficient Permissions")
        if version is not None and self.reserved is None:
            raise NVMLError("Function Not Found")
        total = self.machine.memory_bytes
        found = SimpleNamespace(total=total, free=self.free.get(h - 1000, total - (self.reserved or 0)))
        if version is not None:
            found.reserved = self.reserved
        return found

    def nvmlDeviceGetMigMode(self, h: int) -> list[int]:
        return [int(self.mig), int(self.mig)]

    def nvmlEventSetCreate(self) -> list[int]:
        return []

    def nvmlDeviceRegisterEvents(self, h: int, kinds: int, events: list[int]) -> None:
        events.append(h)

    def nvmlEventSetWait_v2(self, events: list[int], timeout: int) -> SimpleNamespace:
        if not self.xids:
            raise NVMLTimeout("Timeout")
        gpu, xid = self.xids.pop(0)
        return SimpleNamespace(device=gpu + 1000, eventData=xid)

    def nvmlDeviceGetRemappedRows(self, h: int) -> tuple[int, int, int, int]:
        return 0, 0, 0, 0

    def c_nvmlGpuFabricInfo_v2_t(self) -> SimpleNamespace:
        return SimpleNamespace(state=0, clusterUuid=[0] * 16, cliqueId=0)

    def nvmlDeviceGetGpuFabricInfoV(self, h: int, info: SimpleNamespace) -> None:
        if not self.clique:
            raise NVMLError("Not Supported")
        cluster, _, number = self.clique.partition(".")
        info.state, info.clusterUuid, info.cliqueId = 3, list(bytes.fromhex(cluster.replace("-", ""))), int(number)
