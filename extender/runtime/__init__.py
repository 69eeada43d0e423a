"""Code of both processes below their services: supervised tasks, informers, readiness, policy files.

Decisions do not belong here. A name's module is loaded at its first use: the node agent needs three small ones, and the
others load the cache and CEL (12 MiB).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extender.runtime.cache_tasks import CacheRefresh, WatchProgress
    from extender.runtime.file_reload import ReloadedFiles
    from extender.runtime.informers import Informers, watched_resources
    from extender.runtime.policy_file import read_policy, reloaded_policy
    from extender.runtime.supervisor import DaemonThreads, Supervisor

__all__ = [
    "CacheRefresh",
    "DaemonThreads",
    "Informers",
    "ReloadedFiles",
    "Supervisor",
    "WatchProgress",
    "read_policy",
    "reloaded_policy",
    "watched_resources",
]
_MODULES = {
    "cache_tasks": ("CacheRefresh", "WatchProgress"),
    "informers": ("Informers", "watched_resources"),
    "file_reload": ("ReloadedFiles",),
    "policy_file": ("read_policy", "reloaded_policy"),
    "supervisor": ("DaemonThreads", "Supervisor"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
