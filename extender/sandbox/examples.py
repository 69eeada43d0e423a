"""Example workloads: files of Kubernetes objects whose pods say, by annotation, where they should land."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from extender.model.errors import WireError

Json = dict[str, Any]

EXPECT = "berth.dev/expect-"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a pod's file says: machines it may land on, the least ring bandwidth, or that it must stay pending."""

    pod: str
    machines: tuple[str, ...]
    min_gbps: float
    pending: str  # part of the reason, or ""


def load_examples(folder: Path) -> list[tuple[str, list[Json]]]:
    """(file name, objects) of every example, in name order. Raises WireError naming the file."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            objects = [obj for obj in yaml.safe_load_all(path.read_text()) if obj]
        except yaml.YAMLError as error:
            raise WireError(str(path), f"is not YAML: {error}") from error
        found.append((path.name, objects))
    if not found:
        raise WireError(str(folder), "holds no .yaml files")
    return found


def expectation(pod: Json) -> Expectation:
    """What the annotations of a pod say."""
    metadata = pod["metadata"]
    notes = metadata.get("annotations") or {}
    machines = tuple(filter(None, (notes.get(EXPECT + "machine") or "").split(",")))
    least = float(notes.get(EXPECT + "gbps") or 0)
    return Expectation(metadata["name"], machines, least, notes.get(EXPECT + "pending") or "")
