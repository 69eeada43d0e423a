"""`berth serve` without HTTP: it keeps the cache, answers filter and prioritize, and carries out binds.

HTTP, the JSON of the extender protocol and the search for devices do not belong here.
"""

from extender.extension.service import Service, TracedService
from extender.extension.telemetry import Traces, no_span

__all__ = [
    "Service",
    "TracedService",
    "Traces",
    "no_span",
]
