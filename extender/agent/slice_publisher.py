"""The agent's loop: read with a deadline, publish on change, put back what was wiped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog

from extender.agent.agent_slice import quantize, slice_body
from extender.cluster import ApiClient, ClusterError, Conflict, NotFound
from extender.fabric import Reading

Json = dict[str, Any]

_PATH = "/apis/resource.k8s.io/v1/resourceslices"
_ROUND_SECONDS = 10.0  # memory and health; the whole scan of eight GPUs takes a fraction of a second
_HEARTBEAT_MINUTES = 5  # 5,000 nodes make 17 writes a second of it
_DEADLINE_SECONDS = 20.0  # the first call after a boot may take 8 s; one that takes longer hangs


class SlicePublisher:
    """Publishes one slice. `read` may block or hang: it runs in a thread, one at a time, and is watched."""

    def __init__(
        self,
        client: ApiClient,
        node: str,
        read: Callable[[], tuple[Reading, ...]],
        round_seconds: float = _ROUND_SECONDS,
        deadline_seconds: float = _DEADLINE_SECONDS,
        minute: Callable[[], int] = lambda: int(time.time() // 60),
    ) -> None:
        self._client = client
        self._node = node
        self._read = read
        self._round = round_seconds
        self._deadline = deadline_seconds
        self._minute = minute
        self._pending: asyncio.Future[tuple[Reading, ...]] | None = None
        self._published: tuple[Reading, ...] = ()
        self._answered: tuple[Json, Json] | None = None  # the last spec sent, and what the server made of it
        self._log = structlog.get_logger("berth.agent")
        self.writes = 0
        self.stale = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(self._round)

    async def step(self) -> None:
        """One round. Errors are logged and end with the next round."""
        readings = await self._watched_read()
        wanted = self._published if readings is None else quantize(readings, self._published)
        try:
            await self._publish(wanted)
            self._published = wanted
        except Conflict:
            self._log.info("the slice changed under us; next round")
        except ClusterError as error:
            self._log.warning("could not publish", problem=str(error))

    async def _watched_read(self) -> tuple[Reading, ...] | None:
        """The readings, or None where NVML does not answer; then the last ones are published as stale."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(asyncio.to_thread(self._read))
        try:
            async with asyncio.timeout(self._deadline):
                found = await asyncio.shield(self._pending)
        except TimeoutError:
            self._become(stale=True, why="NVML did not answer in time")
            return None
        except Exception as error:  # noqa: BLE001 - NVML's own error class is only known to the reader
            self._pending = None
            self._become(stale=True, why=f"{type(error).__name__}: {error}")
            return None
        self._pending = None
        self._become(stale=False, why="")
        return found

    def _become(self, *, stale: bool, why: str) -> None:
        if stale != self.stale:
            self._log.warning("readings are stale" if stale else "readings are fresh again", why=why)
        self.stale = stale

    async def _publish(self, readings: tuple[Reading, ...]) -> None:
        """Create the slice, or replace it where it differs. Kubelet wipes slices of drivers it does not know."""
        uid = await self._node_uid()
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
        body["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        self._remember(body, await self._client.put(path, body))

    def _heartbeat_due(self, current: Json) -> bool:
        """Whether the slice is so old that readers would take the agent for dead (docs/decisions/0014)."""
        ages = [
            self._minute() - ((d.get("attributes") or {}).get("readAt") or {}).get("int", 0)
            for d in current["spec"].get("devices") or []
        ]
        return not self.stale and any(abs(age) >= _HEARTBEAT_MINUTES for age in ages)

    def _remember(self, sent: Json, stored: Json) -> None:
        """Servers without DRADeviceTaints (off before 1.36) drop the taints: what came of a write is what to expect."""
        self._answered = (_canonical(sent["spec"]), _canonical(stored["spec"]))
        if self._answered[0] != self._answered[1] and not self.writes:
            self._log.warning(
                "the API server dropped fields of the slice; without DRADeviceTaints only DeviceClasses keep claims off it"
            )
        self.writes += 1

    async def _node_uid(self) -> str:
        try:
            return str((await self._client.get(f"/api/v1/nodes/{self._node}"))["metadata"]["uid"])
        except NotFound:
            return ""


def _canonical(spec: Json) -> Json:
    """A spec without what servers add, and without the time of the reading: that alone is worth no write."""
    devices = [
        {
            "name": d["name"],
            "attributes": {k: v for k, v in (d.get("attributes") or {}).items() if k != "readAt"},
            "taints": [(t["key"], t.get("effect")) for t in d.get("taints") or []],
        }
        for d in spec.get("devices") or []
    ]
    return {**spec, "devices": devices}
