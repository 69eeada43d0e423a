"""`berth lint` on objects, as the tests of lint run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.worlds.commands import Ended, ended

Json = dict[str, Any]
CLEAN = "0 findings\n"


def dra(kind: str, name: str, spec: Json, **metadata: str) -> Json:
    """An object of resource.k8s.io/v1."""
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def class_(name: str, expression: str, **spec: Any) -> Json:
    return dra("DeviceClass", name, {**selecting(expression), **spec})


def claim(*requests: Json, name: str = "c", **more: Any) -> Json:
    """A claim with these requests; `more` are other fields of spec.devices."""
    return dra("ResourceClaim", name, {"devices": {"requests": list(requests), **more}})


def exactly(class_name: str, expression: str = "", *, name: str = "gpu", **more: Any) -> Json:
    """A request for a device of this class."""
    return {"name": name, "exactly": {"deviceClassName": class_name, **selecting(expression), **more}}


def selecting(expression: str) -> Json:
    return {"selectors": [{"cel": {"expression": expression}}]} if expression else {}


def written(path: Path, *documents: Json | str) -> Path:
    """A file of these objects, or of these texts in YAML."""
    path.write_text("\n---\n".join(one if isinstance(one, str) else yaml.safe_dump(one) for one in documents))
    return path


def lint(folder: Path, *documents: Json | str, options: tuple[str, ...] = ()) -> Ended:
    """The end of `berth lint` on a file x.yaml of these documents."""
    return ended(["lint", *options, str(written(folder / "x.yaml", *documents))])


def problems_beside(asked: list[Json], cluster: list[Json], folder: Path) -> list[str]:
    """The problems that lint finds in `asked`, with a snapshot of these objects."""
    snapshot = written(folder / "snapshot.yaml", *cluster)
    found = lint(folder, *asked, options=("--snapshot", str(snapshot), "--output", "json"))
    return [json.loads(line)["problem"] for line in found.stdout.splitlines()]


def says(text: str, words: str) -> bool:
    """Whether a text has all parts of `words`, which ': ' separates, in this order."""
    position = 0
    for part in words.split(": "):
        position = text.find(part, position)
        if position < 0:
            return False
    return True
