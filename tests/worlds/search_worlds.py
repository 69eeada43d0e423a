"""One claim on one node, for tests of the search: devices and requests as in the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extender.allocation import Features, Problem
from extender.allocation.what_if import problem_of, usage_of
from extender.api.device_classes import decode_class
from extender.api.nodes import decode_node
from extender.api.resource_claims import decode_claim
from extender.api.resource_slices import DeviceId, SliceDecoder
from extender.cel.dra import Masks

Json = dict[str, Any]
DRIVER = "d.example.com"


def problem(
    devices: Sequence[Json],
    requests: Sequence[Json],
    counters: dict[str, dict[str, Any]] | None = None,
    constraints: Sequence[Json] = (),
    taken: int = 0,
    features: Features | None = None,
) -> Problem:
    """The problem of these requests. `counters` by counter set; the first `taken` devices are allocated."""
    sets = [
        {"name": name, "counters": {key: {"value": str(value)} for key, value in found.items()}}
        for name, found in (counters or {}).items()
    ]
    contents: list[Json] = [{"devices": list(devices)}, *([{"sharedCounters": sets}] if sets else [])]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": len(contents)}
    slices = [
        SliceDecoder().decode(
            {"metadata": {"name": f"s{i}"}, "spec": {"driver": DRIVER, "nodeName": "n", "pool": pool, **content}}
        )
        for i, content in enumerate(contents)
    ]
    asked = {"requests": list(requests), "constraints": list(constraints)}
    claim = decode_claim({"metadata": {"name": "c"}, "spec": {"devices": asked}})
    used = [DeviceId(DRIVER, "p", device["name"]) for device in devices[:taken]]
    return problem_of(
        decode_node({"metadata": {"name": "n"}}),
        slices,
        {"any": decode_class({"metadata": {"name": "any"}, "spec": {}})},
        [("c", claim.spec)],
        usage_of(slices, used, {}),
        features or Features(),
        Masks(),
    )


def exactly(name: str, **fields: Any) -> Json:
    """A request for devices of any kind."""
    return {"name": name, "exactly": {"deviceClassName": "any", **fields}}
