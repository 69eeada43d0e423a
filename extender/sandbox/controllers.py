"""The parts of kube-controller-manager that claims need.

ClaimController creates claims from templates, and removes deleted and completed pods from `status.reservedFor`.
"""

from __future__ import annotations

from typing import Any

from extender.api.fields import Json
from extender.api.resource_claims import FINALIZER
from extender.sandbox.apiserver.registry import RESOURCES, Registry
from extender.sandbox.apiserver.versioned_store import Change

_CLAIMS = RESOURCES["resource.k8s.io", "resourceclaims"]
_DONE = ("Succeeded", "Failed")


class ClaimController:
    """Reacts to every change of pods and templates within the write that made it."""

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
            self._registry.patch(
                RESOURCES["", "pods"], key, {"status": {"resourceClaimStatuses": statuses}}, "status", strategic=False
            )

    def _create(self, pod: Json, entry: str, template: Json) -> str:
        metadata, inner = pod["metadata"], template["spec"]
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        claim = {
            "metadata": {
                "generateName": f"{metadata['name']}-{entry}-",
                "annotations": {"resource.kubernetes.io/pod-claim-name": entry},
                "labels": (inner.get("metadata") or {}).get("labels") or {},
                "ownerReferences": [owner],
            },
            "spec": inner["spec"],
        }
        return str(self._registry.create(_CLAIMS, metadata["namespace"], claim)["metadata"]["name"])

    def _release(self, pod: Json) -> None:
        """Remove a pod from `status.reservedFor`. With the last consumer, the allocation and the finalizer go too."""
        uid = pod["metadata"]["uid"]
        for claim in self._registry.store.all("resourceclaims", pod["metadata"]["namespace"]):
            reserved = (claim.get("status") or {}).get("reservedFor") or []
            left = [entry for entry in reserved if entry["uid"] != uid]
            owned = any(owner["uid"] == uid for owner in claim["metadata"].get("ownerReferences") or [])
            if len(left) < len(reserved):
                self._shrink(claim, left)
            if owned:
                self._collect(claim)

    def _shrink(self, claim: Json, left: list[Any]) -> None:
        key = (claim["metadata"]["namespace"], claim["metadata"]["name"])
        if left:
            self._registry.patch(_CLAIMS, key, {"status": {"reservedFor": left}}, "status", strategic=False)
            return
        self._registry.patch(
            _CLAIMS,
            key,
            {"status": {"reservedFor": None, "allocation": None, "devices": None}},
            "status",
            strategic=False,
        )
        self._drop_finalizer(key)

    def _drop_finalizer(self, key: tuple[str, str]) -> None:
        claim = self._registry.store.get("resourceclaims", key)
        if claim is not None and FINALIZER in (claim["metadata"].get("finalizers") or []):
            kept = [f for f in claim["metadata"]["finalizers"] if f != FINALIZER]
            self._registry.patch(_CLAIMS, key, {"metadata": {"finalizers": kept}}, "", strategic=False)

    def _collect(self, claim: Json) -> None:
        key = (claim["metadata"]["namespace"], claim["metadata"]["name"])
        store = self._registry.store
        if store.get("resourceclaims", key) is not None:
            self._shrink(claim, [])
        if store.get("resourceclaims", key) is not None:  # a claim that is deleted already goes with its finalizer
            self._registry.delete(_CLAIMS, key)


def _is_done(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in _DONE
