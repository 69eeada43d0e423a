"""A cluster in one process: a subset of the API server, two controllers, a scheduler, and fleets of machine files.

Production code has no branch for the sandbox: Berth talks to it over HTTP as to any cluster. The module
`examples` is a face of its own: the workloads of `berth run`.
"""

from extender.sandbox.apiserver.registry import ApiError
from extender.sandbox.machines import (
    MachineNode,
    carried_machines,
    fabric_slice,
    load_machine,
    machine_objects,
    parse_nodes,
    unlinked_machine,
)
from extender.sandbox.sandbox_cluster import DEVICE_CLASSES, Cluster, listening, running, write_kubeconfig
from extender.sandbox.scheduler import Scheduler, backoff_seconds, tie_breaker

__all__ = [
    "DEVICE_CLASSES",
    "ApiError",
    "Cluster",
    "MachineNode",
    "Scheduler",
    "backoff_seconds",
    "carried_machines",
    "fabric_slice",
    "listening",
    "load_machine",
    "machine_objects",
    "parse_nodes",
    "running",
    "tie_breaker",
    "unlinked_machine",
    "write_kubeconfig",
]
