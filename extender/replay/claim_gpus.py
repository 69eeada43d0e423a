"""The GPUs of claims: those that a pod has got, and those that a job which waits would get on this fleet.

The name of a class does not tell it: a cluster has classes of its own, and a claim may have alternatives, or ask for
all devices of a node. A device counts that is a GPU of the fleet's figures: no part of another one, and no NIC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import orjson

from extender.allocation import Features, NodeInfo, Snapshot, select
from extender.api.claim_specs import DeviceRequest, Request
from extender.api.quantity import NANO
from extender.api.resource_claims import Result, decode_claim
from extender.base.berth_errors import InvalidClaim
from extender.cel.dra import Masks
from extender.explain.fleet_rows import shown_bits
from extender.replay.jobs import Job
from extender.vendors import amount_of_memory


def allocated_gpus(node_info: NodeInfo, results: Iterable[Result]) -> float:
    """The GPUs of a pod. Of a GPU of which it has a share of the memory, that share."""
    shown, found = set(shown_bits(node_info)), dict[int, float]()
    for one in results:
        bit = node_info.inventory.index.get(one.device)
        if bit in shown and not one.admin_access:
            memory, taken = node_info.inventory.devices[bit].memory_bytes, amount_of_memory(one.amounts)
            share = taken / NANO / memory if one.share_id and taken and memory else 1.0
            found[bit] = min(found.get(bit, 0.0) + share, 1.0)
    return sum(found.values())


def with_claim_gpus(jobs: Sequence[Job], snapshot: Snapshot) -> list[Job]:
    """The jobs with the number of GPUs that each pod with a claim would get if the fleet were empty."""
    count = _ClaimGpus(snapshot)
    return [_counted(job, count) if any(one.claim is not None for one in job.templates) else job for job in jobs]


def _counted(job: Job, count: _ClaimGpus) -> Job:
    parts = tuple(_counted(one, count) for one in job.parts)
    return replace(job, parts=parts, claim_gpus=count.of(job) if job.claim is not None else 0.0)


class _ClaimGpus:
    """Counts the GPUs of claims. Equal claims share one count."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._classes = snapshot.classes.get
        self._masks = Masks()
        self._found: dict[bytes, float] = {}
        nodes = snapshot.node_infos.values()
        kinds = {one.state.hardware_signature: one for one in nodes}
        # Equal nodes differ only for a selector of a device's own UUID or address: they are asked if no kind has a GPU.
        self._nodes = [list(kinds.values()), list(nodes)]

    def of(self, job: Job) -> float:
        """The GPUs of a pod of this job, without its parts."""
        key = orjson.dumps(job.claim)
        if key not in self._found:
            requests = decode_claim(job.claim_object(job.name)).spec.requests
            self._found[key] = float(sum(map(self._of_request, requests)))
        return self._found[key]

    def _of_request(self, request: Request) -> int:
        """Of alternatives, those of the first one that a node has."""
        found = [(self._most(one), one) for one in request.alternatives if not one.admin_access]
        fitting = [(most, one) for most, one in found if most and most >= one.count]
        for most, one in fitting or found[:1]:
            return (most if one.mode == "All" else one.count) if most else 0
        return 0

    def _most(self, option: DeviceRequest) -> int:
        """The most GPUs of a node that a request admits."""
        return next(filter(None, (max(map(partial(self._on, option), nodes)) for nodes in self._nodes)), 0)

    def _on(self, option: DeviceRequest, node_info: NodeInfo) -> int:
        with suppress(InvalidClaim):
            found = select("", option, self._classes, node_info.inventory, self._masks, Features()).match
            return sum(found >> bit & 1 for bit in shown_bits(node_info))
        return 0
