"""The kinds that Berth watches, and how the cache applies an event of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from extender.api.device_classes import decode_class
from extender.api.fields import Json, get, need
from extender.api.nodes import decode_node
from extender.api.object_meta import ObjectKey, decode_labels
from extender.api.pod_groups import GROUP_OBJECTS, GroupKey, GroupObject, GroupPolicy, GroupSource
from extender.api.pods import decode_pod
from extender.api.resource_claims import decode_claim
from extender.api.resource_slices import Slice, SliceDecoder, decode_taint_rule
from extender.cache import ClusterCache
from extender.cluster import WatchedResource

_GROUP = "/apis/resource.k8s.io/v1"


def watched_resources(cache: ClusterCache, clock: Callable[[], float] = lambda: 0.0) -> list[WatchedResource]:
    """All kinds that must be listed before Berth is ready. `clock` returns seconds, for the age of agents' slices."""
    slices = SliceDecoder()

    def apply_slice(name: str, new: Slice | None) -> None:
        cache.apply_slice(name, new, clock())

    return [
        WatchedResource(
            "resourceslices", "ResourceSliceList", f"{_GROUP}/resourceslices", _plain(apply_slice, slices.decode)
        ),
        # v1 and on by default since Kubernetes 1.37, v1beta2 and off in 1.36. Without either there are no rules.
        WatchedResource(
            "devicetaintrules",
            "DeviceTaintRuleList",
            f"{_GROUP}/devicetaintrules",
            _plain(cache.apply_rule, decode_taint_rule),
            optional=True,
            older=("/apis/resource.k8s.io/v1beta2/devicetaintrules",),
        ),
        WatchedResource(
            "deviceclasses", "DeviceClassList", f"{_GROUP}/deviceclasses", _plain(cache.apply_class, decode_class)
        ),
        WatchedResource(
            "resourceclaims",
            "ResourceClaimList",
            f"{_GROUP}/resourceclaims",
            _claims(cache, listed=False),
            listed=_claims(cache, listed=True),
        ),
        WatchedResource("nodes", "NodeList", "/api/v1/nodes", _plain(cache.apply_node, decode_node)),
        WatchedResource(
            "namespaces", "NamespaceList", "/api/v1/namespaces", _plain(cache.apply_namespace, decode_labels)
        ),
        *(_group_objects(cache, one) for one in GROUP_OBJECTS),
        # Only unbound pods: a bound pod leaves this watch as a deletion, and its claims show the devices it uses.
        WatchedResource("pods", "PodList", "/api/v1/pods", _Pods(cache), field_selector="spec.nodeName="),
    ]


def object_appliers(cache: ClusterCache, clock: Callable[[], float] = lambda: 0.0) -> dict[str, Callable[[Json], None]]:
    """By kind, what puts an object of a file into the cache. Raises WireError.

    Without the kinds of groups, two of which have one name: group_policy_of reads these.
    """
    groups = {one.resource for one in GROUP_OBJECTS}
    kinds = (kind for kind in watched_resources(cache, clock) if kind.name not in groups)
    return {kind.list_kind.removesuffix("List"): partial(_apply_object, kind) for kind in kinds}


def _apply_object(kind: WatchedResource, obj: Json) -> None:
    metadata = get(obj, "metadata", dict, "", {})
    name, namespace = need(metadata, "name", ".metadata"), metadata.get("namespace")
    kind.apply(f"{namespace}/{name}" if namespace else name, obj)


def _plain(put: Callable[..., None], decode: Callable[[Json], object]) -> Callable[[str, Json | None], None]:
    return lambda key, obj: put(key, None if obj is None else decode(obj))


def _claims(cache: ClusterCache, *, listed: bool) -> Callable[[str, Json | None], None]:
    def apply(key: str, obj: Json | None) -> None:
        namespace, _, name = key.rpartition("/")
        claim = decode_claim(obj) if obj is not None else None
        cache.apply_claim(claim.key if claim is not None else ObjectKey(namespace, name), claim, listed=listed)

    return apply


def _group_objects(cache: ClusterCache, of: GroupObject) -> WatchedResource:
    newest, *older = (f"/apis/{of.api}/{version}/{of.plural}" for version in of.versions)
    apply = _policies(cache, of.source, of.decode)
    return WatchedResource(of.resource, f"{of.kind}List", newest, apply, optional=True, older=tuple(older))


def _policies(
    cache: ClusterCache, source: GroupSource, decode: Callable[[Json], GroupPolicy]
) -> Callable[[str, Json | None], None]:
    def apply(key: str, obj: Json | None) -> None:
        namespace, _, name = key.partition("/")
        cache.apply_group_policy(GroupKey(namespace, source, name), None if obj is None else decode(obj))

    return apply


class _Pods:
    """Applies events of pods. The cache keys pods by UID, but events name them: a recreated pod is another pod."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._uids: dict[str, str] = {}

    def __call__(self, key: str, obj: Json | None) -> None:
        known = self._uids.get(key)
        pod = decode_pod(obj) if obj is not None else None
        if known is not None and (pod is None or pod.uid != known):
            self._cache.apply_pod(known, None)
            del self._uids[key]
        if pod is not None:
            self._uids[key] = pod.uid
            self._cache.apply_pod(pod.uid, pod)
