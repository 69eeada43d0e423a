"""Objects and changes that kube-apiserver refuses, and some that it takes, each with words of its message."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_CASES = Path(__file__).parents[1] / "cases"


class RefusedObject(NamedTuple):
    """An object that a user creates, or changes by a merge patch. `words` are '' if the API server takes it."""

    name: str
    words: str
    obj: dict
    change: dict | None = None


def refused_objects() -> list[RefusedObject]:
    """All cases. Each object has a name of its own, unless the case is about names."""
    written = yaml.safe_load((_CASES / "refused_objects.yaml").read_text())
    found = [RefusedObject(case["object"]["metadata"]["name"], case["refused"], case["object"]) for case in written]
    derived = yaml.safe_load((_CASES / "refused_values.yaml").read_text())
    for position, (kind, path, value, words) in enumerate(derived["values"]):
        obj = copy.deepcopy(derived["bases"][kind])
        obj["metadata"]["name"] = f"value-{position}"
        _set(obj, path, value)
        found.append(RefusedObject(f"{kind} {path} {position}", words, obj))
    for position, (kind, change, words) in enumerate(derived["changes"]):
        obj = copy.deepcopy(derived["bases"][kind])
        obj["metadata"]["name"] = f"change-{position}"
        found.append(RefusedObject(f"{kind} change {position}", words, obj, change))
    return found


def _set(obj: Any, path: str, value: Any) -> None:
    *outer, last = path.split("/")
    for part in outer:
        obj = obj[int(part)] if isinstance(obj, list) else obj.setdefault(part, {})
    obj[last] = value
