"""The texts of Kubernetes, of drivers and of vendors that a snapshot without names keeps: a company chose none of them.

Sources of the names: the vendor files, and the drivers' documents of their attributes. At the end are the parts of the
sentence in which a scheduler says why a pod waits. kube-scheduler writes "0/9 nodes are available: 6 Insufficient cpu,
3 node(s) didn't match pod anti-affinity rules. preemption: ...".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from extender.api.pod_groups import GROUP_OBJECTS
from extender.api.reasons import Code
from extender.topology.agent_slices import BOUNDS
from extender.topology.agent_slices import DRIVER as AGENT
from extender.vendors import DRIVERS, VENDORS
from extender.vendors.node_labels import PLUGIN_RESOURCES

_CLOUDS = ("gce.dra.net", "azure.dra.net", "aws.dra.net", "oke.dra.net", "alibaba.dra.net")
DOMAINS = frozenset({*DRIVERS, *_CLOUDS, AGENT, "resource.kubernetes.io", "k8s.cni.cncf.io"})
CLASSES = frozenset({*DRIVERS, *(name for entry in DRIVERS.values() for name in entry.classes)}) | {
    "vfio.gpu.nvidia.com"
}

_OF_VENDORS = {
    name.rpartition("/")[2]
    for entry in DRIVERS.values()
    for name in (*entry.whole, *entry.identity, *entry.parent, *entry.product, *entry.numa, *entry.partitions.values())
}
NUMBERS = frozenset(
    {
        *BOUNDS, *(name for entry in DRIVERS.values() for name in entry.partitions.values()), "numaNode", "numa",
        "numaNodeID", "gpuModuleID", "gpuIndex", "cardIndex", "renderIndex", "cpuID", "coreID", "socketID", "cacheL3ID",
        "numCPUs", "mtu", "vfID", "xid", "nvlinkErrors", "cudaComputeCapability", "driverVersion", "cudaDriverVersion",
    }
)  # fmt: skip
"""Attributes whose numbers and versions describe hardware or software, and no piece of it."""
SPOKEN = frozenset(
    {
        "type", "productName", "model", "brand", "architecture", "family", "driver", "profile", "partitionProfile",
        "pciBusID", "pciAddress", "pciAddr", "parentPciAddr", "pfPciAddress", "pcieRoot", "computePartition",
        "memoryPartition", "pciVendor", "pciDevice", "linkType", "addressingMode",
    }
)  # fmt: skip
"""Attributes whose text says what a device is, if it is a text of a vendor."""
GRAPHS = {"links": re.compile(r"([0-9]{1,2}:[0-9]{1,2},?)*"), "distances": re.compile(r"[0-9-]{1,64}")}
"""Attributes of Berth's agent: how GPUs are joined."""
ATTRIBUTES = frozenset(
    {
        *_OF_VENDORS, *NUMBERS, *SPOKEN, *GRAPHS, "uuid", "parentUUID", "clique", "serial", "deviceID", "vendorID",
        "pciId", "rdma", "rdmaDevice", "rdmaCapable", "sriov", "isSriovVf", "ifName", "mac", "ipv4", "ipv6", "alias",
        "ebpf", "encapsulation", "state", "virtual", "vendor", "PFName", "pfDeviceID", "resourceName", "EswitchMode",
        "vmSize", "placementGroupId", "iommuFDEnabled", "smtEnabled", "coreType", "healthy", "health", "stale", "note",
        "migEnabled", "driverVersionFull", "id", "services",
    }
)  # fmt: skip
AMOUNTS = frozenset(
    {
        "memory", "multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines", "shares",
        "addressableMemory", "computeUnits", "simdUnits", "partitions", "millicores", "cpu", "bandwidth",
        *(f"memory-slice-{number}" for number in range(16)),
    }
)  # fmt: skip
"""Capacities and counters."""
_CONDITIONS = (
    "not-ready", "unreachable", "unschedulable", "memory-pressure", "disk-pressure", "pid-pressure",
    "network-unavailable", "out-of-service",
)  # fmt: skip
TAINTS = frozenset(
    {
        *(f"node.kubernetes.io/{name}" for name in _CONDITIONS), "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cloudprovider.kubernetes.io/shutdown", "node-role.kubernetes.io/control-plane", *PLUGIN_RESOURCES,
        "gpu.nvidia.com/xid", "gpu.nvidia.com/gpu-lost", "gpu.nvidia.com/unmonitored",
        "gpu.amd.com/memory-partition-conflict", f"{AGENT}/informational", "berth.dev/defrag",
    }
)  # fmt: skip
GATES = frozenset({"kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"})  # scheduling gates
_VERSIONS = {f"{one.api}/{version}" for one in GROUP_OBJECTS for version in one.versions}
_FIELDS = frozenset(
    {
        *_VERSIONS, *GATES, "v1", "resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3",
        "resource.k8s.io/v1beta1", "scheduling.k8s.io",
        "Node", "Pod", "ResourceSlice", "ResourceClaim", "DeviceClass", "DeviceTaintRule", "Namespace", "PodGroup",
        "CompositePodGroup", "LeaderWorkerSet", "ReplicaSet", "StatefulSet", "Job", "DaemonSet", "Owner",
        "Pending", "Running", "Succeeded", "Failed", "Unknown", "Always", "NoSchedule", "NoExecute", "PreferNoSchedule",
        "None", "Exists", "Equal", "In", "NotIn", "DoesNotExist", "Gt", "Lt", "ExactCount", "All", "pods", "podgroups",
        "LeaderCreated", "LeaderReady", "metadata.name", "gate", "default-scheduler", "berth-scheduler",
        "required", "preferred", "product", "none", "true", "false",
    }
)  # fmt: skip
_PLAIN = re.compile(
    r"[0-9.]{1,20}[A-Za-z]{0,2}"  # an amount
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,20}(Z|[+-][0-9:]{5})"  # a time
)
_WORDS = frozenset(
    word
    for vendor in VENDORS
    for names in (one.names for part in (vendor.products, vendor.boards) for one in part)
    for name in names
    for word in re.split(r"[^A-Za-z0-9.]+", name)
) | frozenset(
    {
        "NVIDIA", "Nvidia", "Tesla", "Quadro", "GeForce", "RTX", "GTX", "TITAN", "Titan", "Ti", "SUPER", "Graphics",
        "Ada", "Generation", "Laptop", "GPU", "Blackwell", "Hopper", "Ampere", "Turing", "Volta", "Pascal",
        "Lovelace", "Unknown", "Server", "Edition", "Workstation", "Max", "Pro", "PRO", "PCIe", "PCIE", "SXM",
        "NVL", "HBM", "OAM", "MIG", "DGX", "HGX", "Grace", "CG", "AMD", "Instinct", "Radeon", "Intel", "Data",
        "Center", "Flex", "Arc", "Series", "Xe", "HL", "Gaudi", "gaudi", "gpu", "mig", "vfio", "channel", "daemon",
        "amdgpu", "partition", "i915", "xe", "pci", "ATS", "HMM", "ether", "ethernet", "infiniband", "ib", "device",
        "spx", "dpx", "qpx", "cpx", "nps", "AI", "NV", "Mellanox", "Technologies", "ConnectX", "Family", "mlx5Gen",
        "Virtual", "Function", "Elastic", "Fabric", "Network", "Adapter", "EFA", "ENA", "Amazon.com", "Amazon",
        "Inc.", "Inc", "Corporation", "Google", "Microsoft", "Broadcom", "Ltd.", "Thor", "BlueField", "Ethernet",
        "Controller",
    }
)  # fmt: skip
_CODE = re.compile(
    r"[0-9]{1,4}(GB|GiB|g|[A-Z]{1,2})?"  # 80GB
    r"|[A-Z]{1,3}[0-9]{1,4}[A-Z]{0,2}"  # H100, MT2910
    r"|[0-9]+g\.[0-9]+gb|(nps|me|v)[0-9]"  # a profile
)
_HARDWARE = re.compile(
    r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|pci[0-9a-f]{4,8}:[0-9a-f]{2}"  # addresses and roots
)
DEVICES = re.compile(
    r"(gpu|gpu-vfio|channel|nic)-[0-9]{1,4}|gpu-[0-9]{1,3}-mig-[0-9]g\.?[0-9]{1,3}gb(-[0-9]{1,2}){0,2}"
)
"""Names that drivers give to devices by a number."""
EXPRESSION = frozenset(
    {
        "device", "attributes", "capacity", "driver", "allowMultipleAllocations", "has", "in", "true", "false",
        "null", "size", "matches", "startsWith", "endsWith", "contains", "exists", "exists_one", "all", "map",
        "filter", "string", "int", "uint", "double", "bool", "bytes", "type", "dyn", "duration", "timestamp",
        "semver", "isSemver", "major", "minor", "patch", "quantity", "isQuantity", "isInteger", "asInteger",
        "asApproximateFloat", "sign", "add", "sub", "compareTo", "isGreaterThan", "isLessThan", "cel", "bind",
        "optional", "of", "ofNonZeroValue", "orValue", "or", "hasValue", "value", "lowerAscii", "upperAscii",
        "replace", "split", "join", "trim", "substring", "indexOf", "lastIndexOf", "charAt", "find", "findAll",
        "reverse", "sum", "min", "max", "sets", "intersects", "equivalent", "includes", "distinct", "sort", "first",
        "last",
    }
)  # fmt: skip
"""Words of CEL."""
_PARTS = re.compile(  # resources of device plugins
    r"nvidia\.com/(gpu\.shared|mig-[0-9]g\.[0-9]{1,4}gb(\.me)?)|amd\.com/[a-z]{2}x_nps[0-9]{1,2}"
)
_OF_KUBERNETES = ("cpu", "memory", "pods", "ephemeral-storage")
PLUGIN_DOMAINS = frozenset({*(name.partition("/")[0] for name in PLUGIN_RESOURCES), "rdma", "vpc.amazonaws.com"})
_BESIDE_GPUS = re.compile(  # resources of the usual device plugins for networks and other accelerators
    r"vpc\.amazonaws\.com/(efa|pod-eni|PrivateIPv4Address)"
    r"|rdma/(ib|hca|hca_shared_devices_[a-z]|rdma_shared_device_[a-z])"
    r"|networking\.gke\.io\.networks/rdma-[0-9](\.IP)?|aws\.amazon\.com/neuron(core|device)?|google\.com/tpu"
)
_IS_BEFORE = re.compile(r"[.\['\"]+(\w+)['\"\]]*\s*(?:[!=]=|in\s*\[[^\]]*)\s*-?$")
_NEAR_CHARACTERS = 1024  # characters before a number that are searched
_IS_BEHIND = re.compile(r"\s*[!=]=\s*\w[^&|?:,()]*[.'\"](\w+)")


