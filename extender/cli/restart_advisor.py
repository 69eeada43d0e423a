"""What the console needs to advise restarts: the proof runs the code of serve, which the console itself never loads.

The first question loads it.
"""

from __future__ import annotations

from extender.cache import ClusterCache
from extender.console import RestartAdvisor


def restart_advisor(cache: ClusterCache) -> RestartAdvisor:
    """An advisor for one question about the cluster of this cache."""
    from extender.assess import ConsoleAdvisor

    return ConsoleAdvisor(cache)
