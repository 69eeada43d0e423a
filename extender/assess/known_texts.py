"""The texts of Kubernetes, of drivers and of vendors that a snapshot without names keeps: a company chose none of them.

Sources of the names: the vendor files, and the drivers' documents of their attributes.
"""

from __future__ import annotations

import re

from extender.api.pod_groups import GROUP_OBJECTS
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
