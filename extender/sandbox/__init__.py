"""A cluster in one process: an API server subset, the controllers that matter, a scheduler, fleets of machine files.

Production code has no branch for it: Berth meets it over HTTP like any other cluster.
"""

from extender.sandbox.apiserver.status_errors import ApiError
from extender.sandbox.examples import expectation, load_examples
from extender.sandbox.machines import carried_machines, fabric_slice, load_machine
from extender.sandbox.report import Report, Row
from extender.sandbox.sandbox_cluster import Cluster, listening
from extender.sandbox.scheduler import Scheduler

__all__ = [
    "ApiError",
    "Cluster",
    "Report",
    "Row",
    "Scheduler",
    "carried_machines",
    "expectation",
    "fabric_slice",
    "listening",
    "load_examples",
    "load_machine",
]
