"""Signs of an unhealthy GPU: recovery actions, failed row remapping, critical XIDs, rising NVLink errors.

Source: NVIDIA's NVML reference (fields, events) and XID catalogue.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

_ACTIONS = {1: "needs a GPU reset", 2: "needs a node reboot", 3: "drain peer-to-peer", 4: "drain and reset"}
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})  # caused by a program, not by the GPU
_MOST_EVENTS = 64  # limit per reading
_RISING_ROUNDS = 60  # readings after a rise for which the GPU stays unhealthy: ten minutes of the agent's rounds
_ERROR_FIELDS = (
    "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
)
Field = Callable[[Any, str], int]


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
        for _ in range(_MOST_EVENTS):
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
