"""The NVLink graph: what a set of GPUs can move, which set is best, and where the facts came from.

What belongs here: graphs, ring bandwidth, ranking of sets, sources of topology. What does not: scores of nodes.
"""
