"""What explain says is true: cases as data, and small worlds at random."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from extender.wire import Json
from tests.explain_worlds import asking, explained, objects_of_world

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "explanations.yaml").read_text(encoding="utf-8"))


def texts(found: Json) -> str:
    causes = [line for one in found["unschedulable"] for line in (one["reason"], *one["causes"])]
    return "\n".join([found["sentence"], *found["misses"], *causes])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: Json) -> None:
    objects = objects_of_world(case["devices"], case.get("held", {}), case.get("nodes", 1))
    found = texts(explained(objects, asking(*case["requests"], constraints=case.get("constraints", ()))))
    assert [part for part in case["says"] if part not in found] == [], found
    assert [part for part in case.get("never", ()) if part in found] == [], found
