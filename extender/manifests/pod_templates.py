"""The pods that a workload creates: the templates in its object, with the labels that its controller gives the pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from extender.api.asked_subgroups import REPLICATED_JOB
from extender.api.fields import Json, get, many, string
from extender.api.pod_groups import GroupSource, leader_worker_set_marks

_MAX_TEMPLATES = 1000  # of one object; a JobSet has a few


class PodTemplate(NamedTuple):
    """One template of pods. `pod` is a Pod without name and namespace."""

    pod: Json
    path: str  # of metadata and spec of the pod in the object, such as 'spec.template'; '' for a pod
    role: str = ""  # tells the templates of one object apart; '' if it has only one
    pods: int | None = 1  # pods of this template in one group; None if the object does not say


def pod_templates(obj: Json) -> list[PodTemplate]:
    """The templates of an object of any kind. A Pod is its own template. Raises WireError.

    A template in a custom resource is any field with `spec.containers`.
    """
    kind = str(obj.get("kind"))
    if kind == "Pod":
        return [PodTemplate(obj, "")]
    spec = get(obj, "spec", dict, "", {})
    name = str((obj.get("metadata") or {}).get("name") or "")
    if is_volcano_job(obj):
        by = string(spec, "schedulerName", "spec") or "volcano"
        return list(many(spec, "tasks", "spec", lambda one, path: _volcano_task(one, path, name, by)))
    if kind in ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"):
        return _one(spec, "spec", {}, get(spec, "replicas", int, "spec", 1))
    if kind == "DaemonSet":
        return _one(spec, "spec", {}, None)
    if kind == "Job":
        return _one(spec, "spec", _job_labels(name), _pods_of_job(spec, "spec"))
    if kind == "CronJob":
        job = get(get(spec, "jobTemplate", dict, "spec", {}), "spec", dict, "spec.jobTemplate", {})
        return _one(job, "spec.jobTemplate.spec", _job_labels(name), _pods_of_job(job, "spec.jobTemplate.spec"))
    if kind == "JobSet":
        return list(many(spec, "replicatedJobs", "spec", lambda one, path: _replicated_job(one, path, name)))
    if kind == "LeaderWorkerSet":
        return _leader_worker_set(spec, name)
    group = str(obj.get("apiVersion") or "").rpartition("/")[0]
    return _found(obj) if "." in group and group != "resource.k8s.io" else []


def is_volcano_job(obj: Json) -> bool:
    """Whether the object is a Job of Volcano, not of Kubernetes."""
    return obj.get("kind") == "Job" and str(obj.get("apiVersion")).startswith("batch.volcano.sh/")


def _one(spec: Json, path: str, labels: Json, pods: int | None) -> list[PodTemplate]:
    return [_template(get(spec, "template", dict, path, {}), f"{path}.template", labels, pods=pods)]


def _template(
    template: Json, path: str, labels: Json, notes: Json | None = None, *, role: str = "", pods: int | None = None
) -> PodTemplate:
    metadata = get(template, "metadata", dict, path, {})
    made = {
        **metadata,
        "labels": {**get(metadata, "labels", dict, f"{path}.metadata", {}), **labels},
        "annotations": {**get(metadata, "annotations", dict, f"{path}.metadata", {}), **(notes or {})},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": get(template, "spec", dict, path, {})}
    return PodTemplate(pod, path, role, pods)


def _job_labels(name: str) -> Json:
    return {GroupSource.JOB.value: name, "job-name": name} if name else {}


def _pods_of_job(spec: Json, path: str) -> int:
    """How many pods of a Job exist at the same time."""
    most = get(spec, "parallelism", int, path, 1)
    return min(most, get(spec, "completions", int, path, most))


def _replicated_job(obj: Json, path: str, name: str) -> PodTemplate:
    job = get(get(obj, "template", dict, path, {}), "spec", dict, f"{path}.template", {})
    where = f"{path}.template.spec"
    role = string(obj, "name", path)
    pods = get(obj, "replicas", int, path, 1) * _pods_of_job(job, where)
    labels = {**_job_labels(f"{name}-{role}-0"), GroupSource.JOB_SET.value: name, REPLICATED_JOB: role}
    return _template(get(job, "template", dict, where, {}), f"{where}.template", labels, role=role, pods=pods)


def _volcano_task(obj: Json, path: str, name: str, scheduler: str) -> PodTemplate:
    labels, pods = {GroupSource.VOLCANO.value: name}, get(obj, "replicas", int, path, 1)
    template = get(obj, "template", dict, path, {})
    spec = {"schedulerName": scheduler, **get(template, "spec", dict, f"{path}.template", {})}
    template = {**template, "spec": spec}
    return _template(template, f"{path}.template", labels, role=string(obj, "name", path), pods=pods)


def _leader_worker_set(spec: Json, name: str) -> list[PodTemplate]:
    """The templates of one replica: each replica is a group of its own."""
    inner, path = get(spec, "leaderWorkerTemplate", dict, "spec", {}), "spec.leaderWorkerTemplate"
    size = get(inner, "size", int, path, 1)
    labels, notes = leader_worker_set_marks(name, size)
    roles = {"leader": 1, "worker": max(size - 1, 0)} if inner.get("leaderTemplate") else {"worker": size}
    return [
        _template(
            get(inner, f"{role}Template", dict, path, {}), f"{path}.{role}Template", labels, notes,
            role=role if len(roles) > 1 else "", pods=pods,
        )
        for role, pods in roles.items()
    ]  # fmt: skip


def _found(obj: Json) -> list[PodTemplate]:
    """The templates anywhere in the spec of an object."""
    places = list(_search(get(obj, "spec", dict, "", {}), "spec"))
    roles = map(str, range(len(places))) if len(places) > 1 else ("",)
    return [_template(template, path, {}, role=role) for (template, path), role in zip(places, roles, strict=False)]


def _search(root: Json, path: str) -> Iterator[tuple[Json, str]]:
    left: list[tuple[object, str]] = [(root, path)]
    count = 0
    while left and count < _MAX_TEMPLATES:
        value, where = left.pop()
        if isinstance(value, list):
            left += [(item, f"{where}[{i}]") for i, item in reversed(list(enumerate(value)))]
        elif isinstance(value, dict):
            spec = value.get("spec")
            if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
                count += 1
                yield value, where
            else:
                left += [(inner, f"{where}.{key}") for key, inner in reversed(value.items())]
