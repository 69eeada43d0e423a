"""Each write of Writer, with arguments and the preconditions that its requests must have."""

from __future__ import annotations

from typing import Any

from extender.api.asked_subgroups import PodMark
from extender.api.claim_specs import ClaimSpec
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import FINALIZER, Allocation, Claim, Consumer

KEY = ObjectKey("ns", "x")


POD = Pod(KEY, "pod-uid", resource_version="7")


CONSUMER = Consumer("pod-uid", "x")


OPEN = Claim(KEY, "claim-uid", "7")


ALLOCATED = Claim(KEY, "claim-uid", "7", allocation=Allocation(), reserved_for=(CONSUMER,), finalizers=(FINALIZER,))


OF_CLAIM = {"uid": "claim-uid", "resourceVersion": "7"}


OF_POD = {"uid": "pod-uid", "resourceVersion": "7"}


AFTER = {"uid": "claim-uid", "resourceVersion": "8"}  # as the write before left it


GUARDS: dict[str, tuple[tuple[Any, ...], list[dict[str, str]]]] = {
    "add_finalizer": ((OPEN, PodMark("g")), [OF_CLAIM]),
    "take_over": ((ALLOCATED,), [OF_CLAIM]),
    "announce_release": ((ALLOCATED,), [OF_CLAIM]),
    "allocate": ((OPEN, Allocation(), CONSUMER), [OF_CLAIM]),
    "add_consumers": ((ALLOCATED, [Consumer("other", "y")]), [OF_CLAIM]),
    "deallocate": ((ALLOCATED,), [OF_CLAIM]),
    "remove_consumer": ((ALLOCATED, "pod-uid"), [OF_CLAIM]),
    "bind_pod": ((KEY, "pod-uid", "n", {}), [{"uid": "pod-uid"}]),
    "create_special_claim": ((POD, ClaimSpec()), [{}]),
    "map_special_claim": ((POD, ALLOCATED, ()), [OF_POD]),
    "delete_claim": ((ALLOCATED,), [OF_CLAIM, AFTER, AFTER]),
    "touch_class": (("berth.dev", "a", "v"), [{}]),
    "create_event": (("Pod", KEY, "pod-uid", "Reason", "note"), [{}]),
}
