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


@pytest.mark.parametrize(
    ("kind", "value", "term", "remedies"),
    [
        ("attributes", {"string": "a"}, '== "a"', ['orValue("")', "in"]),
        ("attributes", {"int": 3}, ">= 2", ["orValue(0)", "in"]),
        ("attributes", {"bool": True}, "", ["orValue(false)", "in"]),
        ("attributes", {"version": "2.0.0"}, '.isGreaterThan(semver("1.0.0"))', ['orValue(semver("0.0.0"))', "in"]),
        ("capacity", {"value": "8Gi"}, '.isGreaterThan(quantity("4Gi"))', ['orValue(quantity("0"))', "in"]),
    ],
)
def test_the_remedy_for_a_missing_attribute_helps(kind: str, value: Json, term: str, remedies: list[str]) -> None:
    objects = objects_of_world([{"name": "g0"}, {"name": "g1", kind: {"x": value}}])
    of = f'device.{kind}["gpu.example.com"]'

    def answer(expression: str) -> Json:
        return explained(objects, asking({"selectors": [{"cel": {"expression": expression}}]}))

    before = answer(f"{of}.x{term}")
    assert before["outcome"] == "refused"
    ways = {"in": (f'check "x" in {of} first', f'"x" in {of} && {of}.x{term}')}
    for remedy in remedies:
        advice, used = ways.get(remedy, (f"write {of}.?x.{remedy}", f"{of}.?x.{remedy}{term}"))
        assert advice in texts(before)
        assert answer(used)["outcome"] == "fits", used
