"""A scheduler loop that calls Berth as kube-scheduler does.

It filters and prioritizes one pod at a time, first on its nominated node alone. It binds in the background, and backs
off after failures. It writes why it rejected a pod into the pod's condition PodScheduled. It retries the pod on the
same events as kube-scheduler, also if the event comes during the pod's filter request.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from extender.api.device_classes import IMPLICIT_RESOURCE_PREFIX
from extender.api.fields import Json
from extender.api.nodes import decode_node
from extender.api.pods import SCHEDULER, Pod, decode_pod, with_constraints
from extender.api.quantity import NANO, parse_quantity
from extender.api.reasons import Code
from extender.base.berth_errors import WireError
from extender.sandbox.apiserver.versioned_store import Change, ObjectStore
from extender.scheduling import may_run

_FILTER_SECONDS, _BIND_SECONDS = 5.0, 30.0  # the httpTimeout values of scheduler-config/
_BACKOFF_SECONDS = (1.0, 10.0)  # podInitialBackoffSeconds, podMaxBackoffSeconds
_MAX_DOUBLINGS = 30  # of a back-off
_POLL_SECONDS = 0.02  # the queue is checked this often without an event
_JSON = {"Content-Type": "application/json"}
# Kinds whose changes requeue a pod that an extender rejected (1.34 to 1.36). ResourceSlices are not among them.
_REQUEUING = frozenset({"resourceclaims", "deviceclasses", "nodes"})


@dataclass(slots=True)
class _Waiting:
    """A pod that is not bound yet. `ready_at` is the time of the event loop at which its back-off ends."""

    key: tuple[str, str]
    ready_at: float = 0.0
    failures: int = 0
    rejected: bool = False
    requeued: bool = False  # whether an event that requeues the pod came since its last attempt began
    reasons: dict[str, int] = field(default_factory=dict)

    def requeue(self) -> None:
        """An event came that may make the pod schedulable."""
        self.rejected, self.requeued = False, True


class Scheduler:
    """Schedules the pods that name Berth's scheduler, against the sandbox's own store.

    `backoff_seconds` are the first and the longest back-off of a pod after failures.
    """

    def __init__(
        self,
        store: ObjectStore,
        extender_url: str,
        seed: int = 1,
        backoff_seconds: tuple[float, float] = _BACKOFF_SECONDS,
    ) -> None:
        self._store = store
        self._url = extender_url
        self._seed = seed
        self._backoff_seconds = backoff_seconds
        self._waiting: dict[str, _Waiting] = {}
        self._binding: set[str] = set()
        self._wake = asyncio.Event()
        self._start = 0
        self.calls: dict[str, int] = {}
        self.last_errors: dict[str, str] = {}
        store.listen(self._changed)
        for pod in store.all("pods"):
            self._consider(pod)

    def pending(self) -> dict[str, dict[str, int]]:
        """Return the rejected pods as 'namespace/name', each with its reasons and the number of nodes per reason."""
        return {"/".join(w.key): w.reasons for w in self._waiting.values() if w.rejected}

    @property
    def idle(self) -> bool:
        """Whether no bind is in flight and every waiting pod is rejected."""
        return not self._binding and all(w.rejected for w in self._waiting.values())

    async def run(self) -> None:
        """Schedule pods until cancelled."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as binds:
            while True:
                if not await self._schedule_one(session, binds):
                    self._wake.clear()
                    await self._sleep()

    async def _sleep(self) -> None:
        # Not wait_for: on Python 3.11 it can swallow a cancellation that comes with the time-out.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await self._wake.wait()

    # -- the queue -------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        if change.resource == "pods" and change.old is not None and _is_report(change.old, change.obj):
            return
        if change.resource == "pods":
            self._consider(change.obj, gone=change.kind == "DELETED")
        assigned = change.resource == "pods" and (change.obj.get("spec") or {}).get("nodeName")
        if change.resource in _REQUEUING or assigned:
            for waiting in self._waiting.values():
                waiting.requeue()
        self._wake.set()

    def _consider(self, pod: Json, *, gone: bool = False) -> None:
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        uid = metadata["uid"]
        if gone or spec.get("nodeName") or metadata.get("deletionTimestamp"):
            self._waiting.pop(uid, None)
        elif spec.get("schedulerName") == SCHEDULER:
            self._waiting.setdefault(uid, _Waiting((metadata["namespace"], metadata["name"]))).requeue()

    def _next(self) -> tuple[str, _Waiting] | None:
        now = asyncio.get_running_loop().time()
        for uid, waiting in self._waiting.items():
            if uid not in self._binding and not waiting.rejected and waiting.ready_at <= now:
                return uid, waiting
        return None

    async def _schedule_one(self, session: aiohttp.ClientSession, binds: asyncio.TaskGroup) -> bool:
        """Schedule one pod. Its bind goes on in `binds`. Returns False if no pod is ready."""
        found = self._next()
        if found is None:
            return False
        uid, waiting = found
        waiting.requeued = False
        obj = self._store.get("pods", waiting.key)
        pod = _decoded(obj) if obj is not None else None
        if obj is None or pod is None or not self._claims_exist(pod):
            waiting.rejected = True  # as PreEnqueue: an update of the pod or of a claim requeues it
            return True
        try:
            node = await self._place(session, obj, pod, waiting)
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError, _ExtenderError) as error:
            self._failed(waiting, str(error))
            return True
        if node is None:
            waiting.rejected = not waiting.requeued
            return True
        self._binding.add(uid)
        binds.create_task(self._bind(session, uid, waiting, node))
        return True

    def _claims_exist(self, pod: Pod) -> bool:
        keys = ((key.namespace, key.name) for key in pod.claim_keys)
        return pod.has_claim_names and all(self._store.get("resourceclaims", key) is not None for key in keys)

    def _failed(self, waiting: _Waiting, problem: str) -> None:
        delay = backoff_seconds(waiting.failures, self._backoff_seconds)
        waiting.failures += 1
        waiting.ready_at = asyncio.get_running_loop().time() + delay
        self.last_errors["/".join(waiting.key)] = problem

    # -- the extender's verbs --------------------------------------------------------------------------------

    async def _place(self, session: aiohttp.ClientSession, obj: Json, pod: Pod, waiting: _Waiting) -> str | None:
        names, waiting.reasons = self._feasible(pod)
        if not names:
            return None
        self._start = (self._start + 1) % len(names)
        names = names[self._start :] + names[: self._start]
        sent = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
        nominated = (obj.get("status") or {}).get("nominatedNodeName")
        if nominated in names:
            args = {"Pod": sent, "Nodes": None, "NodeNames": [nominated]}
            answer = await self._call(session, "filter", args, _FILTER_SECONDS)
            if answer.get("NodeNames") == [nominated]:
                return str(nominated)
        args = {"Pod": sent, "Nodes": None, "NodeNames": names}
        answer = await self._call(session, "filter", args, _FILTER_SECONDS)
        if answer.get("Error"):
            raise _ExtenderError(answer["Error"])
        feasible = answer.get("NodeNames") or []
        if not set(feasible) <= set(names):
            raise _ExtenderError("extender claims a filtered node which is not found in the input node list")
        if not feasible:
            failed = {**(answer.get("FailedNodes") or {}), **(answer.get("FailedAndUnresolvableNodes") or {})}
            waiting.reasons = Counter(failed.values())
            self._report(waiting, len(names))
            return None
        if len(feasible) == 1:
            return str(feasible[0])
        return await self._prioritized(session, {**args, "NodeNames": feasible}, feasible)

    def _feasible(self, pod: Pod) -> tuple[list[str], dict[str, int]]:
        """The nodes that the pod's constraints admit and that have its extended resources; the reasons of the others.

        As NodeAffinity, TaintToleration and NodeResourcesFit find them. A node that does not offer a resource at all
        leaves it to the DeviceClass that provides it.
        """
        asked, provided = _scalars(pod), set[str]()
        for class_ in self._store.all("deviceclasses") if asked else ():
            explicit = (class_.get("spec") or {}).get("extendedResourceName")
            provided |= {IMPLICIT_RESOURCE_PREFIX + class_["metadata"]["name"], *([explicit] if explicit else ())}
        names, reasons = list[str](), dict[str, str]()
        for node in self._store.all("nodes"):
            name, offers = node["metadata"]["name"], (node.get("status") or {}).get("allocatable") or {}
            if not may_run(pod, decode_node(node)):
                reasons[name] = Code.NODE_CONSTRAINTS.text
                continue
            for resource, amount in asked.items():
                offered = parse_quantity(str(offers.get(resource, 0))).nanos // NANO
                if (offered or resource not in provided) and amount > offered - self._used(name, resource, offered):
                    reasons[name] = f"Insufficient {resource}"
            if name not in reasons:
                names.append(name)
        return names, Counter(reasons.values())

    def _used(self, node: str, resource: str, offered: int) -> int:
        """How much of a resource that the node offers the pods on the node have."""
        pods = self._store.all("pods") if offered else ()
        decoded = (_decoded(pod) for pod in pods if (pod.get("spec") or {}).get("nodeName") == node)
        return sum(_scalars(pod)[resource] for pod in decoded if pod is not None and not pod.ended)

    def _report(self, waiting: _Waiting, nodes: int) -> None:
        """Write the condition of a rejected pod, if it changed."""
        pod = self._store.get("pods", waiting.key)
        if pod is None:
            return
        counts = ", ".join(sorted(f"{count} {reason}" for reason, count in waiting.reasons.items()))
        message = f"0/{nodes} nodes are available: {counts}."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        if (pod.get("status") or {}).get("conditions") != [condition]:
            self._store.put(
                "pods", waiting.key, {**pod, "status": {**(pod.get("status") or {}), "conditions": [condition]}}
            )

    async def _prioritized(self, session: aiohttp.ClientSession, args: Json, feasible: list[str]) -> str:
        """The best node. A tie is broken at random, as by kube-scheduler, but in the same way at each attempt."""
        scores = dict.fromkeys(feasible, 0)
        for entry in await self._call(session, "prioritize", args, _FILTER_SECONDS):
            if entry["Host"] in scores:
                scores[entry["Host"]] += entry["Score"]
        return tie_breaker(scores, self._seed, args["Pod"]["metadata"]["name"])

    async def _bind(self, session: aiohttp.ClientSession, uid: str, waiting: _Waiting, node: str) -> None:
        namespace, name = waiting.key
        args = {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node}
        try:
            answer = await self._call(session, "bind", args, _BIND_SECONDS)
            if answer.get("Error"):
                raise _ExtenderError(answer["Error"])
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError, _ExtenderError) as error:
            self._failed(waiting, str(error))
        finally:
            self._binding.discard(uid)
            self._wake.set()

    async def _call(self, session: aiohttp.ClientSession, verb: str, body: Json, seconds: float) -> Any:
        self.calls[verb] = self.calls.get(verb, 0) + 1
        timeout = aiohttp.ClientTimeout(total=seconds)
        url, content = f"{self._url}/{verb}", orjson.dumps(body)
        async with session.post(url, data=content, headers=_JSON, timeout=timeout) as response:
            content = await response.read()
            if response.status != 200:  # noqa: PLR2004 - anything else is an error to kube-scheduler
                raise _ExtenderError(f"failed {verb} with extender, code {response.status}: {content[:200]!r}")
            return orjson.loads(content)


