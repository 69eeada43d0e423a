"""How pods name a gang of KAI, Volcano or Koordinator.

Berth does not place these gangs, so they are no groups of pod_groups.py: only restarts and assessments must know what
goes together.
"""

from __future__ import annotations

from typing import NamedTuple

from extender.api.fields import Json

FOREIGN_GANGS = (  # labels or annotations
    "pod-group-name",
    "scheduling.k8s.io/group-name",
    "gang.scheduling.koordinator.sh/name",
    "pod-group.scheduling.sigs.k8s.io",
)
VOLCANO_MADE = "podgroup-"  # begins the names that Volcano makes for pods that name no gang: their minimum is one pod


class ForeignGang(NamedTuple):
    """A gang of another scheduler. `key` is the label or annotation that names it."""

    namespace: str
    key: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def foreign_gang(metadata: Json) -> ForeignGang | None:
    """The gang of another scheduler that a pod names; None if it names none."""
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    named = ((key, str(notes.get(key) or labels.get(key) or "")) for key in FOREIGN_GANGS)
    found = next(((key, name) for key, name in named if name and not name.startswith(VOLCANO_MADE)), None)
    return ForeignGang(str(metadata.get("namespace") or ""), *found) if found is not None else None
