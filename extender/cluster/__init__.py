"""All network I/O with the API server: credentials, requests, list and watch, writes.

What does not belong here: decisions. Nothing in this package knows why something is written.
"""
