"""Listeners of the cluster cache for tests."""

from __future__ import annotations

from extender.cache import CacheListener


class Freed(CacheListener):
    """Counts how often devices may have become free, and how often the next deadline came nearer."""

    count = moved = 0

    def freed(self) -> None:
        self.count += 1

    def deadline_moved(self) -> None:
        self.moved += 1
