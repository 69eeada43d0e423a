"""What the cache does at a later time, without a watch event: one list of timers, for holds and for two other uses.

* A `Cooldown` limits how often a driver or an agent can have nodes built again. A change beyond its limit is not lost:
  the cache uses the newest objects when the timer of the key is due.
* `AgentReports` finds the agents that do not report any more.

`ClusterCache.expire` is the table of what each timer does. Times are in seconds of the service's clock.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum

from extender.base.timers import Timers
from extender.base.token_buckets import TokenBuckets

_LIVE_MEMORY_SECONDS = 900.0  # until `AgentReports.use_seconds` is called


class TimerKind(StrEnum):
    """What is due; the name of a timer is a claim UID, or a node."""

    HOLD = "hold"
    NODE_CHANGES = "node changes"
    SHARED_POOLS = "shared pools"
    AGENT = "agent"


CacheTimers = Timers[tuple[TimerKind, str]]


_MAX_REMEMBERED = 8192  # keys of a Cooldown


class Cooldown:
    """Limits how often changes of a key are used: `burst` at once, and then one in `seconds`.

    A change beyond them waits, with all later ones of its key, until the key's timer is due. `waiting` has the keys.
    At most 8,192 keys with recent changes are kept.
    """

    def __init__(self, timers: CacheTimers, kind: TimerKind, burst: float, seconds: float) -> None:
        self._timers, self._kind = timers, kind
        self._changes: TokenBuckets[str] = TokenBuckets(burst, seconds, _MAX_REMEMBERED)
        self.waiting: set[str] = set()

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._changes)

    def try_accept(self, key: str, now: float, cost: float = 1.0) -> bool:
        """Take a change of the key, which counts as `cost` changes. False if it is not used now: the key waits."""
        if key in self.waiting:
            return False
        if self._changes.take(key, now, cost):
            return True
        self.waiting.add(key)
        self._timers.at((self._kind, key), now + self._changes.wait(key, now))
        return False

    def ended(self, key: str, now: float) -> None:
        """The timer of the key is due: its last change is used now."""
        self.waiting.discard(key)
        self._changes.empty(key, now)

    def forget(self, key: str) -> None:
        """Drop what is known of a key."""
        self.waiting.discard(key)
        self._changes.forget(key)
        self._timers.cancel((self._kind, key))


class AgentReports:
    """An agent that does not report for `seconds` is silent: its memory data is too old.

    `silent` are the nodes of silent agents.
    """

    def __init__(self, timers: CacheTimers) -> None:
        self._timers = timers
        self._seconds = _LIVE_MEMORY_SECONDS
        self.silent: set[str] = set()
        self._reported: OrderedDict[str, float] = OrderedDict()  # node to time of last slice, oldest first

    def use_seconds(self, seconds: float) -> None:
        """Change the time until an agent is silent."""
        self._seconds = seconds
        for node, at in self._reported.items():
            self._timers.at((TimerKind.AGENT, node), at + seconds)

    def report(self, node: str, now: float) -> None:
        """The agent of a node has reported: it is not silent."""
        self._reported[node] = now
        self._reported.move_to_end(node)
        self.silent.discard(node)
        self._timers.at((TimerKind.AGENT, node), now + self._seconds)

    def forget(self, node: str) -> None:
        """Forget an agent: its slice or its node was deleted."""
        self._reported.pop(node, None)
        self.silent.discard(node)
        self._timers.cancel((TimerKind.AGENT, node))

    def node_appeared(self, node: str) -> None:
        """A new node has an old slice of an agent: the agent counts as silent until it reports."""
        if node not in self._reported:
            self.silent.add(node)

    def expire(self, node: str, *, exists: bool) -> bool:
        """The agent has become silent, unless its node does not exist. Returns whether it has."""
        del self._reported[node]
        if exists:
            self.silent.add(node)
        return exists

    def oldest(self, now: float) -> float:
        """Seconds since the oldest last report among agents that are not silent; 0 without agents."""
        return now - next(iter(self._reported.values()), now)
