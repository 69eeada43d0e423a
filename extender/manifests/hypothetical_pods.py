"""Hypothetical pods: the pods that users' manifests would create, with the claims from their templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from extender.api.device_classes import DeviceClass, decode_class
from extender.api.fields import Json, get, inner
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupPolicy, GroupTrees, Membership, group_policy_of
from extender.api.pods import MAX_CLAIMS, Pod, decode_pod
from extender.api.resource_claims import Claim, decode_claim
from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line, shown
from extender.manifests.decoded_objects import checked, claim_of_template
from extender.manifests.pod_templates import pod_templates

_HYPOTHETICAL_UID = "imagined"
_NONE: Mapping[GroupKey, GroupPolicy] = MappingProxyType({})
_Claims = Mapping[tuple[str, str, str], Claim]  # by kind, ResourceClaim or ResourceClaimTemplate, namespace and name
_MAX_NAME = 253  # characters, as in the API; an answer repeats the name of a workload for each pod


class HypotheticalPod(NamedTuple):
    """A pod that a manifest would create, its claims, and the position of its object among the given ones."""

    pod: Pod
    claims: tuple[Claim, ...]
    made_by: int = 0


class _Source(NamedTuple):
    """A template, and the pods of one group that its object makes of it."""

    pod: Json  # with the name of the object
    pods: int | None = 1  # None if the object does not say
    first: int | None = None  # index of the first pod; None if the object is a Pod

    def made(self, count: int) -> Iterator[Json]:
        """Yield `count` pods of the template. A Pod yields itself, once."""
        if self.first is None:
            yield self.pod
            return
        metadata = self.pod["metadata"]
        for index in range(self.first, self.first + count):
            yield {**self.pod, "metadata": {**metadata, "name": f"{metadata['name']}-{index}"}}


@dataclass(slots=True)
class HypotheticalGroup:
    """A group that manifests would create. `alike` is the number of such groups: a LeaderWorkerSet has several."""

    membership: Membership  # of its first pod
    policies: Mapping[GroupKey, GroupPolicy]  # of all groups in the manifests
    trees: GroupTrees
    alike: int
    claims: _Claims
    sources: list[_Source] = field(default_factory=list)

    @property
    def key(self) -> GroupKey:
        return self.membership.key

    @property
    def size(self) -> int | None:
        """The number of its pods; None if the manifests do not say."""
        sizes = [source.pods for source in self.sources]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def members(self, most: int, assumed: int) -> Iterator[HypotheticalPod]:
        """Its first pods in the order of the manifests, `most` at most.

        `assumed` is their number if the manifests do not say. Raises WireError, also if two pods have one name.
        """
        counts = zip(self.sources, self._counts(assumed), strict=True)
        made = (pod for source, count in counts for pod in source.made(count))
        names = set[str]()
        for obj in islice(made, most):
            one = _hypothetical(obj, self.claims, self.trees)
            if one.pod.key.name in names:
                raise WireError("objects", f"two pods of group {self.key} have the name {one.pod.key.name}")
            names.add(one.pod.key.name)
            yield one

    def _counts(self, assumed: int) -> list[int]:
        """Number of pods of each source. A source without a number gets one pod; the last such source gets the rest."""
        counts = [1 if source.pods is None else source.pods for source in self.sources]
        unknown = [position for position, source in enumerate(self.sources) if source.pods is None]
        if unknown:
            counts[unknown[-1]] += max(assumed - sum(counts), 0)
        return counts


class Hypothetical(NamedTuple):
    """The objects that manifests would create: one pod of each template, the groups that these pods name, classes."""

    pods: Iterable[HypotheticalPod]
    groups: list[HypotheticalGroup]
    classes: tuple[DeviceClass, ...] = ()


def hypothetical(
    objects: Iterable[Json], known_policies: Mapping[GroupKey, GroupPolicy] = _NONE, most_pods: float = inf
) -> Hypothetical:
    """The pods and groups that these objects would create in a cluster with these policies of groups.

    Raises WireError if a claim template is missing, if there is no pod or more than `most_pods`, or if a field has the
    wrong type.
    """
    known = [checked(obj, f"objects[{position}]") for position, obj in enumerate(objects)]
    read = {"ResourceClaim": lambda obj: decode_claim(_made(obj)), "ResourceClaimTemplate": claim_of_template}
    claims = {(obj["kind"], *_key(obj)): read[obj["kind"]](obj) for obj in known if obj.get("kind") in read}
    policies: dict[GroupKey, GroupPolicy] = {}
    for obj in known:
        policies |= group_policy_of(obj)
    trees = GroupTrees({**known_policies, **policies})
    pods: list[HypotheticalPod] = []
    groups: dict[GroupKey, HypotheticalGroup] = {}
    for position, obj in enumerate(known):
        for source in _sources(obj):
            if len(pods) >= most_pods:
                raise WireError("objects", f"they make more than {most_pods} pods, the limit of one question")
            found = _hypothetical(source.pod, claims, trees)._replace(made_by=position)
            pods.append(found)
            membership = found.pod.membership
            if membership is not None and membership.key.name:
                new = HypotheticalGroup(membership, policies, trees, _alike(obj), claims)
                group = groups.setdefault(membership.key, new)
                group.sources.append(source)
    if not pods:
        kinds = ", ".join(sorted({str(obj.get("kind")) for obj in known}))
        raise WireError("kind", f"none of {one_line(kinds) or 'no objects'} creates pods")
    classes = tuple(decode_class(obj) for obj in known if is_device_class(obj))
    return Hypothetical(pods, list(groups.values()), classes)


def is_device_class(obj: Json) -> bool:
    """Whether the object is a DeviceClass of DRA: drivers have custom resources of the same kind."""
    return obj.get("kind") == "DeviceClass" and str(obj.get("apiVersion")).startswith("resource.k8s.io/")


def _alike(obj: Json) -> int:
    """How many groups of the same pods the object makes."""
    if obj.get("kind") != "LeaderWorkerSet":
        return 1
    return get(inner(obj, "spec", ""), "replicas", int, "spec", 1)


def _sources(obj: Json) -> Iterator[_Source]:
    """The templates of an object. Each role counts its pods from 0; a LeaderWorkerSet counts those of both roles."""
    namespace, name = _key(obj)
    firsts = Counter[str]()
    for template in pod_templates(obj):
        made = f"{name}-{template.role}" if template.role else name
        metadata = {**(template.pod.get("metadata") or {}), "namespace": namespace, "name": made}
        pod = {**template.pod, "metadata": metadata}
        counter = name if obj.get("kind") == "LeaderWorkerSet" else made
        yield _Source(pod) if obj.get("kind") == "Pod" else _Source(pod, template.pods, firsts[counter])
        firsts[counter] += template.pods or 0


def _hypothetical(obj: Json, known: _Claims, trees: GroupTrees) -> HypotheticalPod:
    """Raises WireError. The claims of a pod with more than MAX_CLAIMS are left out: Berth does not read them."""
    namespace, name = _key(obj)
    uid = f"{_HYPOTHETICAL_UID}/{namespace}/{name}"
    statuses, mine = [], []
    entries = decode_pod(obj).claims
    for entry in entries if len(entries) <= MAX_CLAIMS else ():
        if not entry.template_name:
            claim = known.get(("ResourceClaim", namespace, entry.claim_name))
            mine += [claim] if claim is not None else []
            continue
        template = known.get(("ResourceClaimTemplate", namespace, entry.template_name))
        if template is None:
            raise WireError(
                f"pod {namespace}/{name}: spec.resourceClaims",
                f"ResourceClaimTemplate {namespace}/{entry.template_name} is not among the given objects; add the "
                f"output of: kubectl -n {namespace} get resourceclaimtemplate {entry.template_name} -o yaml",
            )
        generated = f"{name}-{entry.name}"
        mine.append(
            replace(template, key=ObjectKey(namespace, generated), uid=f"{uid}/{entry.name}", owner_pod_uid=uid)
        )
        statuses.append({"name": entry.name, "resourceClaimName": generated})
    made = {**obj, "metadata": {**obj["metadata"], "uid": uid}, "status": {"resourceClaimStatuses": statuses}}
    pod = decode_pod(made)
    own = pod.membership
    return HypotheticalPod(replace(pod, membership=trees.membership(own)) if own is not None else pod, tuple(mine))


def _made(obj: Json) -> Json:
    """The object with its name, namespace (default: 'default') and UID filled in: pods that share a claim know it by
    its UID.
    """
    namespace, name = _key(obj)
    metadata = obj.get("metadata") or {}
    uid = metadata.get("uid") or f"{_HYPOTHETICAL_UID}/{namespace}/{name}"
    return {**obj, "metadata": {**metadata, "namespace": namespace, "name": name, "uid": uid}}


def _key(obj: Json) -> tuple[str, str]:
    metadata = inner(obj, "metadata", "")
    namespace = str(metadata.get("namespace") or "default")
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    for part, text in (("namespace", namespace), ("name", name)):
        if len(text) > _MAX_NAME:
            raise WireError(f"metadata.{part}", f"{shown(text)} has more than {_MAX_NAME} characters")
    return namespace, name
