"""The jobs of a replay: what a file of jobs says, and the pods and claims that a job becomes.

A file has one job in each line: as a JSON object, or as a row of a CSV file whose first row names the columns. The
fields and the columns have the same names. docs/replay.md shows both forms.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from extender.api.fields import Json
from extender.api.group_topology import KUEUE_TOPOLOGY, NEARNESS, ONE_NODE
from extender.api.pod_annotations import WISHES
from extender.api.pod_groups import MINIMUM, GroupSource
from extender.api.pods import SCHEDULER
from extender.base.berth_errors import WireError
from extender.vendors.node_labels import PLUGIN_RESOURCES

NAMESPACE = "default"
SPEC_FIELDS = ("nodeSelector", "affinity", "tolerations", "priority")
GPU_CLASS, NIC_CLASS = "gpu.nvidia.com", "dranet.net"
# Clouds taint GPU nodes with the names of these resources, and the plugin ExtendedResourceToleration of the API server
# tolerates them for the pods that ask for the resource.
_GPU_TOLERATIONS = [{"key": one, "operator": "Exists", "effect": "NoSchedule"} for one in PLUGIN_RESOURCES]
MAX_PODS = 4096  # of a job
MAX_GPUS = 32  # of a pod: devices of one claim
MAX_SECONDS = 1e10  # some 300 years
PRODUCT_WORDS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._|-]{0,198}[A-Za-z0-9])?")
WHOLE_MIB = 1000  # MiB of each GPU in a fleet whose GPUs are shared: a share is a part of it, whatever the product
REAL_MEMORY = "realMemory"  # the capacity that has the memory of a GPU in such a fleet
NIC_CAPACITY, WHOLE_NIC = "share", 1000  # the same of a NIC
_OF_DRANET = "device.attributes['dra.net']"
_IS_NIC = f"!('rdma' in {_OF_DRANET}) || {_OF_DRANET}.rdma"  # DRANET offers the Ethernet adapter of a node, too


def job_name(line: int) -> str:
    """The name of a job that has none."""
    return f"job-{line}"


def shared_classes(jobs: Iterable[Job]) -> frozenset[str]:
    """The classes of whose devices jobs ask for shares.

    Raises WireError if another job has a claim and asks for memory of GPUs, which a fleet with shared GPUs has no more.
    """
    found, about_memory = frozenset[str](), ""
    for job in jobs:
        found |= job.shared_classes
        claims = (one for one in job.templates if one.claim is not None)
        if any(one.expected_memory or "memory" in json.dumps(one.claim) for one in claims):
            about_memory = about_memory or job.name
    if GPU_CLASS in found and about_memory:
        problem = "asks for memory, and another job for a share of a GPU: use `gpus` and `memory` in its place"
        raise WireError(f"job {about_memory}: claim", problem)
    return found


@dataclass(frozen=True)
class Job:
    """Pods that are created together. Two pods or more are a gang. All are equal, but for those of `parts`.

    `arrival` and `duration` are in seconds; a duration of infinity means until the end. The other amounts are of each
    pod: `gpus` and `nics` may be a share of one device, `cpu` is in thousandths of a core, `ram` and `memory` (of each
    GPU) in bytes.
    """

    name: str
    arrival: float
    duration: float = math.inf
    pods: int = 1
    gpus: float = 0.0
    nics: float = 0.0
    memory: int = 0
    product: str = ""  # words of which the product's name has one, separated by |
    cpu: int = 0
    ram: int = 0
    topology: str = ""  # required, preferred, product or none: the links between the GPUs of a pod
    bandwidth: float = 0.0  # GB/s that the GPUs of a pod should have
    min_bandwidth_gbps: float = 0.0  # GB/s that they must have
    expected_memory: int = 0  # bytes that each GPU must have, also those of a claim
    group_topology: str = ""  # required, preferred or none: how near to each other the pods of a gang are
    group_required: str = ""  # the level, or any node label with "/", in one domain of which all pods must be
    group_preferred: str = ""
    claim: Json | None = field(default=None, compare=False)  # the spec of each pod's claim, in place of GPUs and NICs
    spec: Json | None = field(default=None, compare=False)  # SPEC_FIELDS of each pod: the nodes that it may use
    parts: tuple[Job, ...] = ()  # other pods of the gang: of a part count `pods` and what each of its pods asks for
    claim_gpus: float = field(default=0.0, compare=False)  # those of the claim of each pod, which only a fleet can tell
    memory_capacity: str = field(default="memory", compare=False)  # of the fleet's GPUs, that `memory` is about

    @property
    def is_gang(self) -> bool:
        return self.all_pods > 1

    @property
    def all_pods(self) -> int:
        """The number of pods with those of `parts`."""
        return sum(one.pods for one in self.templates)

    @property
    def templates(self) -> tuple[Job, ...]:
        """The job itself and its parts: the pods of each of them are equal."""
        return (self, *self.parts)

    @property
    def all_gpus(self) -> float:
        """The GPUs of all pods."""
        return sum(one.pods * one.pod_gpus for one in self.templates)

    @property
    def pod_gpus(self) -> float:
        """The GPUs of one pod that is of no part."""
        return self.gpus if self.claim is None else self.claim_gpus

    @property
    def shared_classes(self) -> frozenset[str]:
        """The classes of which a pod asks for a share of a device."""
        return frozenset(
            name
            for one in self.templates
            for name, count in ((GPU_CLASS, one.gpus), (NIC_CLASS, one.nics))
            if 0 < count < 1
        )

    def line(self) -> Json:
        """The fields that are not the default, as a file of jobs has them."""
        found: Json = {name: getattr(self, name) for name in JOB_FIELDS}
        found |= {"cpu": f"{self.cpu}m" if self.cpu else 0, "ram": str(self.ram) if self.ram else 0}
        found["duration"] = None if math.isinf(self.duration) else self.duration
        of_gang = ("name", "arrival", *NEARNESS)
        found["parts"] = [
            {name: one for name, one in part.line().items() if name not in of_gang} for part in self.parts
        ]
        return {name: value for name, value in found.items() if value or name == "arrival"}

    def on_shared_gpus(self) -> Job:
        """The same job for a fleet whose GPUs are shared: it demands the memory that the GPUs really have."""
        least, parts = max(self.memory, self.expected_memory), tuple(one.on_shared_gpus() for one in self.parts)
        return replace(self, memory=least, expected_memory=0, parts=parts, memory_capacity=REAL_MEMORY)

    @property
    def priority(self) -> int:
        """Pods of a higher priority are placed first."""
        return int((self.spec or {}).get("priority") or 0)

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Jobs of one shape differ only in name and times."""
        asked = self.gpus, self.nics, self.memory, self.product, self.cpu, self.ram
        return (
            self.pods,
            *asked,
            *(getattr(self, name) for name in (*WISHES, *NEARNESS)),
            repr(self.claim),
            repr(self.spec),
            *(one.shape for one in self.parts),
        )

    @cached_property
    def claim_spec(self) -> Json | None:
        """The spec of the claim of each pod; None if the pods need no devices."""
        if self.claim is not None:
            return self.claim
        requests = []
        if self.gpus:
            requests.append({"name": "gpu", "exactly": self._gpu_request()})
        if self.nics:
            requests.append({"name": "nic", "exactly": self._nic_request()})
        return {"devices": {"requests": requests}} if requests else None

    def _gpu_request(self) -> Json:
        found: Json = {"deviceClassName": GPU_CLASS, "count": max(int(self.gpus), 1)}
        conditions = []
        if self.product:
            words = re.sub("[-_ ]", "[-_ ]", self.product.replace(".", "[.]"))  # labels of nodes have no spaces
            whole = f"(^|[^A-Za-z0-9])({words})([^A-Za-z0-9]|$)"
            conditions.append(f"device.attributes[device.driver].productName.matches(r'{whole}')")
        if self.memory:
            least = f"device.capacity[device.driver].{self.memory_capacity}.compareTo(quantity('{self.memory}')) >= 0"
            conditions.append(least)
        if conditions:
            found["selectors"] = [{"cel": {"expression": " && ".join(conditions)}}]
        if self.gpus < 1:
            found["capacity"] = {"requests": {"memory": f"{round(self.gpus * WHOLE_MIB)}Mi"}}
        return found

    def _nic_request(self) -> Json:
        found: Json = {"deviceClassName": NIC_CLASS, "count": max(int(self.nics), 1)}
        found["selectors"] = [{"cel": {"expression": _IS_NIC}}]
        if self.nics < 1:
            found["capacity"] = {"requests": {NIC_CAPACITY: str(round(self.nics * WHOLE_NIC))}}
        return found

    def named_pods(self, attempt: int = 0) -> list[tuple[str, Job]]:
        """The names of the pods, each with its template. A job that had to start again has other pods."""
        again = f"-r{attempt}" if attempt else ""
        templates = [one for one in self.templates for _ in range(one.pods)]
        return [(f"{self.name}{again}-{number}", one) for number, one in enumerate(templates)]

    def pod(self, name: str, template: Job, *, plain: bool) -> Json:
        """A pod as an API object. A plain one has no annotation of Berth: it is for the other schedulers.

        If it has `gpus`, and the job says no tolerations, it tolerates the usual taints of nodes with GPUs.
        """
        usual = {"tolerations": _GPU_TOLERATIONS} if template.gpus else {}
        notes = {} if plain else self._annotations_of(template)
        claims = [{"name": "devices", "resourceClaimName": name}] if template.claim_spec is not None else []
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": NAMESPACE, "name": name, "annotations": notes},
            "spec": {
                **usual,
                **(template.spec or {}),
                "schedulerName": SCHEDULER,
                "resourceClaims": claims,
                "containers": [{"name": "main", "resources": {"requests": template.requests}}],
            },
        }

    def claim_object(self, name: str) -> Json:
        """The claim of the pod of this name, whose template this is, as an API object."""
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": self.claim_spec or {},
        }

    @property
    def requests(self) -> Json:
        """CPU and memory of a pod, as its container requests them."""
        found = {"cpu": f"{self.cpu}m" if self.cpu else "", "memory": str(self.ram or "")}
        return {name: amount for name, amount in found.items() if amount}

    def _annotations_of(self, template: Job) -> dict[str, str]:
        found = {note: str(getattr(template, field) or "") for field, note in WISHES.items()}
        if self.is_gang:
            found |= {GroupSource.BERTH.value: self.name, MINIMUM: str(self.all_pods), **self._nearness}
        return {name: value for name, value in found.items() if value}

    @property
    def _nearness(self) -> dict[str, str]:
        """In Kueue's annotations for node labels: Berth's take no label that is not in `group_levels`."""
        levels = [one for one in (self.group_required, self.group_preferred) if one]
        if self.group_topology == "required" or not all("/" in one or one == ONE_NODE for one in levels):
            return {note: getattr(self, field) for field, note in NEARNESS.items()}
        anywhere = "true" if self.group_topology == "none" else ""
        return dict(zip(KUEUE_TOPOLOGY, (self.group_required, self.group_preferred, anywhere), strict=True))


JOB_FIELDS = tuple(one.name for one in fields(Job) if one.name not in ("claim_gpus", "memory_capacity"))
"""What a file says of a job."""