def is_plain(text: str) -> bool:
    """Whether a text is a value of the API, an amount or a time."""
    return text in _FIELDS or bool(_PLAIN.fullmatch(text))


def is_of_vendor(text: str) -> bool:
    """Whether a text has only words that vendors use for their products, or is an address on a bus."""
    words = re.split(r"[^A-Za-z0-9.]+", text)
    return bool(_HARDWARE.fullmatch(text)) or all(not one or one in _WORDS or _CODE.fullmatch(one) for one in words)


def is_resource(name: str) -> bool:
    """Whether Kubernetes or a usual device plugin gave a resource this name."""
    found = _PARTS.fullmatch(name) or _BESIDE_GPUS.fullmatch(name)
    return name in (*_OF_KUBERNETES, *PLUGIN_RESOURCES) or found is not None


def may_name_a_piece(number: re.Match[str]) -> bool:
    """Whether an expression asks whether an attribute is this number, and it may be one of a single piece."""
    text = number.string
    found = _IS_BEFORE.search(text, max(number.start() - _NEAR_CHARACTERS, 0), number.start()) or _IS_BEHIND.match(
        text, number.end()
    )
    return found is not None and found[1] not in NUMBERS


# -- sentences of schedulers -----------------------------------------------------------------------------------------

_HEAD = re.compile(r"[0-9]+/[0-9]+ nodes (are )?available(: )?")
_NEXT, _COUNT = re.compile(r", (?=[0-9]+ )"), re.compile(r"[0-9]+ ")
_OF_ONE_POD = re.compile(r'"[^"]*"|[0-9]+')  # names and numbers that pods with one reason do not share
_INSUFFICIENT = "Insufficient "  # before a resource
_LOOKED_AT = (  # texts of kube-scheduler, and those of Berth that do not begin with a name
    _INSUFFICIENT,
    "Too many pods",
    "cannot allocate all claims",
    "node(s) had untolerated taint",
    "node(s) didn't match Pod's node affinity",
    "node(s) were unschedulable",
    *(code.text.partition("{")[0] for code in Code if not code.text.startswith("{")),
)
_OTHERS = (  # beginnings of texts of kube-scheduler's other plugins, without names
    "node(s) didn't have free ports for the requested pod ports",
    "node(s) didn't match pod affinity rules",
    "node(s) didn't match pod anti-affinity rules",
    "node(s) didn't satisfy existing pods anti-affinity rules",
    "node(s) didn't match pod topology spread constraints",
    "node(s) had volume node affinity conflict",
    "node(s) exceed max volume count",
    "node(s) had no available volume zone",
    "node(s) had no available disk",
    "node(s) didn't find available persistent volumes to bind",
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
    "node(s) did not have enough free storage",
    "pod has unbound immediate PersistentVolumeClaims",
    "persistentvolumeclaim",
    "waiting for ephemeral volume controller to create the persistentvolumeclaim",
    "waiting for resource claim",
)
_LEFT_OUT = "a reason with names, which this file does not have"


