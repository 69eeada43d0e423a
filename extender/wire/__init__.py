"""JSON to model and back: resource.k8s.io/v1, the part of core/v1 that is needed, extender v1.

What belongs here: field names, shapes and the paths of errors. What does not: decisions.
"""
