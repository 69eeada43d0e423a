"""Choosing devices for the claims of one pod on one node.

The contract of `Search.run` (search.py):
  * The input is one node's inventory, the unallocated claims in the order of the pod, the allocated state, and match
    masks. The search has no side effects: equal input gives equal results.
  * A Solution has devices for all claims.
  * None means that this node cannot serve the claims.
  * InvalidClaim means that the input is not valid (a class does not exist, a selector fails, mode All with a pool that
    is being updated). The text names object and field.
  * OutOfSteps means that the search used up its steps. It is not known whether a solution exists.

Semantics are those of Kubernetes' structured allocator (docs/allocation.md), with the differences that
docs/decisions/ records. The package contains no I/O and no preferences: a caller passes them as an order.
"""

from extender.allocation.capacity import consumption, fits, has_room, refusal
from extender.allocation.choose import Preference, choose, choose_plain
from extender.allocation.constraints import UNREADABLE, attribute_values
from extender.allocation.counters import left_of
from extender.allocation.fast_path import FastPath, fast_path
from extender.allocation.features import Features, from_gates
from extender.allocation.hypothetical import (
    hypothetical_snapshot,
    is_own,
    with_devices_allocated,
    with_devices_released,
    with_own_pools_released,
)
from extender.allocation.interned import NUMBERS, Interned, Interns, interned
from extender.allocation.inventory import Inventory, inventory
from extender.allocation.live_memory import Uses, live_use, troubled, uses_of
from extender.allocation.node_info import ChangeLog, FleetBaseline, NodeInfo, NodeState, PoolGroup, SharedUse, Snapshot
from extender.allocation.offline import consumed_counters, counter_limits, overdrawn_counters, problem_of, usage_of
from extender.allocation.pools import (
    KnownPools,
    Pool,
    PoolDevice,
    WholePool,
    gather,
    same_objects,
    slices_of,
    unknown_counter,
)
from extender.allocation.problem import (
    SHARES,
    UNUSED,
    AllocatedState,
    CounterKey,
    Pick,
    PoolUse,
    Problem,
    Selection,
    Solution,
    taken_mask,
    taken_of,
)
from extender.allocation.result import allocations
from extender.allocation.search import EVERYTHING, Search
from extender.allocation.search_observer import CAUSES, CauseRecorder
from extender.allocation.selection import derived_value, find_class, select
from extender.allocation.slice_devices import KnownSlices
from extender.allocation.taints import blocking_taint, tolerates
from extender.allocation.unsupported_devices import field_of

__all__ = [
    "CAUSES",
    "EVERYTHING",
    "NUMBERS",
    "SHARES",
    "UNREADABLE",
    "UNUSED",
    "AllocatedState",
    "CauseRecorder",
    "ChangeLog",
    "CounterKey",
    "FastPath",
    "Features",
    "FleetBaseline",
    "Interned",
    "Interns",
    "Inventory",
    "KnownPools",
    "KnownSlices",
    "NodeInfo",
    "NodeState",
    "Pick",
    "Pool",
    "PoolDevice",
    "PoolGroup",
    "PoolUse",
    "Preference",
    "Problem",
    "Search",
    "Selection",
    "SharedUse",
    "Snapshot",
    "Solution",
    "Uses",
    "WholePool",
    "allocations",
    "attribute_values",
    "blocking_taint",
    "choose",
    "choose_plain",
    "consumed_counters",
    "consumption",
    "counter_limits",
    "derived_value",
    "fast_path",
    "field_of",
    "find_class",
    "fits",
    "from_gates",
    "gather",
    "has_room",
    "hypothetical_snapshot",
    "interned",
    "inventory",
    "is_own",
    "left_of",
    "live_use",
    "overdrawn_counters",
    "problem_of",
    "refusal",
    "same_objects",
    "select",
    "slices_of",
    "taken_mask",
    "taken_of",
    "tolerates",
    "troubled",
    "unknown_counter",
    "usage_of",
    "uses_of",
    "with_devices_allocated",
    "with_devices_released",
    "with_own_pools_released",
]
