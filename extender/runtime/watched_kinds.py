"""The kinds that Berth watches, and the functions that apply their events to the cache."""

from __future__ import annotations

from collections.abc import Callable

from extender.cache import ClusterCache
from extender.cluster import WatchedResource
from extender.model import GroupKey, GroupPolicy, GroupSource, ObjectKey, Slice
from extender.wire import (
    Json,
    SliceDecoder,
    decode_claim,
    decode_class,
    decode_core_policy,
    decode_labels,
    decode_leader_worker_set,
    decode_node,
    decode_pod,
    decode_scheduler_plugins_policy,
    decode_taint_rule,
)

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
        # 1.37 serves v1beta1, 1.36 v1alpha2; off by default in both.
        WatchedResource(
            "podgroups",
            "PodGroupList",
            "/apis/scheduling.k8s.io/v1beta1/podgroups",
            _policies(cache, GroupSource.CORE, decode_core_policy),
            optional=True,
            older=("/apis/scheduling.k8s.io/v1alpha2/podgroups",),
        ),
        WatchedResource(
            "podgroups.scheduling.x-k8s.io",
            "PodGroupList",
            "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
            _policies(cache, GroupSource.SCHEDULER_PLUGINS, decode_scheduler_plugins_policy),
            optional=True,
        ),
        WatchedResource(
            "leaderworkersets",
            "LeaderWorkerSetList",
            "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
            _policies(cache, GroupSource.LEADER_WORKER_SET, decode_leader_worker_set),
            optional=True,
        ),
        # Only unbound pods: a bound pod leaves this watch as a deletion, and its claims show the devices it uses.
        WatchedResource("pods", "PodList", "/api/v1/pods", _Pods(cache), field_selector="spec.nodeName="),
    ]


def _plain(put: Callable[..., None], decode: Callable[[Json], object]) -> Callable[[str, Json | None], None]:
    return lambda key, obj: put(key, None if obj is None else decode(obj))


def _claims(cache: ClusterCache, *, listed: bool) -> Callable[[str, Json | None], None]:
    def apply(key: str, obj: Json | None) -> None:
        namespace, _, name = key.partition("/")
        cache.apply_claim(ObjectKey(namespace, name), None if obj is None else decode_claim(obj), listed=listed)

    return apply


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
