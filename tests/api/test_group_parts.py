"""Which parts of its group a pod asks for: cases as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.api.group_parts import BoundPart, bound_part_of
from extender.api.pods import decode_pod

CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "group_parts.yaml").read_text()
)


@pytest.mark.parametrize("title", CASES)
def test_the_parts_that_a_pod_asks_for(title: str) -> None:
    case = CASES[title]
    metadata = {"name": "job-7", "namespace": "default", "uid": "u", **case}
    found = decode_pod({"metadata": metadata, "spec": {}}).membership
    assert found is not None
    assert found.problem == case.get("problem", "")
    asked = found.parts
    assert asked.subgroup == case.get("subgroup", "")
    assert asked.minimum == case.get("minimum", 0)
    assert (asked.required and asked.required.name) == case.get("required")
    assert [[layer.size, layer.level.name] for layer in asked.slices] == case.get("slices", [])
    assert (found.topology.required and found.topology.required.name) == case.get("group")


@pytest.mark.parametrize(
    "part",
    [
        BoundPart("", 7, True),
        BoundPart("workers", 1_000_003, True),
        BoundPart("w", None, True),
        BoundPart("l", None, False),
        BoundPart("m/g", 1, True),
    ],
)
def test_a_claim_keeps_the_part_of_its_pod(part: BoundPart) -> None:
    assert bound_part_of(str(part)) == part


@pytest.mark.parametrize("text", ["", "workers", "workers/x", "workers/-1", "workers/1/x"])
def test_what_a_tenant_writes_to_a_claim_is_no_part(text: str) -> None:
    assert bound_part_of(text) is None
