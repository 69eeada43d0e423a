"""The agent's loop: reads the GPUs, publishes changes and a heartbeat, and creates a deleted slice again.

Readings are rounded, so that small changes cause no write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from extender.agent.reader_process import ReadFailed
from extender.api.fields import Json
from extender.cluster import ApiClient, ClusterError, Conflict, NotFound
from extender.topology.agent_slices import DRIVER, Reading, attributes_of

_STEP_BYTES = 256 << 20  # free memory is published in steps of this size
_HYSTERESIS = 0.75  # of a step: a value that moves around the edge of a step causes no writes
TAINT = {"key": f"{DRIVER}/informational", "value": "", "effect": "NoSchedule"}  # keeps schedulers from allocating


def slice_body(node: str, node_uid: str, readings: tuple[Reading, ...], minute: int, *, stale: bool) -> Json:
    """Return the ResourceSlice of a node. `minute` is Unix time / 60; with `stale`, readers ignore the links."""
    devices = []
    for position, reading in enumerate(readings):
        values: dict[str, str | int | bool] = {
            **attributes_of(reading),
            "readAt": minute,
            **({"stale": True} if stale else {}),
        }
        devices.append(
            {"name": f"gpu-{position}", "attributes": {k: _typed(v) for k, v in values.items()}, "taints": [TAINT]}
        )
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{DRIVER}-{node}", "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def _typed(value: str | int) -> Json:
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def quantize(new: tuple[Reading, ...], published: tuple[Reading, ...]) -> tuple[Reading, ...]:
    """Return the readings with free memory rounded down to steps of 256 MiB, and error counts to powers of two.

    A change of less than 0.875 of a step keeps the published value. Readers need only the rise of error counts.
    """
    before = {reading.uuid: reading.memory_free_bytes for reading in published}
    return tuple(
        replace(
            r, memory_free_bytes=_step(r.memory_free_bytes, before.get(r.uuid)), nvlink_errors=_power(r.nvlink_errors)
        )
        for r in new
    )


def _power(count: int) -> int:
    return 1 << (count.bit_length() - 1) if count > 0 else 0


def _step(free: int | None, published: int | None) -> int | None:
    if free is None:
        return None
    if published is not None and abs(free - published) < _STEP_BYTES * (1 + _HYSTERESIS) / 2:
        return published
    return free // _STEP_BYTES * _STEP_BYTES


_PATH = "/apis/resource.k8s.io/v1/resourceslices"
_ROUND_SECONDS = 10.0  # a scan of eight GPUs takes a fraction of a second
_HEARTBEAT_MINUTES = 5  # 17 writes a second on 5,000 nodes


class SlicePublisher:
    """Publishes the slice of one node.

    `read` raises ReadFailed if there is no reading. `minute` returns Unix time / 60.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        read: Callable[[], Awaitable[tuple[Reading, ...]]],
        minute: Callable[[], int] = lambda: int(time.time() // 60),
    ) -> None:
        self._client = client
        self._node = node
        self._read = read
        self._minute = minute
        self._published: tuple[Reading, ...] | None = None  # None before the first one of this process
        self._answered: tuple[Json, Json] | None = None  # the last spec sent, and the spec that the server stored
        self._log = structlog.get_logger("berth.agent")
        self.writes = 0
        self.stale = False

    async def run(self) -> None:
        """Read and publish every round until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(_ROUND_SECONDS)

    async def step(self) -> None:
        """Read and publish once. Errors of the API server are logged; the next round tries again."""
        readings = await self._fresh()
        wanted = self._published if readings is None else quantize(readings, self._published or ())
        try:
            await self._publish(wanted)
            self._published = wanted
        except Conflict:
            self._log.info("another client changed the slice; the next round tries again")
        except ClusterError as error:
            self._log.warning("could not publish", problem=str(error))

    async def _fresh(self) -> tuple[Reading, ...] | None:
        """Return the readings, or None if there are none; the caller then publishes the last ones as stale."""
        try:
            found = await self._read()
        except ReadFailed as error:
            if not self.stale:
                what = "readings are stale" if self._published else "there is no reading yet"
                self._log.warning(what, why=str(error))
            self.stale = True
            return None
        if self.stale:
            self._log.warning("readings are fresh again" if self._published else "the first reading")
        self.stale = False
        return found

    async def _publish(self, readings: tuple[Reading, ...] | None) -> None:
        """Create the slice, or replace a slice that differs. Kubelet deletes slices of drivers it does not know.

        None if this process has read nothing yet: a slice of the process before stays, and gets old.
        """
        uid = await self._node_uid()
        if readings is None:
            return
        body = slice_body(self._node, uid, readings, self._minute(), stale=self.stale)
        path = f"{_PATH}/{body['metadata']['name']}"
        try:
            current = await self._client.get(path)
        except NotFound:
            if readings:
                self._remember(body, await self._client.post(_PATH, body))
            return
        pool = current["spec"]["pool"]
        body["spec"]["pool"]["generation"] = pool["generation"]
        wanted, found = _canonical(body["spec"]), _canonical(current["spec"])
        if (found == wanted or (wanted, found) == self._answered) and not self._heartbeat_due(current):
            return
        body["spec"]["pool"]["generation"] = pool["generation"] + 1
        kept = ("resourceVersion", "ownerReferences")  # OpenShift wants the right to delete for a change of owners
        body["metadata"] |= {name: current["metadata"].get(name) for name in kept}
        self._remember(body, await self._client.put(path, body))

    def _heartbeat_due(self, current: Json) -> bool:
        """Whether the slice is so old that readers would assume that the agent is dead (docs/decisions/0014)."""
        ages = [
            self._minute() - ((d.get("attributes") or {}).get("readAt") or {}).get("int", 0)
            for d in current["spec"].get("devices") or []
        ]
        return not self.stale and any(abs(age) >= _HEARTBEAT_MINUTES for age in ages)

    def _remember(self, sent: Json, stored: Json) -> None:
        """Remember the spec that the server stored. Without DRADeviceTaints (off before 1.36) it drops the taints."""
        self._answered = (_canonical(sent["spec"]), _canonical(stored["spec"]))
        if self._answered[0] != self._answered[1] and not self.writes:
            self._log.warning(
                "the API server dropped fields of the slice; without DRADeviceTaints "
                "only DeviceClasses keep other schedulers from allocating its devices"
            )
        self.writes += 1

    async def _node_uid(self) -> str:
        try:
            return str((await self._client.get(f"/api/v1/nodes/{self._node}"))["metadata"]["uid"])
        except NotFound:
            raise ClusterError(f"the cluster has no node {self._node}; --node must be the name of a Node") from None


def _canonical(spec: Json) -> Json:
    """Return a spec without the fields that servers add and without the reading's time, which causes no write."""
    devices = [
        {
            "name": d["name"],
            "attributes": {k: v for k, v in (d.get("attributes") or {}).items() if k != "readAt"},
            "taints": [(t["key"], t.get("effect")) for t in d.get("taints") or []],
        }
        for d in spec.get("devices") or []
    ]
    return {**spec, "devices": devices}
