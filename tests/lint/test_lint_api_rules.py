"""`berth lint` tells what kube-apiserver would refuse, and what it takes with another effect than it seems."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.worlds.lint_worlds import CLEAN, dra, lint

KINDS = yaml.safe_load((Path(__file__).parents[1] / "cases" / "api_rules.yaml").read_text())
CHANGES = [(kind, change) for kind, known in KINDS.items() for change in known["changes"]]


def named(kind: str) -> dict[str, Any]:
    return {**dra(kind, "x", {}), **deepcopy(KINDS[kind]["object"])}


@pytest.mark.parametrize("kind", KINDS)
def test_a_valid_object_has_no_findings(tmp_path: Path, kind: str) -> None:
    assert lint(tmp_path, named(kind)).stdout == CLEAN


@pytest.mark.parametrize(("kind", "change"), CHANGES, ids=[f"{kind} {change['is']}" for kind, change in CHANGES])
def test_one_change_has_one_finding(tmp_path: Path, kind: str, change: dict[str, Any]) -> None:
    obj = named(kind)
    inner: Any = obj["spec"]["devices"] if kind == "ResourceClaim" else obj["spec"]
    *way, last = change["at"]
    for step in way:
        inner = inner[step] if isinstance(inner, list) else inner.setdefault(step, {})
    inner[last] = change["is"]
    out = lint(tmp_path, obj).stdout
    if not change["finds"]:
        assert out == CLEAN
        return
    first, *more = out.splitlines()
    assert change["finds"] in first, out
    assert first.startswith(change.get("severity", "error")), out
    assert more[-1] == "1 finding", out
    assert change.get("advice", "") in out
