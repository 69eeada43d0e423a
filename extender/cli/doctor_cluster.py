"""The findings of `berth doctor` about the objects in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from extender.allocation import NodeInfo
from extender.allocation.nodes import gpu_uuid
from extender.cache import ClusterCache
from extender.diagnosis import Finding, check_consistency
from extender.model import MARKER_CLASS, Device, Source, counted, members
from extender.topology.agent_slices import DRIVER

_SHOWN = 5
_SILENT_MINUTES = 15  # three heartbeats of the agent


class DoctorFinding(NamedTuple):
    """One finding: the problem, its effect, and the command that repairs it."""

    severity: str  # "error" or "warning"
    problem: str
    effect: str
    remedy: str


def cluster(cache: ClusterCache, minute: int = 0) -> Iterator[DoctorFinding]:
    """Yield the findings about slices, agents, classes and allocations. `minute` is Unix time / 60; 0 is unknown."""
    snapshot = cache.snapshot()
    if MARKER_CLASS not in snapshot.classes:
        yield DoctorFinding(
            "error",
            f"DeviceClass {MARKER_CLASS} is missing",
            "Berth cannot requeue waiting pods when devices appear",
            "kubectl apply -f manifests/base/marker-class.yaml",
        )
    gpus = {name: node_info for name, node_info in snapshot.node_infos.items() if _has_gpus(node_info, "mig")}
    silent = sorted(
        name
        for name, node_info in gpus.items()
        if (node_info.fabric.source is not Source.LIVE if node_info.fabric else name not in cache.store.fabric)
    )
    if silent:
        yield DoctorFinding(
            "warning",
            f"no fresh agent on {len(silent)} of {counted(len(gpus), 'GPU node')}: {some(silent)}",
            "Berth takes their links from a product table and does not know their live memory",
            "kubectl -n berth-system get pods -l app=berth-agent -o wide",
        )
    yield from _lonely_agents(cache, snapshot.node_infos, minute)
    astray = sorted(name for name, node_info in gpus.items() if _disagree(node_info))
    if astray:
        yield DoctorFinding(
            "error",
            f"agent and GPU driver name different GPUs on {counted(len(astray), 'node')}: {some(astray)}",
            "Berth ignores the data of the agent about those GPUs",
            "restart the agent and the driver's pod there, and compare nvidia-smi -L",
        )
    broken = sorted(
        f"{pool.key.name} on {name}: {pool.trouble or 'slices are missing'}"
        for name, node_info in snapshot.node_infos.items()
        for pool in node_info.inventory.pools
        if not pool.usable
    )
    if broken:
        yield DoctorFinding(
            "error",
            f"{counted(len(broken), 'pool')} cannot be used: {some(broken)}",
            "Berth allocates none of their devices",
            "restart the driver's pod on those nodes and look at its log",
        )
    yield from _left_out(snapshot.node_infos.values())
    others = sorted(
        str(key) for key, claim in snapshot.claims.items() if claim.allocation is not None and not claim.ours
    )
    if others:
        yield DoctorFinding(
            "warning",
            f"{counted(len(others), 'claim was', 'claims were')} allocated by another scheduler: {some(others)}",
            "two schedulers race for the same devices; the later write loses, and its pod must be scheduled again",
            "kubectl apply -k manifests/components/admission",
        )
    for finding in check_consistency(cache):
        yield _from_audit(finding)


def _from_audit(finding: Finding) -> DoctorFinding:
    if not finding.claims:
        return DoctorFinding(
            "error",
            f"audit: {finding.sentence}",
            "Berth does not use the invalid data of this node; other nodes are not affected",
            f"kubectl get resourceslices --field-selector spec.nodeName={finding.about} -o yaml",
        )
    claim = finding.claims[0]
    return DoctorFinding(
        "error",
        f"audit: {finding.sentence}",
        "two workloads may use one device, or no workload can use a device",
        f"kubectl -n {claim.namespace} describe resourceclaim {claim.name}",
    )


def _left_out(node_infos: Iterable[NodeInfo]) -> Iterator[DoctorFinding]:
    """Yield a finding for each device field that Berth does not support. Berth never allocates those devices."""
    nodes: dict[str, list[str]] = {}
    for node_info in node_infos:
        for field in {
            node_info.inventory.devices[bit].device.node_allocatable
            for _, mask in node_info.inventory.unsupported
            for bit in members(mask)
        }:
            nodes.setdefault(field, []).append(node_info.node.name)
    for field, names in sorted(nodes.items()):
        yield DoctorFinding(
            "warning",
            f"devices with {field} on {counted(len(names), 'node')}: {some(sorted(names))}",
            "Berth does not support the field yet and never allocates these devices",
            "turn the feature off in their driver, or give them a DeviceClass for pods of the default scheduler",
        )


def _lonely_agents(cache: ClusterCache, node_infos: Mapping[str, NodeInfo], minute: int) -> Iterator[DoctorFinding]:
    """Yield the nodes whose agent is dead, by the minute of its last write, and those that have lost their driver."""
    ages = {
        name: minute - max((_read_at(device) for device in slice_.devices), default=0)
        for name, slice_ in cache.store.fabric.items()
        if name in node_infos
    }
    dead = sorted(f"{name} ({age} min ago)" for name, age in ages.items() if _SILENT_MINUTES < age < minute)
    if dead:
        yield DoctorFinding(
            "warning",
            f"no news of the agent on {counted(len(dead), 'node')}: {some(dead)}",
            "Berth ignores what it said about memory; links and health may be out of date",
            "kubectl -n berth-system get pods -l app=berth-agent -o wide",
        )
    alone = sorted(
        name for name in ages if cache.store.fabric[name].devices and not _has_gpus(node_infos[name], "mig", "vfio")
    )
    if alone:
        yield DoctorFinding(
            "error",
            f"the agent finds GPUs, but no driver publishes any on {counted(len(alone), 'node')}: {some(alone)}",
            "no pod gets a GPU there",
            "look at the pod of the GPU driver's kubelet plugin on those nodes, and at its log",
        )


def _read_at(device: Device) -> int:
    found = device.attributes.get(f"{DRIVER}/readAt")
    return found if isinstance(found, int) else 0


def _has_gpus(node_info: NodeInfo, *others: str) -> bool:
    """Whether a driver publishes whole GPUs, or devices of one of these other types, also in an unusable pool."""
    return any(
        gpu_uuid(device) or device.attributes.get("gpu.nvidia.com/type") in others
        for pool in node_info.inventory.pools
        for slice_ in pool.slices
        for device in slice_.devices
    )


def _disagree(node_info: NodeInfo) -> bool:
    """Whether the live agent and the driver's slices name different GPUs."""
    if node_info.fabric is None or node_info.fabric.source is not Source.LIVE:
        return False
    published = {uuid for pool_device in node_info.inventory.devices if (uuid := gpu_uuid(pool_device.device))}
    return {gpu.uuid for gpu in node_info.fabric.gpus} != published


def some(names: list[str]) -> str:
    """Return the first five names and the number of the others, as text."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
