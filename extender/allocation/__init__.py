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

The package `nodes` in it (what is known of nodes: devices, pools, what is allocated) and the module `what_if` (nodes
with other devices in use, and problems from plain objects) have faces of their own.
"""

from extender.allocation.choose import Asked, FastPath, Preference, choose
from extender.allocation.device_rules import Features, blocking_taint, refusal, tolerates
from extender.allocation.nodes.node_info import FleetBaseline, NodeInfo, Snapshot
from extender.allocation.problem import CAUSES, Allowed, CauseRecorder, Pick, Problem, Solution, allocations
from extender.allocation.search import Search
from extender.allocation.selection import UNREADABLE, Selection, attribute_values, derived_value, select

__all__ = [
    "CAUSES",
    "UNREADABLE",
    "Allowed",
    "Asked",
    "CauseRecorder",
    "FastPath",
    "Features",
    "FleetBaseline",
    "NodeInfo",
    "Pick",
    "Preference",
    "Problem",
    "Search",
    "Selection",
    "Snapshot",
    "Solution",
    "allocations",
    "attribute_values",
    "blocking_taint",
    "choose",
    "derived_value",
    "refusal",
    "select",
    "tolerates",
]
