"""Nodes as they were: a reader keeps what changes under it, so that nobody copies all nodes when a few change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from extender.allocation.view import NodeView


class KeptViews(Mapping[str, NodeView]):
    """Views by node as they were when this was made. What changes later is told with `was`, to the newest of them only: an
    older one looks there for what it was not told itself."""

    __slots__ = ("__weakref__", "before", "later")

    def __init__(self, now: Mapping[str, NodeView]) -> None:
        self.before: dict[str, NodeView] = {}
        self.later: Mapping[str, NodeView] = now  # the next newer one, or what is now

    def was(self, name: str, view: NodeView) -> None:
        """A node is about to change."""
        self.before.setdefault(name, view)

    def followed_by(self, newer: KeptViews) -> None:
        """From now on changes are told to another."""
        self.later = newer

    def __getitem__(self, name: str) -> NodeView:
        views: Mapping[str, NodeView] = self
        while type(views) is KeptViews:  # isinstance asks an abstract class, ten times as long
            known = views.before.get(name)
            if known is not None:
                return known
            views = views.later
        return views[name]

    def _now(self) -> Mapping[str, NodeView]:
        """The nodes that there are, as long as none comes or goes."""
        views = self.later
        while type(views) is KeptViews:
            views = views.later
        return views

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __contains__(self, name: object) -> bool:
        return name in (self.later if type(self.later) is dict else self._now())
