"""Code of both processes below their services: supervised tasks, informers, readiness, policy files.

Decisions do not belong here. Each module is a face of its own: the node agent needs three small ones, and the others
load the cache and CEL (12 MiB).
"""
