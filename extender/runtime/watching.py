"""Which kinds are watched and how their events reach the mirror."""

from __future__ import annotations

from collections.abc import Callable

from extender.cluster.reflector import Json, Kind
from extender.mirror.mirror import Mirror
from extender.model.claim import ObjectKey
from extender.model.device import Slice
from extender.wire.claims import decode_claim, decode_class
from extender.wire.core import decode_labels, decode_node, decode_pod
from extender.wire.slices import SliceDecoder, decode_taint_rule

_GROUP = "/apis/resource.k8s.io/v1"


def kinds(mirror: Mirror, clock: Callable[[], float] = lambda: 0.0) -> list[Kind]:
    """All kinds that must be listed before Berth is ready. `clock` says when an agent was heard, in seconds."""
    slices = SliceDecoder()

    def apply_slice(name: str, new: Slice | None) -> None:
        mirror.apply_slice(name, new, clock())

    return [
        Kind("resourceslices", f"{_GROUP}/resourceslices", _plain(apply_slice, slices.decode)),
        # v1 and on from 1.37, v1beta2 and off in 1.36; where neither is served there are no rules.
        Kind(
            "devicetaintrules", f"{_GROUP}/devicetaintrules", _plain(mirror.apply_rule, decode_taint_rule),
            optional=True, older=("/apis/resource.k8s.io/v1beta2/devicetaintrules",),
        ),
        Kind("deviceclasses", f"{_GROUP}/deviceclasses", _plain(mirror.apply_class, decode_class)),
        Kind("resourceclaims", f"{_GROUP}/resourceclaims", _claims(mirror, listed=False), listed=_claims(mirror, listed=True)),
        Kind("nodes", "/api/v1/nodes", _plain(mirror.apply_node, decode_node)),
        Kind("namespaces", "/api/v1/namespaces", _plain(mirror.apply_namespace, decode_labels)),
        # Only pods that wait: once bound, a pod leaves this watch as a deletion, and its claims speak for it.
        Kind("pods", "/api/v1/pods", _Pods(mirror), field_selector="spec.nodeName="),
    ]


def _plain(put: Callable[..., None], decode: Callable[[Json], object]) -> Callable[[str, Json | None], None]:
    return lambda key, obj: put(key, None if obj is None else decode(obj))


def _claims(mirror: Mirror, *, listed: bool) -> Callable[[str, Json | None], None]:
    def apply(key: str, obj: Json | None) -> None:
        namespace, _, name = key.partition("/")
        mirror.apply_claim(ObjectKey(namespace, name), None if obj is None else decode_claim(obj), listed=listed)

    return apply


class _Pods:
    """Pods are known by UID, events by name: a pod recreated under its name is another pod."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._uids: dict[str, str] = {}

    def __call__(self, key: str, obj: Json | None) -> None:
        known = self._uids.get(key)
        pod = decode_pod(obj) if obj is not None else None
        if known is not None and (pod is None or pod.uid != known):
            self._mirror.apply_pod(known, None)
            del self._uids[key]
        if pod is not None:
            self._uids[key] = pod.uid
            self._mirror.apply_pod(pod.uid, pod)
