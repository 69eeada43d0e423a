"""The verbs on a snapshot: what a pod asks, which nodes can serve it, where best, and what a bind would write.

Functions of (snapshot, pod, policy). What does not belong here: I/O, clocks, asyncio.
"""
