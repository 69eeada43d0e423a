"""The fleet of a replay: API objects of a snapshot, nodes that machine files describe, or both.

Also the GPUs of claims: those that a pod has got, and those that a job which waits would get on this fleet. The name of
a class does not tell it: a cluster has classes of its own, and a claim may have alternatives, or ask for all devices of
a node. A device counts that is a GPU of the fleet's figures: no part of another one, and no NIC.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import orjson

from extender.allocation import Features, NodeInfo, Snapshot, select
from extender.api.claim_specs import DeviceRequest, Request
from extender.api.fields import Json, get, inner, many, naming, need
from extender.api.pod_amounts import Amounts, allocatable_of, requests_of
from extender.api.quantity import NANO
from extender.api.resource_claims import Result, decode_claim
from extender.api.resource_slices import newest_slices
from extender.base.berth_errors import InvalidClaim, WireError
from extender.base.text_limits import shown
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.explain.fleet_rows import shown_bits
from extender.replay.jobs import (
    GPU_CLASS,
    NIC_CAPACITY,
    NIC_CLASS,
    REAL_MEMORY,
    WHOLE_MIB,
    WHOLE_NIC,
    Job,
    shared_classes,
)
from extender.replay.virtual_scheduler import NodeRoom
from extender.runtime.informers import object_appliers
from extender.sandbox import DEVICE_CLASSES, MachineNode, machine_objects
from extender.vendors import DRIVERS, GPU, NIC, amount_of_memory, driver_of

_KINDS = ("Node", "ResourceSlice", "DeviceTaintRule", "DeviceClass", "ResourceClaim", "Namespace")
_OF_CLASS = {GPU_CLASS: (GPU, GPU_CLASS), NIC_CLASS: (NIC, "dra.net")}  # kind of devices, driver


@dataclass(frozen=True)
class Fleet:
    """API objects by time of application, and what pods that run already request of CPU, memory and places.

    The claims of a snapshot keep their devices: what runs there runs until the end.
    """

    objects: Sequence[Json]
    used: Mapping[str, Amounts]  # by node
    unlinked: frozenset[str] = frozenset()  # nodes of a list whose product has no usual board: the links are not known
    has_shared_gpus: bool = False

    def apply(self, cache: ClusterCache) -> None:
        """Apply all objects. Raises WireError that names the object."""
        apply = object_appliers(cache, lambda: float("inf"))  # agents never age
        for obj in self.objects:
            if problem := version_problem(obj):
                raise WireError(f"{obj['kind']} {_name_of(obj)}", problem)
            with naming(obj):
                apply[obj["kind"]](obj)

    def adapted(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs as they ask for the devices of this fleet."""
        return [one.on_shared_gpus() for one in jobs] if self.has_shared_gpus else jobs

    def counted(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs with the GPUs that their claims would get. Raises WireError, see apply."""
        if not any(template.claim is not None for one in jobs for template in one.templates):
            return jobs
        cache = ClusterCache()
        self.apply(cache)
        return with_claim_gpus(jobs, cache.snapshot())

    @property
    def classes(self) -> frozenset[str]:
        """The names of the DeviceClasses."""
        return frozenset(map(_name_of, _of_kind("DeviceClass", self.objects)))

    @cached_property
    def has_nics(self) -> bool:
        """Whether it has slices of a driver of NICs."""
        return any(driver_of(one).kind == NIC for one in _drivers(self.objects))

    def unread(self, notes: Counter[str]) -> None:
        """Note the slices and pools whose devices no node has. Raises WireError, see apply."""
        cache = ClusterCache()
        self.apply(cache)
        broken = [one for one in cache.slices.published.values() if one.problem]
        known = {f"ResourceSlice {one.name}: {one.problem}" for one in broken}
        unusable = {
            pool.key: f"{pool.key.driver}/{pool.key.name}: {pool.problem}"
            for node_info in cache.snapshot().node_infos.values()
            for pool in node_info.inventory.pools
            if pool.problem and pool.problem not in known
        }
        for what, found in (
            ("ResourceSlices left out that cannot be read", [f"{one.name}: {one.problem}" for one in broken]),
            ("pools left out that offer no devices", [*unusable.values()]),
            ("ResourceSlices left out, because their pool has a newer generation elsewhere", [*_old_slices(cache)]),
        ):
            if found:
                notes[f"{what}, the first is {found[0]}"] = len(found)

    def room(self) -> NodeRoom:
        """What each node has left. A node that does not say an amount has no limit."""
        total, left = dict[str, Amounts](), dict[str, Amounts]()
        for obj in _of_kind("Node", self.objects):
            name = obj["metadata"]["name"]
            with naming(obj):
                total[name] = allocatable_of(obj)
            left[name] = total[name].minus(self.used.get(name, Amounts()))
        return NodeRoom(total, left)


def fleet_of(machines: Sequence[MachineNode], snapshot: Iterable[Json] = (), *, jobs: Iterable[Job] = ()) -> Fleet:
    """The fleet of these machines and of the objects of a snapshot.

    If one of `jobs` asks for a share of a GPU or NIC, all GPUs or NICs may be shared.

    Raises WireError if it has no node or no devices, and that of shared_classes.
    """
    shared = shared_classes(jobs)
    given, used = list[Json](), dict[str, Amounts]()
    for obj in snapshot:
        if obj.get("kind") in _KINDS:
            given.append(obj)
        elif obj.get("kind") == "Pod" and (node := inner(obj, "spec", "").get("nodeName")) and not _ended(obj):
            with naming(obj):
                used[node] = used.get(node, Amounts()).plus(requests_of(obj))
    classes = set(map(_name_of, _of_kind("DeviceClass", given)))
    objects = list[Json]()
    for node in machines:
        objects += machine_objects(node)
    objects += given
    if GPU_CLASS in shared:
        objects = [_with_shared_gpus(one) for one in objects]
    if NIC_CLASS in shared:
        objects = [_with_devices(one, NIC, lambda nic: _shareable(nic, NIC_CAPACITY, WHOLE_NIC, "")) for one in objects]
    kinds = Counter(obj["kind"] for obj in objects)
    for kind in ("Node", "ResourceSlice"):
        if not kinds[kind]:
            how = "give --nodes, or a snapshot that `berth snapshot` made; --emptied adds the GPUs of device plugins"
            raise WireError("the fleet", f"has no {kind}: {how}")
    drivers = _drivers(objects)
    objects += [_of_drivers(one, drivers) for one in DEVICE_CLASSES if one["metadata"]["name"] not in classes]
    others = sorted(drivers & DRIVERS.keys() - classes - {GPU_CLASS})
    objects += [_class_of(driver) for driver in others if DRIVERS[driver].kind == GPU]
    unlinked = frozenset(node.name for node in machines if not node.machine.knows_links)
    return Fleet(objects, used, unlinked, GPU_CLASS in shared)


def _old_slices(cache: ClusterCache) -> Iterator[str]:
    """The names of the slices with devices whose nodes do not have the pool: its newest slices are for others."""
    nodes = cache.snapshot().node_infos
    for key, slices in cache.slices.pools.by_pool.items():
        newest = newest_slices(slices.values())[0].generation
        for one in slices.values():
            node_info = nodes.get(one.selection.node_name) if one.devices and one.generation < newest else None
            if node_info is not None and all(pool.key != key for pool in node_info.inventory.pools):
                yield one.name


def _of_kind(kind: str, objects: Iterable[Json]) -> Iterator[Json]:
    return (obj for obj in objects if obj["kind"] == kind)


def _name_of(obj: Json) -> str:
    """The name of an object of a file. Raises WireError if it has none."""
    with naming(obj):
        return need(inner(obj, "metadata", ""), "name", ".metadata")


def _drivers(objects: Iterable[Json]) -> set[str]:
    """The drivers of the slices."""
    return {str(inner(obj, "spec", "").get("driver")) for obj in _of_kind("ResourceSlice", objects)}


def _of_drivers(class_: Json, drivers: Iterable[str]) -> Json:
    """A class that jobs name; if the fleet lacks its driver, for the whole devices of other drivers of this kind."""
    kind, own = _OF_CLASS.get(class_["metadata"]["name"], ("", ""))
    others = sorted(one for one in drivers if driver_of(one).kind == kind)
    if not others or own in others:
        return class_
    expression = " || ".join(map(_whole_devices, others))
    return {**class_, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def _class_of(driver: str) -> Json:
    """The class that the driver of GPUs of another vendor installs."""
    selectors = [{"cel": {"expression": _whole_devices(driver)}}]
    return {**DEVICE_CLASSES[0], "metadata": {"name": driver}, "spec": {"selectors": selectors}}


def _whole_devices(driver: str) -> str:
    """A CEL expression for the devices of a driver that are no parts of others."""
    found = [f"device.driver == {cel_text(driver)}"]
    for name, values in driver_of(driver).whole:
        domain, _, short = name.rpartition("/")
        of = f"device.attributes[{cel_text(domain)}]"
        found.append(f"(!({cel_text(short)} in {of}) || {of}.{short} in [{', '.join(map(cel_text, values))}])")
    return f"({' && '.join(found)})"


def cel_text(text: str) -> str:
    """A CEL string, which has the escapes of JSON."""
    return json.dumps(text)


def several(kind: str) -> str:
    """The kind in the plural."""
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"


def version_problem(obj: Json) -> str:
    """Why Berth does not read the version of an object of DRA; '' if it does."""
    kind, (group, _, version) = str(obj.get("kind")), str(obj.get("apiVersion") or "").partition("/")
    if group != "resource.k8s.io" or kind not in _KINDS or kind == "DeviceTaintRule" or version == "v1":
        return ""
    written = f"kubectl get {several(kind).lower()}.v1.{group} -A -o json writes it"
    return f"has version {shown(version)}, Berth reads v1: {written}"


def _with_shared_gpus(obj: Json) -> Json:
    """A slice of GPUs of which pods take parts, and any other object as it is. GPUs that draw on counters stay whole.

    All GPUs have the same amount, so that a part means the same on every product.
    """

    def shareable(device: Json) -> Json:
        found = device if device.get("consumesCounters") else _shareable(device, "memory", WHOLE_MIB, "Mi")
        real = amount_of_memory(get(device, "capacity", dict, "", {}))
        if not isinstance(real, dict):
            return found
        unasked = {"default": "0", "validRange": {"min": "0"}}  # without it, each part takes all of it
        more = {REAL_MEMORY: {"value": real.get("value"), "requestPolicy": unasked}}
        return {**found, "capacity": {**found["capacity"], **more}}

    return _with_devices(obj, GPU, shareable)


def _with_devices(obj: Json, kind: str, changed: Callable[[Json], Json]) -> Json:
    """A slice of devices of this kind with each device changed, and any other object as it is."""
    if obj["kind"] != "ResourceSlice" or driver_of(str(inner(obj, "spec", "").get("driver"))).kind != kind:
        return obj
    with naming(obj):
        devices = many(obj["spec"], "devices", "spec", lambda one, _: changed(one))
    return {**obj, "spec": {**obj["spec"], "devices": [*devices]}}


def _shareable(device: Json, name: str, whole: int, unit: str) -> Json:
    policy = {"default": f"{whole}{unit}", "validRange": {"min": f"1{unit}", "step": f"1{unit}"}}
    capacity = {name: {"value": f"{whole}{unit}", "requestPolicy": policy}}
    return {**device, "allowMultipleAllocations": True, "capacity": capacity}


def _ended(pod: Json) -> bool:
    return inner(pod, "status", "").get("phase") in ("Succeeded", "Failed")


# -- GPUs of claims ----------------------------------------------------------------------------------------------------


def allocated_gpus(node_info: NodeInfo, results: Iterable[Result]) -> float:
    """The GPUs of a pod. Of a GPU of which it has a share of the memory, that share."""
    shown, found = set(shown_bits(node_info)), dict[int, float]()
    for one in results:
        bit = node_info.inventory.index.get(one.device)
        if bit in shown and not one.admin_access:
            memory, taken = node_info.inventory.devices[bit].memory_bytes, amount_of_memory(one.amounts)
            share = taken / NANO / memory if one.share_id and taken and memory else 1.0
            found[bit] = min(found.get(bit, 0.0) + share, 1.0)
    return sum(found.values())


def with_claim_gpus(jobs: Sequence[Job], snapshot: Snapshot) -> list[Job]:
    """The jobs with the number of GPUs that each pod with a claim would get if the fleet were empty."""
    count = _ClaimGpus(snapshot)
    return [_counted(job, count) if any(one.claim is not None for one in job.templates) else job for job in jobs]


def _counted(job: Job, count: _ClaimGpus) -> Job:
    parts = tuple(_counted(one, count) for one in job.parts)
    return replace(job, parts=parts, claim_gpus=count.of(job) if job.claim is not None else 0.0)


class _ClaimGpus:
    """Counts the GPUs of claims. Equal claims share one count."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._classes = snapshot.classes.get
        self._masks = Masks()
        self._found: dict[bytes, float] = {}
        nodes = snapshot.node_infos.values()
        kinds = {one.state.hardware_signature: one for one in nodes}
        # Equal nodes differ only for a selector of a device's own UUID or address: they are asked if no kind has a GPU.
        self._nodes = [list(kinds.values()), list(nodes)]

    def of(self, job: Job) -> float:
        """The GPUs of a pod of this job, without its parts."""
        key = orjson.dumps(job.claim)
        if key not in self._found:
            requests = decode_claim(job.claim_object(job.name)).spec.requests
            self._found[key] = float(sum(map(self._of_request, requests)))
        return self._found[key]

    def _of_request(self, request: Request) -> int:
        """Of alternatives, those of the first one that a node has."""
        found = [(self._most(one), one) for one in request.alternatives if not one.admin_access]
        fitting = [(most, one) for most, one in found if most and most >= one.count]
        for most, one in fitting or found[:1]:
            return (most if one.mode == "All" else one.count) if most else 0
        return 0

    def _most(self, option: DeviceRequest) -> int:
        """The most GPUs of a node that a request admits."""
        return next(filter(None, (max(map(partial(self._on, option), nodes)) for nodes in self._nodes)), 0)

    def _on(self, option: DeviceRequest, node_info: NodeInfo) -> int:
        with suppress(InvalidClaim):
            found = select("", option, self._classes, node_info.inventory, self._masks, Features()).match
            return sum(found >> bit & 1 for bit in shown_bits(node_info))
        return 0
