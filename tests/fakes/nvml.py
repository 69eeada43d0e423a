"""A stand-in for libnvidia-ml.so.1 at the border of C: the real `pynvml` calls it, and it answers from a machine file.

Each function has the arguments that NVIDIA's NVML reference declares. What would make the real library read or write
elsewhere than it should is a BorderFault: a structure by value, another size or version, no handle, a missing argument.
A function that is not declared here is one, too.

As a program it is the agent's reader process with this library: `python -m tests.fakes.nvml JSON`. It starts fast, as
it imports little of Berth.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from ctypes import Structure, c_char, c_double, c_int, c_longlong, c_ubyte, c_uint, c_ulonglong, c_void_p
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pynvml

from extender.agent import reader as agent_reader
from extender.agent.reader import Sysfs
from extender.api.gpu_topology import UNKNOWN_DISTANCE

if TYPE_CHECKING:
    from extender.sandbox.machines import Machine
    from extender.topology.agent_slices import Reading

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, TIMEOUT = 1, 2, 3, 4, 9, 10
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, NOT_READY, UNKNOWN = 13, 15, 16, 18, 27, 999
_VERSION_ENUM = {1: 1, 2: 2, 3: 4, 4: 6, 5: 7}
_LEVEL = {1: 10, 2: 20, 3: 30, 4: 40, 5: 50}
_FIRST_HANDLE, _EVENT_SET = 0x7F00_0000_1000, 0x7F00_0000_0010
_BY_REFERENCE = type(ctypes.byref(c_int()))


class BorderFault(AssertionError):
    """An argument with which the real library would read or write elsewhere."""


# -- structures and arguments, as in nvml.h ----------------------------------------------------------------------


class PciInfo(Structure):
    _fields_ = (
        ("bus_id_legacy", c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint),
        ("pci_device_id", c_uint), ("pci_subsystem_id", c_uint), ("bus_id", c_char * 32),
    )  # fmt: skip


class Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class MemoryV2(Structure):
    _fields_ = (
        ("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong),
        ("used", c_ulonglong),
    )  # fmt: skip


class Value(ctypes.Union):
    _fields_ = (("double", c_double), ("uint", c_uint), ("ulonglong", c_ulonglong))


class FieldValue(Structure):
    _fields_ = (
        ("field", c_uint), ("scope", c_uint), ("timestamp", c_longlong), ("latency", c_longlong), ("kind", c_int),
        ("code", c_int), ("value", Value),
    )  # fmt: skip


class EventData(Structure):
    _fields_ = (
        ("device", c_void_p), ("kind", c_ulonglong), ("data", c_ulonglong), ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )  # fmt: skip


class FabricInfoV2(Structure):
    _fields_ = (
        ("version", c_uint), ("cluster", c_ubyte * 16), ("status", c_int), ("clique", c_uint), ("state", c_ubyte),
        ("health", c_uint),
    )  # fmt: skip


@dataclass(frozen=True)
class Out:
    """A pointer to memory that the library writes. A structure with a version must come with this one."""

    kind: Any
    version: int = 0


class Text:
    """char*: a buffer, whose length is the next argument."""


class Fields:
    """nvmlFieldValue_t*: an array, whose length is the argument before."""


DEVICE, EVENTS, UINT, INT, ULONGLONG = "nvmlDevice_t", "nvmlEventSet_t", c_uint, c_int, c_ulonglong
FABRIC_V2, MEMORY_V2 = 2 << 24 | ctypes.sizeof(FabricInfoV2), 2 << 24 | ctypes.sizeof(MemoryV2)
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "nvmlInitWithFlags": (UINT,),
    "nvmlShutdown": (),
    "nvmlSystemGetDriverVersion": (Text, UINT),
    "nvmlDeviceGetCount_v2": (Out(c_uint),),
    "nvmlDeviceGetHandleByIndex_v2": (UINT, Out(c_void_p)),
    "nvmlDeviceGetUUID": (DEVICE, Text, UINT),
    "nvmlDeviceGetName": (DEVICE, Text, UINT),
    "nvmlDeviceGetPciInfo_v3": (DEVICE, Out(PciInfo)),
    "nvmlDeviceGetFieldValues": (DEVICE, INT, Fields),
    "nvmlDeviceGetNvLinkState": (DEVICE, UINT, Out(c_uint)),
    "nvmlDeviceGetNvLinkVersion": (DEVICE, UINT, Out(c_uint)),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": (DEVICE, UINT, Out(PciInfo)),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (DEVICE, UINT, Out(c_uint)),
    "nvmlDeviceGetTopologyCommonAncestor": (DEVICE, DEVICE, Out(c_uint)),
    "nvmlDeviceGetMaxPcieLinkGeneration": (DEVICE, Out(c_uint)),
    "nvmlDeviceGetMemoryInfo": (DEVICE, Out(Memory)),
    "nvmlDeviceGetMemoryInfo_v2": (DEVICE, Out(MemoryV2, MEMORY_V2)),
    "nvmlDeviceGetMigMode": (DEVICE, Out(c_uint), Out(c_uint)),
    "nvmlDeviceGetRemappedRows": (DEVICE, Out(c_uint), Out(c_uint), Out(c_uint), Out(c_uint)),
    "nvmlDeviceGetGpuFabricInfoV": (DEVICE, Out(FabricInfoV2, FABRIC_V2)),
    "nvmlEventSetCreate": (Out(c_void_p),),
    "nvmlEventSetFree": (EVENTS,),
    "nvmlEventSetWait_v2": (EVENTS, Out(EventData), UINT),
    "nvmlDeviceRegisterEvents": (DEVICE, ULONGLONG, EVENTS),
}
OF_DEVICES = sorted(name for name, kinds in FUNCTIONS.items() if DEVICE in kinds)


def taken(name: str, kind: Any, given: Any) -> Any:
    """The argument as the library sees it. Raises BorderFault."""

    def fault(problem: str) -> NoReturn:
        raise BorderFault(f"{name}: {problem}: {given!r}")

    if kind in (DEVICE, EVENTS):
        if not isinstance(given, (ctypes._Pointer, c_void_p)):  # noqa: SLF001 - the class of all pointers
            fault("the handle is no pointer")
        return ctypes.cast(given, c_void_p).value or fault("the handle is NULL")
    if kind in (UINT, INT, ULONGLONG):
        value = given.value if isinstance(given, ctypes._SimpleCData) else given  # noqa: SLF001 - of all numbers
        if type(value) is not int or (isinstance(given, int) and ctypes.sizeof(kind) > ctypes.sizeof(c_int)):
            fault("not a number of this size")
        return value
    if kind is Text:
        return given if isinstance(given, ctypes.Array) else fault("no buffer")
    if not isinstance(given, _BY_REFERENCE):
        fault("not an address")
    there = given._obj  # type: ignore[attr-defined]  # noqa: SLF001 - the referenced memory
    if kind is Fields:
        return (FieldValue * (ctypes.sizeof(there) // ctypes.sizeof(FieldValue))).from_address(ctypes.addressof(there))
    if ctypes.sizeof(there) != ctypes.sizeof(kind.kind):
        fault(f"{ctypes.sizeof(there)} bytes, not {ctypes.sizeof(kind.kind)}")
    found = kind.kind.from_address(ctypes.addressof(there))
    if kind.version and found.version != kind.version:
        fault(f"version {found.version:#x}, not {kind.version:#x}")
    return found


# -- the library -------------------------------------------------------------------------------------------------


class Library:
    """pynvml takes it for the CDLL. Give it a machine; the rest is NVML as its reference and real logs show it.

    `errors` maps functions to the code that they return, `missing` names those that an old library lacks.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        node: str = "n",
        uuids: Sequence[str] = (),
        hidden_switch: bool = False,
        clique: str = "",
        mig: bool = False,
    ) -> None:
        self.machine = machine
        self.hidden_switch, self.clique, self.mig = hidden_switch, clique, mig
        self.errors: dict[str, int] = {}
        self.missing: set[str] = set()
        self.crashes: str = ""  # the function that ends the process by SIGSEGV
        self.hangs: str = ""
        self.calls: Counter[str] = Counter()
        self.begun = 0
        self.event_sets = 0
        self.free: dict[int, int] = {}
        self.lost: set[int] = set()
        self.reserved: int | None = 600 << 20
        self.fields: dict[int, dict[int, int]] = {  # by GPU and NVML's number of the field
            i: {91: len(self._far_ends(i)), 90: reading.link_mbps, 230: 0, 38: 0}
            for i, reading in enumerate(machine.readings)
        }
        self.xids: list[tuple[int, int]] = []  # GPU and XID, reported once
        self.registered: set[int] = set()
        self.down: set[tuple[int, int]] = set()
        self.count = len(machine.readings)
        if not uuids:
            from extender.sandbox.machines import gpu_uuid

            uuids = [gpu_uuid(node, i) for i in range(self.count)]
        self.uuids = [uuid.encode() for uuid in uuids]
        self.names = [machine.product.encode()] * self.count
        self.buses = [f"00000000:{i + 1:02X}:00.0".encode() for i in range(self.count)]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        if name == "nvmlErrorString":
            return lambda code: b"code %d" % code.value
        if name not in FUNCTIONS:
            raise BorderFault(f"{name} is not declared here: declare it by NVIDIA's reference")
        if name in self.missing:
            raise AttributeError(name)
        return lambda *given: self._call(name, given)

    def _call(self, name: str, given: tuple[Any, ...]) -> int:
        kinds = FUNCTIONS[name]
        if len(given) != len(kinds):
            raise BorderFault(f"{name} takes {len(kinds)} arguments, not {len(given)}")
        arguments = [taken(name, kind, one) for kind, one in zip(kinds, given, strict=True)]
        self.calls[name] += 1
        if name == self.crashes:
            os.kill(os.getpid(), signal.SIGSEGV)
        if name == self.hangs:
            signal.pause()
        if name in self.errors:
            return self.errors[name]
        if not self.begun and name != "nvmlInitWithFlags":
            return UNINITIALIZED
        gpus = [one - _FIRST_HANDLE for kind, one in zip(kinds, arguments, strict=True) if kind == DEVICE]
        if any(gpu in self.lost for gpu in gpus):
            return GPU_IS_LOST
        if any(not 0 <= gpu < self.count for gpu in gpus):
            raise BorderFault(f"{name}: the handle is of no GPU")
        answer: Callable[..., int | None] = getattr(self, f"_{name}")
        return (
            answer(*(one - _FIRST_HANDLE if k == DEVICE else one for k, one in zip(kinds, arguments, strict=True))) or 0
        )

    def _far_ends(self, i: int) -> list[int]:
        """-1 for a switch, else the peer; one entry per link."""
        reading = self.machine.readings[i]
        return [peer for peer, count in reading.links for _ in range(count)] + [-1] * reading.switch_links

    def _nvmlInitWithFlags(self, flags: int) -> None:
        self.begun += 1

    def _nvmlShutdown(self) -> None:
        self.begun -= 1

    def _nvmlSystemGetDriverVersion(self, text: Any, size: int) -> None:
        text.value = b"580.159.04"

    def _nvmlDeviceGetCount_v2(self, count: Any) -> None:
        count.value = self.count

    def _nvmlDeviceGetHandleByIndex_v2(self, i: int, handle: Any) -> int:
        if i >= self.count:
            return INVALID_ARGUMENT
        handle.value = _FIRST_HANDLE + i
        return GPU_IS_LOST if i in self.lost else 0

    def _nvmlDeviceGetUUID(self, gpu: int, text: Any, size: int) -> None:
        text.value = self.uuids[gpu]

    def _nvmlDeviceGetName(self, gpu: int, text: Any, size: int) -> None:
        text.value = self.names[gpu]

    def _nvmlDeviceGetPciInfo_v3(self, gpu: int, info: PciInfo) -> None:
        info.bus_id = self.buses[gpu]

    def _nvmlDeviceGetFieldValues(self, gpu: int, count: int, values: Any) -> None:
        for one in values[:count]:
            known = self.fields[gpu]
            one.code, one.kind = (0 if one.field in known else NOT_SUPPORTED), (3 if one.field == 38 else 1)
            one.value.ulonglong = 0xDEAD_BEEF_0000_0000 if one.kind == 1 else 0  # only the bytes of its kind count
            setattr(one.value, "ulonglong" if one.kind == 3 else "uint", known.get(one.field, 0))

    def _nvmlDeviceGetNvLinkState(self, gpu: int, link: int, active: Any) -> int:
        ends = self._far_ends(gpu)
        active.value = (gpu, link) not in self.down
        return NOT_SUPPORTED if not ends else INVALID_ARGUMENT if link >= len(ends) else 0

    def _nvmlDeviceGetNvLinkVersion(self, gpu: int, link: int, version: Any) -> None:
        version.value = _VERSION_ENUM.get(self.machine.readings[gpu].nvlink_version, 0)

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, gpu: int, link: int, info: PciInfo) -> None:
        peer = self._far_ends(gpu)[link]
        switch = b"FFFFFFFF:FF:FF.0" if self.hidden_switch else f"00000000:{0xC0 + link % 4:02X}:00.0".encode()
        info.bus_id = self.buses[peer] if peer >= 0 else switch

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int, kind: Any) -> int:
        kind.value = 0 if self._far_ends(gpu)[link] >= 0 else 2
        return UNKNOWN if self.hidden_switch else 0

    def _nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int, level: Any) -> int:
        distance = self.machine.readings[a].distances[b]
        level.value = _LEVEL.get(distance, 0)
        return NOT_SUPPORTED if distance == UNKNOWN_DISTANCE else 0

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: int, generation: Any) -> None:
        generation.value = self.machine.readings[gpu].pcie_generation

    def _nvmlDeviceGetMemoryInfo(self, gpu: int, memory: Memory | MemoryV2) -> int:
        memory.total = total = self.machine.memory_bytes
        memory.free = self.free.get(gpu, total - (self.reserved or 0))
        return NO_PERMISSION if self.mig else 0

    def _nvmlDeviceGetMemoryInfo_v2(self, gpu: int, memory: MemoryV2) -> int:
        memory.reserved = self.reserved or 0
        return self._nvmlDeviceGetMemoryInfo(gpu, memory)

    def _nvmlDeviceGetMigMode(self, gpu: int, current: Any, pending: Any) -> None:
        current.value = pending.value = self.mig

    def _nvmlDeviceGetRemappedRows(self, gpu: int, *counts: Any) -> None:
        for count in counts:
            count.value = 0

    def _nvmlDeviceGetGpuFabricInfoV(self, gpu: int, info: FabricInfoV2) -> None:
        if self.clique:
            cluster, _, number = self.clique.partition(".")
            info.state, info.clique = 3, int(number)
            info.cluster[:] = bytes.fromhex(cluster.replace("-", ""))

    def _nvmlEventSetCreate(self, events: Any) -> None:
        events.value = _EVENT_SET
        self.event_sets += 1

    def _nvmlEventSetFree(self, events: int) -> None:
        self.event_sets -= 1
        self.registered.clear()

    def _nvmlEventSetWait_v2(self, events: int, data: EventData, milliseconds: int) -> int:
        if not self.xids:
            return TIMEOUT
        gpu, xid = self.xids.pop(0)
        data.device, data.kind, data.data = (_FIRST_HANDLE + gpu if gpu >= 0 else None), 8, xid
        return 0

    def _nvmlDeviceRegisterEvents(self, gpu: int, kinds: int, events: int) -> None:
        self.registered.add(gpu)


