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
