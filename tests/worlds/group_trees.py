"""PodGroups and CompositePodGroups of scheduling.k8s.io as objects, and their pods."""

from __future__ import annotations

from typing import Any

from tests.worlds.running_berth import Berthing, Json, claim, pod


def pod_group(name: str, parent: str = "", minimum: int = 0, level: str = "") -> Json:
    """A PodGroup; without a minimum its policy is basic."""
    policy: Json = {"gang": {"minCount": minimum}} if minimum else {"basic": {}}
    return _object("PodGroup", "v1beta1", name, parent, policy, level)


def composite(name: str, groups: int = 0, parent: str = "", level: str = "") -> Json:
    """A CompositePodGroup that needs so many child groups; with none its policy is basic."""
    policy: Json = {"gang": {"minGroupCount": groups}} if groups else {"basic": {}}
    return _object("CompositePodGroup", "v1alpha3", name, parent, policy, level)


def _object(kind: str, version: str, name: str, parent: str, policy: Json, level: str) -> Json:
    spec: Json = {"schedulingPolicy": policy}
    spec |= {"parentCompositePodGroupName": parent} if parent else {}
    spec |= {"schedulingConstraints": {"topology": [{"key": level}]}} if level else {}
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": "1"}
    return {"apiVersion": f"scheduling.k8s.io/{version}", "kind": kind, "metadata": metadata, "spec": spec}


def grouped(b: Berthing, name: str, group: str, gpus: int = 8, **more: Any) -> None:
    """Create a pod of a PodGroup, with a claim for `gpus` GPUs."""
    b.cluster.apply(claim(f"{name}-gpus", gpus))
    b.cluster.apply(pod(name, f"{name}-gpus", schedulingGroup={"podGroupName": group}, **more))