# -- readers with it ---------------------------------------------------------------------------------------------


def install(library: Library | None) -> None:
    """Have pynvml of this process call it. None: the library is not there."""
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - the functions of the library before


class Places(Sysfs):
    """The places of the library's GPUs, as its machine has them."""

    def __init__(self, library: Library) -> None:
        super().__init__(Path("/sys"))
        self._library = library

    def numa(self, address: str) -> int | None:
        return next((reading.numa for reading in self._at(address)), None)

    def pcie_root(self, address: str) -> str:
        return next((reading.pcie_root for reading in self._at(address)), "")

    def _at(self, address: str) -> list[Reading]:
        buses = [bus[4:].lower().decode(errors="replace") for bus in self._library.buses]
        return [reading for reading, bus in zip(self._library.machine.readings, buses, strict=True) if bus == address]


def reader(library: Library) -> agent_reader.Reader:
    install(library)
    return agent_reader.Reader(pynvml, Places(library))


def reading(library: Library) -> Callable[[], Awaitable[tuple[Reading, ...]]]:
    """What ReaderProcess.read is, in this process."""
    from extender.agent.reader_process import ReadFailed, as_reading

    inner = reader(library)

    async def read() -> tuple[Reading, ...]:
        try:
            return tuple(as_reading(gpu) for gpu in json.loads(json.dumps(inner.read())))
        except pynvml.NVMLError as error:
            raise ReadFailed(str(error)) from error

    return read


def command(machine: str, **options: Any) -> list[str]:
    """The command of a reader process with this library.

    `crashes` or `hangs` name a function; with `once`, a file, only the first process does so. `errors` as in Library.
    """
    from extender.sandbox import carried_machines

    given = {"once": "", "crashes": "", "hangs": "", "errors": {}, "xids": [], **options}
    found = carried_machines()[machine]
    uuids = [uuid.decode() for uuid in Library(found).uuids]
    given |= {"machine": {**asdict(found), "nics": []}, "uuids": uuids}
    return [sys.executable, "-m", "tests.fakes.nvml", json.dumps(given)]


def main() -> None:
    options = json.loads(sys.argv[1], object_hook=lambda found: SimpleNamespace(**found))
    library = Library(options.machine, uuids=options.uuids)
    if not options.once or not Path(options.once).exists():
        library.crashes, library.hangs, library.errors = options.crashes, options.hangs, vars(options.errors)
        library.xids = [(gpu, xid) for gpu, xid in options.xids]
        if options.once:
            Path(options.once).touch()
    install(library)
    agent_reader.main()


if __name__ == "__main__":
    main()
