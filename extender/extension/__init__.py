"""The one stateful, asynchronous object: it holds the cache, answers the verbs and carries out binds.

What does not belong here: HTTP, JSON of the extender protocol, and how decisions are made.
"""