def other_reason(told: str) -> str:
    """The part of a scheduler's sentence that is about no node's room, devices, labels or taints; '' without one."""
    return ", ".join(_others(told))


def key_of_others(told: str) -> frozenset[str]:
    """What pods with one other reason have in common."""
    return frozenset(_OF_ONE_POD.sub("", part) for part in _others(told))


def without_names(told: str, resource: Callable[[str], str]) -> str:
    """The sentence with only the texts that are known here. `resource` gives the text for the name of a resource."""
    head, parts = _split(told)
    known = []
    for part in parts:
        count = _COUNT.match(part)
        text = part[count.end() :] if count else part
        found = next((one for one in (*_LOOKED_AT, *_OTHERS) if text.startswith(one)), _LEFT_OUT)
        if found.endswith(" "):  # a name follows
            found += resource(text.removeprefix(found)) if found == _INSUFFICIENT else "…"
        known.append((count[0] if count else "") + found)
    return head + ", ".join(known)


def _others(told: str) -> Iterator[str]:
    parts = (_COUNT.sub("", part, count=1) for part in _split(told)[1])
    return (part for part in parts if not part.startswith(_LOOKED_AT))


def _split(told: str) -> tuple[str, list[str]]:
    """The beginning that counts nodes, and the parts, with their counts."""
    told = told.partition(" preemption: ")[0].rstrip(".")
    head = _HEAD.match(told)
    rest = told[head.end() :] if head else told
    return head[0] if head else "", [part for part in _NEXT.split(rest) if part]
