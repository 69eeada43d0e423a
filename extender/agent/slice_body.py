"""Makes the node's ResourceSlice from readings, and rounds readings so that small changes cause no write."""

from __future__ import annotations

from dataclasses import replace

from extender.fabric import DRIVER, Reading, attributes_of
from extender.wire import Json

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
