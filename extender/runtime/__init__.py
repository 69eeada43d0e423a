"""Code of both processes below their services: supervised tasks, informers, readiness, policy files.

Decisions do not belong here.
"""

from extender.runtime.daemon_threads import DaemonThreads
from extender.runtime.hold_expiry import HoldExpirer
from extender.runtime.informers import Informers
from extender.runtime.limited_call import LimitedCall
from extender.runtime.policy_reload import LOOK_SECONDS, PolicyFile, read_policy, watch_policy
from extender.runtime.rebuilds import Rebuilds
from extender.runtime.supervisor import Supervisor
from extender.runtime.watch_progress import WatchProgress
from extender.runtime.watched_resources import watched_resources

__all__ = [
    "LOOK_SECONDS",
    "DaemonThreads",
    "HoldExpirer",
    "Informers",
    "LimitedCall",
    "PolicyFile",
    "Rebuilds",
    "Supervisor",
    "WatchProgress",
    "read_policy",
    "watch_policy",
    "watched_resources",
]
