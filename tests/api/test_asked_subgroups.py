"""Which sub-groups of its group a pod asks for: cases as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.api.asked_subgroups import SubGroupIndex, subgroup_index_of
from extender.api.pods import decode_pod

CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "asked_subgroups.yaml").read_text()
)


@pytest.mark.parametrize("title", CASES)
def test_the_parts_that_a_pod_asks_for(title: str) -> None:
    case = CASES[title]
    metadata = {"name": "job-7", "namespace": "default", "uid": "u", **case}
    found = decode_pod({"metadata": metadata, "spec": {}}).membership
    assert found is not None
    assert found.problem == case.get("problem", "")
    asked = found.subgroups
    assert asked.name == case.get("subgroup", "")
    assert asked.minimum == case.get("minimum", 0)
    assert (asked.required and asked.required.name) == case.get("required")
    assert [[layer.size, layer.level.name] for layer in asked.slices] == case.get("slices", [])
    assert (found.topology.required and found.topology.required.name) == case.get("group")


@pytest.mark.parametrize(
    "part",
    [
        SubGroupIndex("", 7, True),
        SubGroupIndex("workers", 1_000_003, True),
        SubGroupIndex("w", None, True),
        SubGroupIndex("l", None, False),
        SubGroupIndex("m/g", 1, True),
    ],
)
def test_a_claim_keeps_the_part_of_its_pod(part: SubGroupIndex) -> None:
    assert subgroup_index_of(str(part)) == part


@pytest.mark.parametrize("text", ["", "workers", "workers/x", "workers/-1", "workers/1/x"])
def test_what_a_tenant_writes_to_a_claim_is_no_part(text: str) -> None:
    assert subgroup_index_of(text) is None
