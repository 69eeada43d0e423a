"""The writes to the API server and their compensations, each guarded by resourceVersion or UID, and their retry."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import TypeVar

import structlog

from extender.api.asked_subgroups import CPU_ANNOTATION, GROUP_PART_ANNOTATION, PodMark
from extender.api.claim_specs import ClaimSpec, encode_simple_spec
from extender.api.device_classes import IMPLICIT_RESOURCE_PREFIX, decode_class, extended_resources
from extender.api.fields import Json, decode_readable
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod, decode_bound_pod, decode_pod
from extender.api.protobuf import merged_claim
from extender.api.resource_claims import (
    ALLOCATOR_ANNOTATION,
    EXTENDED_CLAIM_ANNOTATION,
    FINALIZER,
    GENERATED_PREFIX,
    GROUP_ANNOTATION,
    RELEASE_SUFFIX,
    SCHEDULING_GROUP,
    Allocation,
    Claim,
    Consumer,
    decode_claim,
    encode_allocation,
    encode_consumer,
    special_claim_prefix,
)
from extender.base.berth_errors import WireError
from extender.base.text_limits import cut
from extender.cluster.api_errors import Conflict, Invalid, NotFound, NotServed, TooMany, Unavailable, Unexpected
from extender.cluster.client import JSON_PATCH, MERGE_PATCH, ApiClient, now_micro
from extender.cluster.reflector import pages

_T = TypeVar("_T")
_Known = TypeVar("_Known")
_GROUP = "/apis/resource.k8s.io/v1"
_POD_GROUP_VERSIONS = ("v1beta1", "v1alpha2")  # of Kubernetes 1.37 and 1.36
_NOT_FAILED = "spec.nodeName!=,status.phase!=Failed"
_RUNNING = f"{_NOT_FAILED},status.phase!=Succeeded"
_MAX_EVENT_NAME = 230  # characters of the object's name in that of an Event, which has 253
_PAGE_OBJECTS = 100  # objects per list request: pods have about 1 MB, decoded in about 3 ms
_MAX_NOTE_BYTES = 1024  # bytes of an Event's note; the API server rejects longer notes
_MAX_TRIES = 5  # of a write, as client-go's DefaultRetry
_MORE_SECONDS = 0.1  # by which each pause between two tries is longer than the one before


async def retry_on_conflict(
    write: Callable[[_Known], Awaitable[_T]], read: Callable[[], Awaitable[_Known]], known: _Known | None = None
) -> _T:
    """`write(known)`; after a conflict read the object and write again, as client-go's retry.RetryOnConflict.

    Without `known` it reads first. `write` checks each object that it gets. It must recognise its own write:
    Unavailable is retried, too, and the write whose reply was lost may be stored. So is TooMany. Five tries, and a
    failed read is one. The first retry is at once, and the next pauses are 0.1, 0.2 and 0.3 s; after TooMany the pause
    is what the API server asks for. Then it raises the error of the last try, and any other error at once.
    """
    failures = 0
    while True:
        try:
            return await write(known if known is not None and not failures else await read())
        except (Conflict, Unavailable, TooMany) as error:
            failures += 1
            if failures == _MAX_TRIES:
                raise
            pause = error.retry_after if isinstance(error, TooMany) else _MORE_SECONDS * (failures - 1)
        await asyncio.sleep(pause)


def claim_path(key: ObjectKey, sub: str = "") -> str:
    """The path of a claim or of its subresource."""
    path = f"{_GROUP}/namespaces/{key.namespace}/resourceclaims/{key.name}"
    return f"{path}/{sub}" if sub else path


class Writer:
    """Writes claims, Bindings, Events and pod status.

    Every method raises ClusterError. A returned claim is the one that the server stored: an answer that shows another
    object, as a proxy may send it, counts as a lost reply.
    """

    def __init__(self, client: ApiClient, identity: str = "berth") -> None:
        self._client = client
        self.identity = identity  # unique for this start of the process
        self.releasing_identity = f"{identity}{RELEASE_SUFFIX}"
        self._log = structlog.get_logger("berth.write")

    async def read_claim(self, key: ObjectKey) -> Claim:
        return _decoded(await self._client.get(claim_path(key)), key, decode_claim)

    async def read_pod(self, key: ObjectKey) -> Pod:
        return _decoded(await self._client.get(f"/api/v1/namespaces/{key.namespace}/pods/{key.name}"), key, decode_pod)

    async def read_has_bound_member(self, group: ObjectKey) -> bool:
        """Whether a running pod of the PodGroup has a node, by a new list of the namespace's pods.

        The kubelet lets such a pod use the group's claims, even if the group has another UID now. A pod that cannot be
        read may be such a pod, and is an error.
        """
        path = f"/api/v1/namespaces/{group.namespace}/pods"
        async with aclosing(pages(self._client, path, "PodList", _PAGE_OBJECTS, {"fieldSelector": _RUNNING})) as found:
            async for page in found:
                pods, problems = decode_readable(page.get("items") or (), decode_bound_pod)
                if any(pod.group == group.name for pod in pods):
                    return True
                if problems:
                    raise Unexpected(f"list {path}: {problems[0]}")
        return False

    async def read_bound_members(self, namespace: str) -> dict[GroupKey, dict[str, str]]:
        """By group, UID to node of the bound pods that run and do not terminate, by a new list of the namespace's pods.

        A pod that succeeded has done its part: it counts, too, while another pod of its group runs. A pod that cannot
        be read is logged, and counts for no group.
        """
        path, found = f"/api/v1/namespaces/{namespace}/pods", dict[GroupKey, dict[str, str]]()
        succeeded = dict[GroupKey, dict[str, str]]()
        async for page in pages(self._client, path, "PodList", _PAGE_OBJECTS, {"fieldSelector": _NOT_FAILED}):
            pods, problems = decode_readable(page.get("items") or (), decode_bound_pod)
            for problem in problems[:1]:
                self._log.warning("unreadable pods", namespace=namespace, pods=len(problems), problem=problem)
            for pod in pods:
                if pod.node_name and pod.membership is not None and not pod.deleting:
                    which = succeeded if pod.phase == "Succeeded" else found
                    which.setdefault(pod.membership.key, {})[pod.uid] = pod.node_name
        return {key: succeeded.get(key, {}) | running for key, running in found.items()}

    async def read_extended_resources(self) -> set[str]:
        """The extended resources that DeviceClasses provide, by a new list; their implicit names, too."""
        path, names = f"{_GROUP}/deviceclasses", set[str]()
        async for page in pages(self._client, path, "DeviceClassList", _PAGE_OBJECTS):
            classes, _ = decode_readable(page.get("items") or (), decode_class)
            names |= {f"{IMPLICIT_RESOURCE_PREFIX}{one.name}" for one in classes}
            names |= extended_resources(classes).keys()
        return names

    async def read_pod_group(self, key: ObjectKey) -> Json | None:
        """The PodGroup; None if it does not exist or the server does not serve the kind."""
        for version in _POD_GROUP_VERSIONS:
            path = f"/apis/{SCHEDULING_GROUP}/{version}/namespaces/{key.namespace}/podgroups/{key.name}"
            try:
                return _shown(await self._client.get(path), key)
            except (NotFound, NotServed):
                continue
        return None

    async def add_finalizer(self, claim: Claim, mark: PodMark) -> Claim:
        """Add the finalizer and the annotations: this process as the allocator, and the mark of the pod.

        The claim controller deallocates only claims with the finalizer.
        """
        if FINALIZER in claim.finalizers and claim.allocator == self.identity and claim.mark == mark:
            return claim
        finalizers = claim.finalizers if FINALIZER in claim.finalizers else (*claim.finalizers, FINALIZER)
        annotations = {ALLOCATOR_ANNOTATION: self.identity, GROUP_ANNOTATION: mark.group or None}
        if mark.group_part or claim.group_part:
            annotations[GROUP_PART_ANNOTATION] = mark.group_part or None
        if mark.cpu or claim.cpu:
            annotations[CPU_ANNOTATION] = f"{mark.cpu}m" if mark.cpu else None
        return await self._merge(claim, {"finalizers": list(finalizers), "annotations": annotations})

    async def take_over(self, claim: Claim) -> Claim:
        """Become the allocator of another process's allocation, so that the other process cannot deallocate it."""
        return await self._merge(claim, {"annotations": {ALLOCATOR_ANNOTATION: self.identity}})

    async def announce_release(self, claim: Claim) -> Claim:
        """Announce that an allocation ends: with an allocator that no bind writes, not even one of this process."""
        return await self._merge(claim, {"annotations": {ALLOCATOR_ANNOTATION: self.releasing_identity}})

    async def allocate(self, claim: Claim, allocation: Allocation, consumer: Consumer) -> Claim:
        """Write the allocation and the consumer in one request.

        A merge patch would lose the nulls in opaque parameters; a JSON patch stores its values as they are.
        """
        status: Json = {
            "allocation": encode_allocation(allocation),
            "reservedFor": [*map(encode_consumer, claim.reserved_for), encode_consumer(consumer)],
        }
        members = {f"/metadata/{name}": value for name, value in _guard(claim).items()}
        members |= {f"/status/{name}": value for name, value in status.items()}
        body = [{"op": "add", "path": path, "value": value} for path, value in members.items()]
        answer = await self._client.patch(claim_path(claim.key, "status"), body, JSON_PATCH)
        return _decoded(answer, claim.key, decode_claim, claim.uid)

    async def add_consumers(self, claim: Claim, consumers: Iterable[Consumer]) -> Claim:
        """Add consumers to `status.reservedFor`. The request omits the allocation, so it does not change."""
        added = [consumer for consumer in consumers if not claim.is_reserved_for(consumer.uid)]
        if not added:
            return claim
        return await self._consumers(claim, [*claim.reserved_for, *added])

    async def deallocate(self, claim: Claim) -> Claim:
        """Remove the allocation of a claim, its consumers and its device status."""
        body = {"metadata": _guard(claim), "status": {"allocation": None, "reservedFor": None, "devices": None}}
        answer = await self._client.patch(claim_path(claim.key, "status"), body, MERGE_PATCH)
        return _decoded(answer, claim.key, decode_claim, claim.uid)

    async def remove_consumer(self, claim: Claim, pod_uid: str) -> None:
        """Remove a pod from `status.reservedFor`."""
        await self._consumers(claim, [consumer for consumer in claim.reserved_for if consumer.uid != pod_uid])

    async def bind_pod(self, key: ObjectKey, uid: str, node: str, annotations: dict[str, str]) -> None:
        """POST the Binding, as DefaultBinder does. The API server copies its annotations to the pod."""
        metadata: Json = {"name": key.name, "namespace": key.namespace, "uid": uid}
        if annotations:
            metadata["annotations"] = annotations
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"/api/v1/namespaces/{key.namespace}/pods/{key.name}/binding"
        answer = await self._client.post(path, body)
        if (answer.get("kind"), answer.get("status")) != ("Status", "Success"):
            raise Unavailable(f"POST {path}: the answer is no Status with Success")

    async def create_special_claim(self, pod: Pod, spec: ClaimSpec) -> Claim:
        """POST the claim of a pod's extended resources, owned by the pod.

        As in-tree without blockOwnerDeletion: OpenShift wants the right to update pods/finalizers for it.
        """
        owner: Json = {"apiVersion": "v1", "kind": "Pod", "name": pod.key.name, "uid": pod.uid, "controller": True}
        body: Json = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": special_claim_prefix(pod.key.name),
                "annotations": {EXTENDED_CLAIM_ANNOTATION: "true", ALLOCATOR_ANNOTATION: self.identity},
                "ownerReferences": [owner],
                "finalizers": [FINALIZER],
            },
            "spec": encode_simple_spec(spec),
        }
        path = f"{_GROUP}/namespaces/{pod.key.namespace}/resourceclaims"
        answer = await self._client.post(path, body)
        metadata = answer.get("metadata")
        name = str(metadata.get("name") if isinstance(metadata, dict) else None)
        if not name.startswith(special_claim_prefix(pod.key.name)[:GENERATED_PREFIX]):
            raise Unavailable(f"POST {path}: the answer is another object")
        return _decoded(answer, ObjectKey(pod.key.namespace, name), decode_claim)

    async def map_special_claim(self, pod: Pod, claim: Claim, mappings: Iterable[tuple[str, str, str]]) -> None:
        """PATCH pod/status with the special claim and its mappings (container, resource, request).

        Guarded by the pod's resourceVersion.
        """
        entries = [{"containerName": c, "resourceName": r, "requestName": q} for c, r, q in mappings]
        status = {"extendedResourceClaimStatus": {"resourceClaimName": claim.key.name, "requestMappings": entries}}
        await self._pod_status(pod, status)

    async def delete_claim(self, claim: Claim) -> None:
        """Deallocate a special claim, remove the finalizer, and delete it, after a failed bind.

        Each write is guarded by the resourceVersion of the write before.
        """
        if claim.allocation is not None or claim.reserved_for:
            claim = await self.deallocate(claim)
        if FINALIZER in claim.finalizers:
            claim = await self._merge(claim, {"finalizers": [f for f in claim.finalizers if f != FINALIZER]})
        await self._client.delete(claim_path(claim.key), {"preconditions": _guard(claim)})

    async def touch_class(self, name: str, annotation: str, value: str) -> None:
        """Change one annotation of the marker DeviceClass, so that kube-scheduler requeues pods that Berth rejected."""
        body = {"metadata": {"annotations": {annotation: value}}}
        await self._client.patch(f"{_GROUP}/deviceclasses/{name}", body, MERGE_PATCH)

    async def create_event(self, kind: str, key: ObjectKey, uid: str, reason: str, note: str) -> None:
        """POST an Event (events.k8s.io/v1) on a Pod, ConfigMap or ResourceClaim; a note is cut to 1,024 bytes. The name
        is made of the object and the note, so that a console that restarted does not write the same Event again."""
        version = "resource.k8s.io/v1" if kind == "ResourceClaim" else "v1"
        about = {"apiVersion": version, "kind": kind, "namespace": key.namespace, "name": key.name, "uid": uid}
        digest = hashlib.sha256(f"{kind}|{uid}|{reason}|{note}".encode()).hexdigest()[:16]
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{key.name[:_MAX_EVENT_NAME]}.{digest}", "namespace": key.namespace},
            "eventTime": now_micro(),
            "type": "Warning",
            "action": "Scheduling",
            "reason": reason,
            "note": cut(note, _MAX_NOTE_BYTES),
            "reportingController": "berth.dev/berth",
            "reportingInstance": "berth",
            "regarding": about,
        }
        with suppress(Conflict):  # it exists
            await self._client.post(f"/apis/events.k8s.io/v1/namespaces/{key.namespace}/events", body)

    async def _pod_status(self, pod: Pod, status: Json) -> None:
        body = {"metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version}, "status": status}
        path = f"/api/v1/namespaces/{pod.key.namespace}/pods/{pod.key.name}/status"
        _shown(await self._client.patch(path, body, MERGE_PATCH), pod.key, pod.uid)

    async def _consumers(self, claim: Claim, consumers: Iterable[Consumer]) -> Claim:
        return await self._merge(claim, {}, {"reservedFor": [*map(encode_consumer, consumers)] or None})

    async def _merge(self, claim: Claim, metadata: Json, status: Json | None = None) -> Claim:
        """Merge metadata into a claim whose spec the API server must find unchanged byte for byte, or a status into
        one whose allocation it must find so.

        A patch makes the server write its object as JSON without blanks and with `&`, `<` and `>` escaped, read it
        again, and compare. It rejects its own text where a client stored opaque parameters in another form. Protobuf
        keeps the bytes.
        """
        body: Json = {"metadata": {**_guard(claim), **metadata}} | ({} if status is None else {"status": status})
        path = claim_path(claim.key, "" if status is None else "status")
        try:
            answer = await self._client.patch(path, body, MERGE_PATCH)
        except Invalid:
            stored = await self._client.get_protobuf(claim_path(claim.key))
            try:
                merged = merged_claim(stored, body)
            except WireError as error:
                raise Unavailable(f"GET {claim_path(claim.key)}: {error}") from error
            answer = await self._client.put(path, merged)
        return _decoded(answer, claim.key, decode_claim, claim.uid)


def _guard(claim: Claim) -> Json:
    return {"uid": claim.uid, "resourceVersion": claim.resource_version}


def _shown(answer: Json, key: ObjectKey, uid: str = "") -> Json:
    """The answer to a request about one object. Raises Unavailable if it shows another object, or none."""
    metadata = answer.get("metadata")
    found = metadata if isinstance(metadata, dict) else {}
    shown = found.get("uid")
    is_other = (found.get("namespace"), found.get("name")) != (key.namespace, key.name)
    if is_other or not isinstance(shown, str) or not shown or uid not in ("", shown):
        raise Unavailable(f"the answer to a request about {key} shows another object")
    return answer


def _decoded(answer: Json, key: ObjectKey, decode: Callable[[Json], _T], uid: str = "") -> _T:
    """The object of an answer. Raises Unavailable as `_shown` does, and if a field cannot be read."""
    try:
        return decode(_shown(answer, key, uid))
    except WireError as error:
        raise Unavailable(f"{key} cannot be read: {error}") from error
