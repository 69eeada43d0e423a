"""Code of both processes below their services: supervised tasks, informers, readiness, policy files.

Decisions do not belong here. A name's module is loaded at its first use: the node agent needs three small ones, and the
others load the cache and CEL (12 MiB).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extender.runtime.cache_tasks import CacheRefresh, HoldExpirer, WatchProgress
    from extender.runtime.file_reload import LimitedCall, ReloadedFiles
    from extender.runtime.informers import Informers
    from extender.runtime.policy_file import read_policy, reloaded_policy
    from extender.runtime.supervisor import DaemonThreads, Supervisor
    from extender.runtime.watched_kinds import watched_resources

__all__ = [
    "CacheRefresh",
    "DaemonThreads",
    "HoldExpirer",
    "Informers",
    "LimitedCall",
    "ReloadedFiles",
    "Supervisor",
    "WatchProgress",
    "read_policy",
    "reloaded_policy",
    "watched_resources",
]
_MODULES = {
    "cache_tasks": ("HoldExpirer", "CacheRefresh", "WatchProgress"),
    "informers": ("Informers",),
    "file_reload": ("LimitedCall", "ReloadedFiles"),
    "policy_file": ("read_policy", "reloaded_policy"),
    "supervisor": ("DaemonThreads", "Supervisor"),
    "watched_kinds": ("watched_resources",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
