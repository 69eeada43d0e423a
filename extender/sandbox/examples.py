"""Example workloads: files of Kubernetes objects. Annotations of a pod state which placement is expected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extender.files import must_exist, name_of, read_file
from extender.manifests import objects_of_part
from extender.model import WireError, shown
from extender.sandbox.apiserver.readable import decode
from extender.wire import MOST_YAML, decode_pod, parts_of, text_of

Json = dict[str, Any]

EXPECT = "berth.dev/expect-"


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected placement of a pod."""

    pod: str
    machines: tuple[str, ...]  # the pod may be on one of these; empty: on any
    min_gbps: float  # least ring bandwidth
    pending: str  # part of the reason for which the pod must stay pending, or ""
    domain: str  # label with one value on the nodes of all pods of this pod's group, or ""

    def is_pending_for(self, reasons: Iterable[str]) -> bool:
        """Whether the pod must stay pending, for one of these reasons."""
        return bool(self.pending) and any(self.pending in reason for reason in reasons)


def load_examples(folder: Path) -> list[tuple[str, list[Json]]]:
    """Return (file name, objects) of every example, in name order. Raises WireError that names file and field."""
    must_exist(folder)
    found = []
    for path in sorted(folder.glob("*.yaml")):
        where = name_of(path)
        parts = parts_of(text_of(read_file(path, MOST_YAML), where), where)
        found.append((path.name, [_decodable(obj, part.where) for part in parts for obj in objects_of_part(part)]))
    if not found:
        raise WireError(name_of(folder), "holds no .yaml files")
    return found


def _decodable(obj: Json, where: str) -> Json:
    """Return the object after decoding it. Raises WireError if Berth cannot decode it."""
    try:
        decode(obj)
        if obj.get("kind") == "Pod":
            expectation(obj)
    except WireError as error:
        raise WireError(f"{where}: {error.path}", error.problem) from error
    return obj


def expectation(pod: Json) -> Expectation:
    """Return the expectation in the annotations of a pod. Raises WireError."""
    metadata = pod["metadata"]
    notes = metadata.get("annotations") or {}
    machines = tuple(filter(None, (notes.get(EXPECT + "machine") or "").split(",")))
    try:
        least = float(notes.get(EXPECT + "gbps") or 0)
    except ValueError as error:
        problem = f"must be a number, is {shown(notes[EXPECT + 'gbps'])}"
        raise WireError(f".metadata.annotations[{EXPECT}gbps]", problem) from error
    pending, domain = notes.get(EXPECT + "pending") or "", notes.get(EXPECT + "domain") or ""
    if domain and decode_pod(pod).membership is None:
        raise WireError(f".metadata.annotations[{EXPECT}domain]", "the pod names no group")
    return Expectation(metadata["name"], machines, least, pending, domain)
