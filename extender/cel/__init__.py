"""CEL as Kubernetes speaks it: parser, checker, cost, library and closures.

What belongs here: everything about the language, and the match masks of slices. What does not: the search that
reads the masks. `compile_selector` is the door; docs/cel.md describes the dialect and its limits.
"""
