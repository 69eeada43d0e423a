"""A cluster in one process: an API server subset, the controllers that matter, a scheduler, fleets of machine files.

Production code has no branch for it: Berth meets it over HTTP like any other cluster.
"""
