"""The memory that a selector demands: the forms that people write, and never more than a matching device has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extender.api.quantity import from_int
from extender.api.resource_slices import Capacities, Capacity, Device
from extender.cel.dra import compile_selector

CASES = yaml.safe_load((Path(__file__).resolve().parents[1] / "cases" / "selector_memory.yaml").read_text())
DRIVER, GIB = "gpu.nvidia.com", 1 << 30


def expression(short: str) -> str:
    """The selector that a case abbreviates."""
    memory = f'device.capacity["{DRIVER}"].memory'
    return re.sub(r"Q\((\d+)\)", r'quantity("\1Gi")', re.sub(r"\bM\b", memory, short))


@pytest.mark.parametrize(("short", "gib"), CASES, ids=[short for short, _ in CASES])
def test_a_selector_demands_memory(short: str, gib: int) -> None:
    assert compile_selector(expression(short)).least_memory == gib * GIB


COMPARISONS = [
    f"{left}.{method}({right}){rest}"
    for left, right in (("M", "Q(2)"), ("Q(3)", "M"))
    for method, rests in {
        "isLessThan": [""],
        "isGreaterThan": [""],
        "compareTo": [f" {sign} {n}" for sign in ("<", "<=", "==", "!=", ">=", ">") for n in (-1, 0, 1)],
    }.items()
    for rest in rests
]
SELECTORS = st.recursive(
    st.sampled_from([*COMPARISONS, "M == Q(2)", "M in [Q(3), Q(2)]", 'device.driver == "x"', "true"]),
    lambda inner: st.one_of(
        inner.map("!({})".format),
        st.tuples(inner, inner).map(" && ".join).map("({})".format),
        st.tuples(inner, inner).map(" || ".join).map("({})".format),
        st.tuples(inner, inner, inner).map(lambda parts: "({} ? {} : {})".format(*parts)),
    ),
)


@given(SELECTORS)
def test_no_selector_demands_more_than_a_device_has_that_it_matches(short: str) -> None:
    selector = compile_selector(expression(short))
    for gib in range(5):
        device = Device("d", capacity=Capacities({"memory": Capacity(from_int(gib * GIB))}))
        assert not selector.match(device, DRIVER) or selector.least_memory <= gib * GIB
