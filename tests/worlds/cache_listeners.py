"""Listeners of the cluster cache for tests."""

from __future__ import annotations

from extender.cache import CacheListener


class Freed(CacheListener):
    """Counts how often devices may have become free."""

    count = 0

    def freed(self) -> None:
        self.count += 1
