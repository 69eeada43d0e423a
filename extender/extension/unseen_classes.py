"""DeviceClasses that the watch has not shown yet: without its class, an extended resource seems to need no device."""

from __future__ import annotations

from extender.allocation import Snapshot
from extender.cluster import Writer
from extender.extension.binding_cycle import BindError
from extender.model import Pod
from extender.scheduling.requirements import class_of_resource


async def check_classes_are_known(writer: Writer, pod: Pod, node: str, snapshot: Snapshot) -> None:
    """Raise BindError if a DeviceClass that the cache lacks provides an extended resource of the pod.

    kube-scheduler has its own watch, and may know the class already. The kubelet would start the pod without a device.
    The classes are only read for a resource that neither a known class nor the device plugin of the node provides.
    Raises ClusterError.
    """
    node_info = snapshot.node_infos.get(node)
    offered = node_info.node.allocatable if node_info is not None else frozenset()
    asked = {name for container in pod.containers for name, amount in container.requests if amount}
    classes, resources = snapshot.classes, snapshot.extended_resources
    unknown = {name for name in asked - offered if class_of_resource(name, classes, resources) is None}
    if unknown and (late := unknown & await writer.read_extended_resources()):
        raise BindError(f"a DeviceClass that provides {min(late)} is not known yet")
