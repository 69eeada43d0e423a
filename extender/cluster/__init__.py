"""All network I/O with the API server: credentials, requests, list and watch, writes.

This package makes no decisions: callers decide what to write and why.
"""

from extender.cluster.api_errors import ClusterError, Conflict, Forbidden, NotFound, NotServed, TooMany, Unavailable
from extender.cluster.client import ApiClient, WallClock, now_rfc3339, seconds_since, utc_now
from extender.cluster.credentials import CONSOLE_EXTENSION, Credentials, kubeconfigs, load_credentials
from extender.cluster.port_forward import PortForward
from extender.cluster.reflector import Backoff, Delays, Reflector, WatchedResource, is_absent, pages
from extender.cluster.writer import Writer, retry_on_conflict

__all__ = [
    "CONSOLE_EXTENSION",
    "ApiClient",
    "Backoff",
    "ClusterError",
    "Conflict",
    "Credentials",
    "Delays",
    "Forbidden",
    "NotFound",
    "NotServed",
    "PortForward",
    "Reflector",
    "TooMany",
    "Unavailable",
    "WallClock",
    "WatchedResource",
    "Writer",
    "is_absent",
    "kubeconfigs",
    "load_credentials",
    "now_rfc3339",
    "pages",
    "retry_on_conflict",
    "seconds_since",
    "utc_now",
]
