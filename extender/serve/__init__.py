"""`berth serve` without HTTP: it keeps the cache, answers filter and prioritize, and carries out binds.

`service` connects the other modules: `filter` (with `evaluations`, which gives calls their time); `wake`, which makes
kube-scheduler try rejected pods again; `bind` (with `binding_cycle`, `claims`, `write_barrier` and `undo`); `gangs`,
the life of a gang; `orphans`, which releases what no pod uses; `telemetry`. HTTP, the JSON of the extender protocol and
the search for devices do not belong here.
"""

from extender.serve.service import Decisions, Service, TracedService
from extender.serve.telemetry import Traces, no_span

__all__ = [
    "Decisions",
    "Service",
    "TracedService",
    "Traces",
    "no_span",
]