class _ExtenderError(Exception):
    """The extender returned an error."""


def backoff_seconds(failures: int, limits: tuple[float, float] = _BACKOFF_SECONDS) -> float:
    """The back-off of a pod after so many earlier failures. `limits` are the first and the longest one."""
    low, high = limits
    return min(high, low * 2.0 ** min(failures, _MAX_DOUBLINGS))


def tie_breaker(scores: Mapping[str, int], seed: int, pod: str) -> str:
    """The best node. A tie is broken at random, as by kube-scheduler, but in the same way at each attempt of a pod."""
    best = max(scores.values())
    by_pod = random.Random(f"{seed}/{pod}")  # noqa: S311 - no secret
    return by_pod.choice(sorted(name for name, score in scores.items() if score == best))


def _decoded(obj: Json) -> Pod | None:
    """The pod with its constraints on nodes; None for one that a real API server would refuse."""
    try:
        return with_constraints(decode_pod(obj), obj)
    except WireError:
        return None


def _scalars(pod: Pod) -> Counter[str]:
    """The extended resources that a pod asks for. An init container that ends counts if it asks for more."""
    found, first = Counter[str](), Counter[str]()
    for container in pod.containers:
        asked = Counter({name: amount for name, amount in container.requests if amount})
        if container.init and not container.sidecar:
            first |= asked
        else:
            found += asked
    return found | first


def _is_report(old: Json, new: Json) -> bool:
    """Whether only conditions of a pod changed. kube-scheduler does not requeue a pod because of its own report."""

    def rest(pod: Json) -> Json:
        metadata = {**pod["metadata"], "resourceVersion": ""}
        return {**pod, "metadata": metadata, "status": {**(pod.get("status") or {}), "conditions": []}}

    return rest(old) == rest(new)
