"""The one stateful, asynchronous object: it holds the cache, answers the verbs and carries out binds.

What does not belong here: HTTP, JSON of the extender protocol, and how decisions are made.
"""

from extender.extension.outbox import Post
from extender.extension.poster import Poster
from extender.extension.requeue import MARKER_CLASS
from extender.extension.service import Service
from extender.extension.tracing import TracedService, Traces, no_span

__all__ = [
    "MARKER_CLASS",
    "Post",
    "Poster",
    "Service",
    "TracedService",
    "Traces",
    "no_span",
]
