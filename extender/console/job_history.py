"""The jobs that the console saw from their bind to their end, as a file of jobs for `berth replay`.

The watch of pods has no bound pods. So `DecisionReader` tells of each bound pod that it read, and a pod has ended when
one of its claims is not reserved for it any more. The members of a gang are one job. A restart of the console loses the
list. A line has no names of pods and namespaces, and no parameters of drivers, which may be secrets.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import orjson

from extender.allocation import Snapshot
from extender.api.claim_specs import merged_specs
from extender.api.fields import Json
from extender.api.group_topology import PREFERRED, REQUIRED, TOPOLOGY
from extender.api.nodes import NodeSelector, Term, encode_node_selector, encode_toleration
from extender.api.object_meta import ObjectKey
from extender.api.pod_annotations import TOPOLOGY_ANNOTATION
from extender.api.pods import Pod
from extender.api.resource_claims import Claim
from extender.base.fair_lru import FairLRU
from extender.cache import CacheListener
from extender.gangs.gang import gang_minimum

MAX_JOBS = 10_000
MAX_BYTES = 16 << 20  # of all lines; and of those of the jobs that run
_MAX_LINE = 16 << 10  # bytes, of a line and of the claims of a pod; a larger pod is left out
_MAX_PODS = 65_536  # that run; those beyond are left out
_MAX_TERMS = 16  # of the node selectors of a pod, multiplied out
_OF_GANG = {TOPOLOGY: "group_topology", REQUIRED: "group_required", PREFERRED: "group_preferred"}
_FIELDS = {TOPOLOGY_ANNOTATION: "topology", **_OF_GANG}


@dataclass(slots=True, eq=False)
class _Job:
    """A job that runs. Times are in seconds since 1970; `left` are the UIDs of the pods that have not ended."""

    of: Hashable  # its group, or its only pod
    namespace: str
    arrival: float
    bound: float  # its last pod
    pods: dict[bytes, int] = field(default_factory=dict)  # by what they ask for, see _fields
    left: set[str] = field(default_factory=set)


class _Ended(NamedTuple):
    arrival: float
    fields: bytes  # of its line, but for name and arrival: JSON without the first brace


class JobHistory(CacheListener):
    """The last jobs that ended: at most MAX_JOBS of MAX_BYTES together, see FairLRU. `now` is seconds since 1970."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        least = MAX_BYTES // MAX_JOBS
        self._ended: FairLRU[int, _Ended] = FairLRU(MAX_BYTES, lambda one: max(len(one.fields), least))
        self._numbers = count()
        self._jobs: dict[Hashable, _Job] = {}  # by `of`
        self._bytes = 0  # of the jobs that run
        self._pod_of: dict[ObjectKey, tuple[str, _Job]] = {}  # UID and job by claim
        self._claims: dict[str, tuple[ObjectKey, ...]] = {}  # by UID of the pod

    def bound(self, pod: Pod, claims: Sequence[Claim], snapshot: Snapshot) -> None:
        """A pod is bound, and these are the claims that are reserved for it. A pod that shares one is left out."""
        if pod.uid in self._claims:
            return
        keys = tuple(claim.key for claim in claims)
        names = len(pod.claim_keys) + bool(pod.extended_claim)
        own = len(keys) == names and all({one.uid for one in claim.reserved_for} == {pod.uid} for claim in claims)
        if not own or sum(len(claim.spec.content) for claim in claims) > _MAX_LINE:
            return
        shape = _fields(pod, claims)
        is_full = len(self._claims) >= _MAX_PODS or self._bytes + len(shape) > MAX_BYTES
        if len(shape) > _MAX_LINE or is_full:
            return
        is_gang = pod.membership is not None and gang_minimum(pod.membership, snapshot) > 0
        of: Hashable = pod.membership.key if is_gang and pod.membership is not None else pod.uid
        now = self._now()
        arrival = min(_seconds(pod.created, now), now)
        job = self._jobs.get(of)
        if job is None:
            job = self._jobs[of] = _Job(of, pod.key.namespace, arrival, now)
        if shape not in job.pods:
            self._bytes += len(shape)
        job.pods[shape] = job.pods.get(shape, 0) + 1
        job.arrival, job.bound = min(job.arrival, arrival), now
        job.left.add(pod.uid)
        self._claims[pod.uid] = keys
        self._pod_of.update(dict.fromkeys(keys, (pod.uid, job)))

    def claim_changed(self, key: ObjectKey, claim: Claim | None) -> None:
        uid, job = self._pod_of.get(key, ("", None))
        if job is None or (claim is not None and claim.is_reserved_for(uid)):
            return
        for one in self._claims.pop(uid):
            del self._pod_of[one]
        job.left.discard(uid)
        if not job.left:
            self._end(job)

    def _end(self, job: _Job) -> None:
        del self._jobs[job.of]
        self._bytes -= sum(map(len, job.pods))
        (shape, pods), *others = job.pods.items()
        fields: Json = {"duration": round(max(self._now() - job.bound, 1.0), 3), "pods": pods}
        if others:
            fields["parts"] = [{"pods": count} | _of_part(other) for other, count in others]
        line = orjson.dumps(fields)[1:-1] + b"," + shape[1:]
        self._ended.put(job.namespace, next(self._numbers), _Ended(job.arrival, line))

    def lines(self) -> bytes:
        """The jobs that ended, by arrival, as JSON Lines. The first one arrives at 0 s."""
        found = sorted(self._ended.values())
        first = found[0].arrival if found else 0.0
        return b"".join(
            b'{"name":"job-%d","arrival":%.3f,%s\n' % (number, one.arrival - first, one.fields)
            for number, one in enumerate(found, 1)
        )


def _fields(pod: Pod, claims: Sequence[Claim]) -> bytes:
    """The fields of a job that a pod and its claims decide, as JSON; members of a gang with others are its parts."""
    found: Json = {"claim": merged_specs([orjson.loads(claim.spec.content) for claim in claims])}
    if pod.cpu:
        found["cpu"] = f"{pod.cpu}m"
    found |= {name: pod.annotations[note] for note, name in _FIELDS.items() if pod.annotations.get(note)}
    if spec := _spec(pod):
        found["spec"] = spec
    return orjson.dumps(found)


def _of_part(shape: bytes) -> Json:
    """The fields of a pod that differs from the first one of its gang, without those of the gang."""
    return {name: value for name, value in orjson.loads(shape).items() if name not in _OF_GANG.values()}


def _spec(pod: Pod) -> Json:
    """What limits the nodes of a pod. Node selectors beyond _MAX_TERMS are left out."""
    found: Json = {}
    if pod.tolerations:
        found["tolerations"] = [encode_toleration(one) for one in pod.tolerations]
    if pod.node_selectors and math.prod(len(one.terms) for one in pod.node_selectors) <= _MAX_TERMS:
        terms = [Term((), ())]
        for selector in pod.node_selectors:  # all must match, and of each one term
            terms = [
                Term(a.expressions + b.expressions, a.fields + b.fields)
                for a in terms
                for b in selector.terms
                if b != Term()
            ]
        needed = encode_node_selector(NodeSelector(tuple(terms)))
        found["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": needed}}
    return found


def _seconds(time: str, default: float) -> float:
    """A time of the API in seconds since 1970."""
    with suppress(ValueError):
        return datetime.datetime.fromisoformat(time).timestamp()
    return default
