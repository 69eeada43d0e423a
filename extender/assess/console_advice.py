"""The advice of berth defrag for the page of the console: of a cache, and of objects that the console lists."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import structlog

from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.assess.movable_pods import Terms
from extender.assess.pod_facts import ClusterFacts
from extender.assess.restart_advice import advice_for
from extender.assess.wanted_pods import wanted_group, wanted_pod
from extender.cache import ClusterCache
from extender.policy import Policy

_SILENT = 50  # the level of log lines: none of the proof has it


class ConsoleAdvisor:
    """See RestartAdvisor of extender/console."""

    def __init__(self, cache: ClusterCache) -> None:
        self._facts = ClusterFacts(cache)

    def add(self, objects: Sequence[Json]) -> None:
        """See RestartAdvisor.add."""
        for obj in objects:
            self._facts.add(obj)

    def advise(self, key: ObjectKey, policy: Policy, now: datetime, seconds: float, *, is_group: bool) -> Json:
        """See RestartAdvisor.advise."""
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_SILENT))
        snapshot = self._facts.cache.snapshot()
        wanted = (wanted_group if is_group else wanted_pod)(self._facts, snapshot, key)
        return next(advice_for(self._facts, [wanted], Terms(now, None), policy, seconds)).as_json()
