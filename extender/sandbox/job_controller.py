"""The part of kube-controller-manager that runs Jobs: their pods, and their status.

Source: pkg/controller/job. The sandbox runs no containers, so a pod ends when a user writes its phase.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from extender.api.fields import Json
from extender.cluster import now_rfc3339
from extender.sandbox.apiserver.registry import RESOURCES, Registry
from extender.sandbox.apiserver.versioned_store import Change

_PODS, _JOBS = RESOURCES["", "pods"], RESOURCES["batch", "jobs"]
_INDEX = "batch.kubernetes.io/job-completion-index"
_BACKOFF_LIMIT = 6  # the API's default


class JobController:
    """Reacts to every change of Jobs and of their pods within the write that made it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._running: set[str] = set()  # UIDs of the Jobs whose pods are written now: each write is a change, too
        registry.store.listen(self._changed)

    def _changed(self, change: Change) -> None:
        if change.resource == "jobs":
            if change.kind == "DELETED":
                self._delete(self._pods(change.obj))
            else:
                self._run(change.obj)
        elif change.resource == "pods" and (owner := _owner(change.obj)) is not None:
            job = self._registry.store.get("jobs", (change.obj["metadata"]["namespace"], owner["name"]))
            if job is not None and job["metadata"]["uid"] == owner["uid"]:
                self._run(job)

    def _run(self, job: Json) -> None:
        uid, key = job["metadata"]["uid"], (job["metadata"]["namespace"], job["metadata"]["name"])
        if uid in self._running or job["metadata"].get("deletionTimestamp"):
            return
        self._running.add(uid)
        try:
            self._scale(job)
        finally:
            self._running.discard(uid)
        status = _status(job, self._pods(job))
        if status != job.get("status"):
            self._registry.patch(_JOBS, key, {"status": status}, "status", strategic=False)

    def _scale(self, job: Json) -> None:
        """Create the pods that are missing, and delete those that are too many."""
        spec, pods = job["spec"], self._pods(job)
        phases = Counter(_phase(pod) for pod in pods)
        active = [pod for pod in pods if _phase(pod) not in ("Succeeded", "Failed", "Terminating")]
        completions = _completions(spec)
        wanted = spec.get("parallelism", 1)
        if completions is not None:
            wanted = min(wanted, completions - phases["Succeeded"])
        elif phases["Succeeded"]:  # a work queue: the first success says that it is empty
            wanted = len(active)
        if spec.get("suspend") or _has_failed(spec, phases["Failed"]):
            wanted = 0
        self._delete(active[max(wanted, 0) :])
        taken = {_index(pod) for pod in pods if _phase(pod) not in ("Failed", "Terminating")}
        free = (index for index in range(completions or 0) if str(index) not in taken)
        for _ in range(wanted - len(active)):
            self._create(job, next(free, None) if spec.get("completionMode") == "Indexed" else None)

    def _create(self, job: Json, index: int | None) -> None:
        metadata, template = job["metadata"], job["spec"]["template"]
        name, uid = metadata["name"], metadata["uid"]
        of_template = template.get("metadata") or {}
        labels = {"job-name": name, "controller-uid": uid}
        labels |= {f"batch.kubernetes.io/{label}": value for label, value in labels.items()}
        notes, spec = dict(of_template.get("annotations") or {}), template["spec"]
        if index is not None:
            labels[_INDEX] = notes[_INDEX] = str(index)
            entry = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
            numbered = [{**one, "env": [*(one.get("env") or []), entry]} for one in spec["containers"]]
            spec = {**spec, "containers": numbered}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
        made = {
            "generateName": f"{name}-" if index is None else f"{name}-{index}-",
            "labels": {**(of_template.get("labels") or {}), **labels},
            "annotations": notes,
            "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
        }
        self._registry.create(_PODS, metadata["namespace"], {"metadata": made, "spec": spec})

    def _pods(self, job: Json) -> list[Json]:
        uid, pods = job["metadata"]["uid"], self._registry.store.all("pods", job["metadata"]["namespace"])
        return [pod for pod in pods if (_owner(pod) or {}).get("uid") == uid]

    def _delete(self, pods: list[Json]) -> None:
        for pod in pods:
            key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
            if self._registry.store.get("pods", key) is not None:
                self._registry.delete(_PODS, key)


def _status(job: Json, pods: list[Json]) -> Json:
    before, spec = job.get("status") or {}, job["spec"]
    phases = Counter(_phase(pod) for pod in pods)
    done, failed = phases["Succeeded"], phases["Failed"]
    active = len(pods) - done - failed - phases["Terminating"]
    status: Json = {"startTime": before.get("startTime") or now_rfc3339()}
    status |= {"active": active, "succeeded": done, "failed": failed}
    completions = _completions(spec)
    is_complete = done > 0 and active == 0 if completions is None else done >= completions
    ended = "Failed" if _has_failed(spec, failed) else "Complete" if is_complete else ""
    known = before.get("conditions") or []
    if ended and not known:
        known = [{"type": ended, "status": "True", "lastTransitionTime": now_rfc3339()}]
    return {**status, "conditions": known} if known else status


def _completions(spec: Json) -> int | None:
    """As the API server sets the default: without both fields a Job is complete after one pod."""
    found = spec.get("completions")
    return 1 if found is None and spec.get("parallelism") is None else found


def _has_failed(spec: Json, failed: int) -> bool:
    return failed > int(spec.get("backoffLimit", _BACKOFF_LIMIT))


def _phase(pod: Json) -> str:
    phase = str((pod.get("status") or {}).get("phase"))
    ended = phase in ("Succeeded", "Failed")
    return "Terminating" if pod["metadata"].get("deletionTimestamp") and not ended else phase


def _index(pod: Json) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(_INDEX))


def _owner(pod: Json) -> dict[str, Any] | None:
    owners = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("kind") == "Job" and owner.get("controller")), None)
