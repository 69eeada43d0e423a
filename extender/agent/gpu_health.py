"""What speaks against a GPU: recovery actions, failed row remapping, critical XIDs, NVLink errors that rise.

Source: NVIDIA's NVML reference (fields, events) and XID catalogue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ACTIONS = {1: "needs a GPU reset", 2: "needs a node reboot", 3: "drain peer-to-peer", 4: "drain and reset"}
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})  # the fault of a program, not of the GPU
_MOST_EVENTS = 64  # taken at one reading
_RISING_ROUNDS = 60  # readings for which one rise is remembered: ten minutes of the agent's rounds
_ERROR_FIELDS = (
    "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
)
Field = Callable[[Any, str], int]


class HealthMonitor:
    """Remembers between readings what NVML tells only once: XIDs and how counters moved."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._registered: set[str] = set()
        self._xids: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._rising: dict[str, int] = {}

    def listen(self, gpus: dict[str, Any]) -> None:
        """Collect the XIDs since the last call. `gpus` is UUID to handle. A driver that has no events has none."""
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
            for uuid, handle in gpus.items():
                if uuid not in self._registered:
                    self._registered.add(uuid)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except (nvml.NVMLError, AttributeError):
            return
        self._take(gpus)

    def _take(self, gpus: dict[str, Any]) -> None:
        nvml = self._nvml
        for _ in range(_MOST_EVENTS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = nvml.nvmlDeviceGetUUID(event.device)
            except nvml.NVMLError_Timeout:
                return
            except nvml.NVMLError:
                self._events = None  # the driver was reloaded: register anew at the next reading
                self._registered.clear()
                return
            name = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
            if name in gpus and int(event.eventData) not in _APPLICATION_XIDS:
                self._xids[name] = int(event.eventData)

    def xid(self, uuid: str) -> int:
        """The last critical XID; 0 for none."""
        return self._xids.get(uuid, 0)

    def link_errors(self, uuid: str, handle: Any, field: Field) -> int:
        """Errors of all links since the driver was loaded."""
        found = sum(field(handle, name) for name in _ERROR_FIELDS)
        before = self._errors.get(uuid)
        self._errors[uuid] = found
        if before is not None and found > before:
            self._rising[uuid] = _RISING_ROUNDS
        elif self._rising.get(uuid):
            self._rising[uuid] -= 1
        return found

    def note(self, uuid: str, action: int, remapped: Any) -> str:
        """In a few words; '' where nothing speaks against the GPU. `remapped` is NVML's (.., .., pending, failed)."""
        if action:
            return _ACTIONS.get(action, f"recovery action {action}")
        if self.xid(uuid):
            return f"XID {self.xid(uuid)}"
        if remapped is not None and remapped[3]:
            return "row remapping failed"
        if remapped is not None and remapped[2]:
            return "row remapping is pending"
        return "NVLink errors are rising" if self._rising.get(uuid) else ""
