"""Choosing devices for the claims of one pod on one node.

The contract of `solve` (search.py):
  * Input is one node's inventory, the unallocated claims in pod order, what is in use, and match masks. Nothing is
    written and nothing is kept: equal input gives the equal answer.
  * A Solution has picks for every claim: all or nothing.
  * None means that this node cannot serve the claims.
  * InvalidClaim means the question itself is broken (a class does not exist, a selector fails, 'all' of a pool that is
    being updated): it names object and field.
  * OutOfBudget means the search gave up: nothing is known. Gave up is not impossible.

Semantics are those of Kubernetes' structured allocator (docs/allocation.md), with the differences that
docs/decisions/ records. What does not belong here: Kubernetes I/O, and preferences other than an order handed in.
"""

from extender.allocation.choose import Preference, choose, choose_plain
from extender.allocation.constraints import attribute_values
from extender.allocation.counters import left_of
from extender.allocation.fast_path import FastPath, fast_path
from extender.allocation.features import Features, from_gates
from extender.allocation.live_memory import Uses, live_use, troubled, uses_of
from extender.allocation.node_info import ChangeLog, FleetBaseline, Interned, NodeInfo, NodeState, Snapshot
from extender.allocation.offline import consumed_counters, newest, overdrawn_counters, problem_of, usage_of
from extender.allocation.pools import Inventory, Pool, gather, inventory
from extender.allocation.problem import (
    UNUSED,
    AllocatedState,
    CounterKey,
    Pick,
    PoolUse,
    Problem,
    Selection,
    Solution,
    taken_mask,
)
from extender.allocation.result import allocations
from extender.allocation.search import EVERYTHING, Search
from extender.allocation.search_observer import CAUSES, NULL_OBSERVER, CauseRecorder
from extender.allocation.selection import find_class, select
from extender.allocation.unsupported_devices import field_of

__all__ = [
    "CAUSES",
    "EVERYTHING",
    "NULL_OBSERVER",
    "UNUSED",
    "AllocatedState",
    "CauseRecorder",
    "ChangeLog",
    "CounterKey",
    "FastPath",
    "Features",
    "FleetBaseline",
    "Interned",
    "Inventory",
    "NodeInfo",
    "NodeState",
    "Pick",
    "Pool",
    "PoolUse",
    "Preference",
    "Problem",
    "Search",
    "Selection",
    "Snapshot",
    "Solution",
    "Uses",
    "allocations",
    "attribute_values",
    "choose",
    "choose_plain",
    "consumed_counters",
    "fast_path",
    "field_of",
    "find_class",
    "from_gates",
    "gather",
    "inventory",
    "left_of",
    "live_use",
    "newest",
    "overdrawn_counters",
    "problem_of",
    "select",
    "taken_mask",
    "troubled",
    "usage_of",
    "uses_of",
]
