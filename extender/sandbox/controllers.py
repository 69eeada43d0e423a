"""The parts of kube-controller-manager that claims and Jobs need.

Source of the second: pkg/controller/job. The sandbox runs no containers, so a pod ends when a user writes its phase.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from extender.api.fields import Json
from extender.api.resource_claims import FINALIZER
from extender.cluster import now_rfc3339
from extender.sandbox.apiserver.registry import RESOURCES, Registry
from extender.sandbox.apiserver.versioned_store import Change, Key

_CLAIMS = RESOURCES["resource.k8s.io", "resourceclaims"]
_PODS, _JOBS = RESOURCES["", "pods"], RESOURCES["batch", "jobs"]
_DONE = ("Succeeded", "Failed")
_INDEX = "batch.kubernetes.io/job-completion-index"
_BACKOFF_LIMIT = 6  # the API's default


class ClaimController:
    """Creates claims from templates, and removes deleted and completed pods from `status.reservedFor`.

    It reacts to every change of pods and templates within the write that made it.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        registry.store.listen(self._changed)

    def _changed(self, change: Change) -> None:
        if change.resource == "pods":
            if change.kind != "DELETED":
                self._make_claims(change.obj)
            if change.kind == "DELETED" or _is_done(change.obj):
                self._release(change.obj)
        elif change.resource == "resourceclaimtemplates" and change.kind == "ADDED":
            for pod in self._registry.store.all("pods", change.obj["metadata"]["namespace"]):
                self._make_claims(pod)

    def _make_claims(self, pod: Json) -> None:
        """Create a claim for each template that a pod uses, and name the claim in the pod's status."""
        metadata, status = pod["metadata"], pod.get("status") or {}
        if metadata.get("deletionTimestamp") or _is_done(pod):
            return
        known = {entry["name"] for entry in status.get("resourceClaimStatuses") or []}
        made = []
        for entry in (pod.get("spec") or {}).get("resourceClaims") or []:
            template_name = entry.get("resourceClaimTemplateName")
            if not template_name or entry["name"] in known:
                continue
            template = self._registry.store.get("resourceclaimtemplates", (metadata["namespace"], template_name))
            if template is not None:
                made.append({"name": entry["name"], "resourceClaimName": self._create(pod, entry["name"], template)})
        if made:
            statuses = [*(status.get("resourceClaimStatuses") or []), *made]
            key = (metadata["namespace"], metadata["name"])
            change = {"status": {"resourceClaimStatuses": statuses}}
            self._registry.patch(_PODS, key, change, "status", strategic=False)

    def _create(self, pod: Json, entry: str, template: Json) -> str:
        metadata, inner = pod["metadata"], template["spec"]
        made = {
            "generateName": f"{metadata['name']}-{entry}-",
            "annotations": {"resource.kubernetes.io/pod-claim-name": entry},
            "labels": (inner.get("metadata") or {}).get("labels") or {},
            "ownerReferences": [_owned_by("v1", "Pod", metadata)],
        }
        claim = {"metadata": made, "spec": inner["spec"]}
        return str(self._registry.create(_CLAIMS, metadata["namespace"], claim)["metadata"]["name"])

    def _release(self, pod: Json) -> None:
        """Remove a pod from `status.reservedFor`, and its own claims. With the last consumer, the allocation and the
        finalizer go too."""
        uid, store = pod["metadata"]["uid"], self._registry.store
        for claim in store.all("resourceclaims", pod["metadata"]["namespace"]):
            reserved = (claim.get("status") or {}).get("reservedFor") or []
            left = [entry for entry in reserved if entry["uid"] != uid]
            owned = any(owner["uid"] == uid for owner in claim["metadata"].get("ownerReferences") or [])
            key = (claim["metadata"]["namespace"], claim["metadata"]["name"])
            if owned or len(left) < len(reserved):
                self._shrink(key, claim, [] if owned else left)
            if owned and store.get("resourceclaims", key) is not None:  # one that is deleted goes with its finalizer
                self._registry.delete(_CLAIMS, key)

    def _shrink(self, key: Key, claim: Json, left: list[Json]) -> None:
        status = {"reservedFor": left} if left else {"reservedFor": None, "allocation": None, "devices": None}
        self._registry.patch(_CLAIMS, key, {"status": status}, "status", strategic=False)
        finalizers = claim["metadata"].get("finalizers") or []
        if not left and FINALIZER in finalizers:
            kept = [one for one in finalizers if one != FINALIZER]
            self._registry.patch(_CLAIMS, key, {"metadata": {"finalizers": kept}}, "", strategic=False)


def _owned_by(version: str, kind: str, metadata: Json) -> Json:
    """The reference to an object with this metadata, whose controller made another object."""
    of_owner = {"apiVersion": version, "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}
    return {**of_owner, "controller": True, "blockOwnerDeletion": True}


def _is_done(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in _DONE


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
        active = [pod for pod in pods if _phase(pod) not in (*_DONE, "Terminating")]
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
        made = {
            "generateName": f"{name}-" if index is None else f"{name}-{index}-",
            "labels": {**(of_template.get("labels") or {}), **labels},
            "annotations": notes,
            "ownerReferences": [_owned_by("batch/v1", "Job", metadata)],
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
    if pod["metadata"].get("deletionTimestamp") and not _is_done(pod):
        return "Terminating"
    return str((pod.get("status") or {}).get("phase"))


def _index(pod: Json) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(_INDEX))


def _owner(pod: Json) -> dict[str, Any] | None:
    owners = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("kind") == "Job" and owner.get("controller")), None)
