"""The nodes of a snapshot without what runs there, for replays: also the GPUs that a device plugin offers.

Which of these pods have only the kubelet knows, so they are devices of a replay only where no pod has any.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from extender.api.fields import Json, inner, need, string_map
from extender.api.nodes import resource_units
from extender.api.pods import may_need_devices
from extender.replay.fleets import naming
from extender.replay.jobs import GPU_CLASS, MAX_GPUS
from extender.sandbox import MachineNode, machine_objects, unlinked_machine
from extender.vendors import GPU, PLUGIN_RESOURCES, driver_of

WHOLE_PLUGIN = "nvidia.com/gpu"  # the device plugin whose whole GPUs a replay takes
_MEMORY = "nvidia.com/gpu.memory"  # the label of gpu-feature-discovery, in MiB
_REPLICAS, _STRATEGY = "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy"  # its labels of shared GPUs
SHARING_LABELS = (_REPLICAS, _STRATEGY)
PARTS = re.compile(r"-MIG-[0-9]g\.[0-9]{1,4}gb|-SHARED$")  # of the label of the product: MIG devices, or shared GPUs
_MAX_GPUS = 16  # of a board; a plugin that offers more gives each GPU to several pods
_ANY_MEMORY = 16 << 30  # of each GPU, if no label says it


def emptied(objects: Iterable[Json], notes: Counter[str]) -> Iterator[Json]:
    """The objects of a snapshot without the claims and the pods that may need devices, and with GPUs of device plugins.

    For `notes` see plugin_slices.
    """
    given = list(objects)
    for obj in given:
        if obj.get("kind") != "ResourceClaim" and not (obj.get("kind") == "Pod" and may_need_devices(obj)):
            yield obj
    yield from plugin_slices(given, notes)


def plugin_slices(objects: Sequence[Json], notes: Counter[str]) -> Iterator[Json]:
    """The GPUs of device plugins as slices of a DRA driver, of nodes that have no slice of GPUs.

    `notes` gets the number of nodes that are left out. Raises WireError that names a node.
    """
    slices = [inner(obj, "spec", "") for obj in objects if obj.get("kind") == "ResourceSlice"]
    with_slices = {str(spec.get("nodeName")) for spec in slices if driver_of(str(spec.get("driver"))).kind == GPU}
    for obj in objects:
        if obj.get("kind") != "Node" or not _plugin_gpus(obj) or inner(obj, "metadata", "").get("name") in with_slices:
            continue
        if (found := _plugin_slice(obj)) is not None:
            yield found
        else:
            notes["nodes of which the GPUs of a device plugin are left out, because they are shared or parts"] += 1


def has_whole_gpus(labels: Mapping[str, str]) -> bool:
    """Whether the GPUs that NVIDIA's device plugin offers on a node of these labels are whole ones.

    They are not if time-slicing or MPS gives each to several pods, or if they are MIG devices.
    """
    is_shared = labels.get(_STRATEGY, "none") != "none" or labels.get(_REPLICAS, "1") not in ("0", "1")
    return not is_shared and not PARTS.search(labels.get(PLUGIN_RESOURCES[WHOLE_PLUGIN], ""))


def may_ask_for(gpus: int) -> bool:
    """Whether a pod of a job may ask for so many GPUs of a device plugin."""
    return 0 < gpus <= MAX_GPUS


def _plugin_gpus(node: Json) -> int:
    """The GPUs that a device plugin offers on a node. Raises WireError that names the node."""
    with naming(node):
        return resource_units(
            WHOLE_PLUGIN, inner(inner(node, "status", ""), "allocatable", "status").get(WHOLE_PLUGIN, 0)
        )


def _plugin_slice(node: Json) -> Json | None:
    """The whole GPUs of a device plugin as a slice of a DRA driver; None for parts of GPUs, and for shared ones.

    gpu-feature-discovery names the product in a label. The usual board of the product joins the GPUs, if there is one.
    """
    count = _plugin_gpus(node)
    with naming(node):
        metadata = inner(node, "metadata", "")
        labels = string_map(metadata, "labels", "metadata")
        name = need(metadata, "name", ".metadata")
    product, mib = labels.get(PLUGIN_RESOURCES[WHOLE_PLUGIN], ""), labels.get(_MEMORY, "")
    if not 0 < count <= _MAX_GPUS or not has_whole_gpus(labels):
        return None
    memory = int(mib) << 20 if re.fullmatch("[0-9]{1,8}", mib) else _ANY_MEMORY
    made = machine_objects(MachineNode(name, unlinked_machine(product, count, memory), {}))
    return next(one for one in made if one["kind"] == "ResourceSlice" and one["spec"]["driver"] == GPU_CLASS)
