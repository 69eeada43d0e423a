"""The nodes of a snapshot without what runs there, for replays: also the GPUs that a device plugin offers.

Which of these pods have only the kubelet knows, so they are devices of a replay only where no pod has any.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from extender.api.fields import Json, inner, naming, need, string_map
from extender.api.nodes import resource_units
from extender.api.pods import may_need_devices
from extender.replay.jobs import GPU_CLASS, MAX_GPUS
from extender.sandbox import MachineNode, machine_objects, unlinked_machine
from extender.vendors import DRIVERS, GPU, VENDORS, driver_of
from extender.vendors.node_labels import PLUGIN_RESOURCES, WHOLE_PLUGIN, driver_product, has_whole_gpus

# Resources of device plugins whose whole GPUs a replay takes, to the DRA driver of the same GPUs.
DRIVER_OF_PLUGIN = {
    name: next(driver for driver, entry in vendor.drivers.items() if entry.kind == GPU)
    for vendor in VENDORS
    for name, label in vendor.plugin_resources.items()
    if label
}
_MEMORY = "nvidia.com/gpu.memory"  # the label of gpu-feature-discovery, in MiB
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
        if obj.get("kind") != "Node" or inner(obj, "metadata", "").get("name") in with_slices:
            continue
        resource, count = _plugin_gpus(obj)
        if not count:
            continue
        found = _plugin_slice(obj, resource, count)
        if isinstance(found, str):
            notes[f"nodes of which the GPUs of a device plugin are left out, because {found}"] += 1
        else:
            yield found


def may_ask_for(gpus: int) -> bool:
    """Whether a pod of a job may ask for so many GPUs of a device plugin."""
    return 0 < gpus <= MAX_GPUS


def _plugin_gpus(node: Json) -> tuple[str, int]:
    """The GPUs that a device plugin offers on a node, and as which resource. Raises WireError that names the node."""
    with naming(node):
        offered = inner(inner(node, "status", ""), "allocatable", "status")
        counts = ((name, resource_units(name, offered[name])) for name in PLUGIN_RESOURCES if name in offered)
        return next((one for one in counts if one[1]), ("", 0))


def _plugin_slice(node: Json, resource: str, count: int) -> Json | str:
    """The whole GPUs of a device plugin as a slice of a DRA driver, or why there is none.

    A label names the product. The usual board of the product joins the GPUs, if there is one.
    """
    with naming(node):
        metadata = inner(node, "metadata", "")
        labels = string_map(metadata, "labels", "metadata")
        name = need(metadata, "name", ".metadata")
    product, mib = driver_product(resource, labels), labels.get(_MEMORY, "")
    if count > _MAX_GPUS or not has_whole_gpus(resource, count, labels):
        return "they are shared or parts"
    if resource != WHOLE_PLUGIN:
        return _other_slice(name, DRIVER_OF_PLUGIN[resource], product, count) if product else "no label has the product"
    memory = int(mib) << 20 if re.fullmatch("[0-9]{1,8}", mib) else _ANY_MEMORY
    made = machine_objects(MachineNode(name, unlinked_machine(product, count, memory), {}))
    return next(one for one in made if one["kind"] == "ResourceSlice" and one["spec"]["driver"] == GPU_CLASS)


def _other_slice(node: str, driver: str, product: str, count: int) -> Json:
    """GPUs of another vendor than NVIDIA: what tells them from parts, their product, and addresses that differ."""
    whole = {name: {"string": values[0]} for name, values in DRIVERS[driver].whole.items()}
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                **whole,
                DRIVERS[driver].product[0]: {"string": product},
                "resource.kubernetes.io/pciBusID": {"string": f"0000:{number + 1:02x}:00.0"},
            },
        }
        for number in range(count)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{driver}-{node}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
    }
