"""`berth lint` tells what kube-apiserver would refuse, and what it takes with another effect than it seems."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from extender.cli.main import commands

app = commands()
RUNNER = CliRunner()
KINDS = yaml.safe_load((Path(__file__).parent / "cases" / "api_rules.yaml").read_text())
CHANGES = [(kind, change) for kind, known in KINDS.items() for change in known["changes"]]


def named(kind: str) -> dict[str, Any]:
    known = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "x"}}
    return {**known, **deepcopy(KINDS[kind]["object"])}


@pytest.mark.parametrize("kind", KINDS)
def test_a_valid_object_has_no_findings(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(named(kind)))
    assert RUNNER.invoke(app, ["lint", str(path)]).output == "0 findings\n"


@pytest.mark.parametrize(("kind", "change"), CHANGES, ids=[f"{kind} {change['is']}" for kind, change in CHANGES])
def test_one_change_has_one_finding(tmp_path: Path, kind: str, change: dict[str, Any]) -> None:
    obj = named(kind)
    inner: Any = obj["spec"]["devices"] if kind == "ResourceClaim" else obj["spec"]
    *way, last = change["at"]
    for step in way:
        inner = inner[step] if isinstance(inner, list) else inner.setdefault(step, {})
    inner[last] = change["is"]
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(obj))
    result = RUNNER.invoke(app, ["lint", str(path)])
    if not change["finds"]:
        assert result.output == "0 findings\n"
        return
    first, *more = result.output.splitlines()
    assert change["finds"] in first, result.output
    assert first.startswith(change.get("severity", "error")), result.output
    assert more[-1] == "1 finding", result.output
    assert change.get("advice", "") in result.output
