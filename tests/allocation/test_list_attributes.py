"""Attributes that are lists, and attributes of unknown types: selectors, constraints, and what other devices see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from extender.api.resource_slices import SliceDecoder
from extender.cache import ClusterCache
from extender.cel.dra import Dialect
from extender.cel.dra.terms import failed_term
from extender.cli.select_command import answer
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import GPU_DRIVER, gpu_slice
from extender.scheduling import Placement, evaluate
from extender.scheduling.equivalence import Patterns, equivalence_key
from extender.topology.sources import choose_fabric
from tests.worlds.agreeing import check_case
from tests.worlds.filled_caches import CLASS, NODE, asked, claim_for, class_of_driver, device_slice, put
from tests.worlds.vendor_worlds import whole_gpus

Json = dict[str, Any]
WORLD = yaml.safe_load((Path(__file__).parents[1] / "cases" / "list_attributes.yaml").read_text())
OF_D = class_of_driver("d")


@pytest.mark.parametrize(("expression", "expected"), WORLD["selectors"])
def test_selectors_read_lists(expression: str, expected: object) -> None:
    gates = {"features": ["DRAListTypeAttributes"]}
    found = answer({"name": "x", "expression": expression, **WORLD["device"], **gates}, "x")
    assert found["compile_error"] is None
    assert ("error" if found["runtime_error"] else found["match"]) == expected, found
    assert "internal error" not in (found["runtime_error"] or "")


def node_of(name: str, devices: list[Json], others: list[Json]) -> list[Json]:
    """The node and the slices of its two drivers."""
    node = {"kind": "Node", "metadata": {"name": name}}
    return [node, device_slice(name, "d", devices), device_slice(name, "other", others)]


def claim_of(case: Json) -> Json:
    exactly: Json = {"deviceClassName": "d", "count": case.get("count", 1)}
    if "selector" in case:
        exactly["selectors"] = [{"cel": {"expression": case["selector"]}}]
    return claim_for({"name": "r", "exactly": exactly}, constraints=case.get("constraints", []))


@pytest.mark.parametrize("case", WORLD["worlds"], ids=lambda case: case["name"])
def test_serve_and_allocate_agree(case: Json) -> None:
    node = node_of("n", case["devices"], case.get("others", []))
    check_case(case, [*node, OF_D], claim_of(case))


numbers = st.one_of(
    st.integers(0, 2).map(lambda one: {"int": one}),
    st.lists(st.integers(0, 2), max_size=2, unique=True).map(lambda some: {"ints": some}),
    st.sampled_from([{"strings": ["0", "1"]}, {}, None]),
)


@given(
    st.lists(st.lists(numbers, min_size=2, max_size=3), min_size=2, max_size=4), st.sampled_from(["match", "distinct"])
)
@example([[{"ints": [0, 1]}, {"int": 1}], [{"ints": [0, 1]}, {"int": 2}]], "match")
def test_nodes_of_one_equivalence_key_fit_the_same_claims(nodes: list[list[Json | None]], kind: str) -> None:
    """The two nodes of the example had one key, though only the first one's devices match."""
    made = [
        [{"name": f"x{i}", **({} if one is None else {"attributes": {"n": one}})} for i, one in enumerate(node)]
        for node in nodes
    ]
    cache = put(ClusterCache(), OF_D, *(obj for i, own in enumerate(made) for obj in node_of(f"n{i}", own, [])))
    requirements, context = asked(cache, claim_of({"count": 2, "constraints": [{f"{kind}Attribute": "d/n"}]}))
    known: dict[object, object] = {}
    for info in cache.snapshot().node_infos.values():
        key = len(info.inventory.devices), *equivalence_key(info, requirements, context, Patterns())
        status = evaluate(info, requirements, context)
        fits = isinstance(status, Placement) or status.reason.code
        assert known.setdefault(key, fits) == fits


def test_a_gpu_takes_the_first_number_of_its_list_as_its_numa_node() -> None:
    """KEP-6072: the node of the device itself comes first, those that are as near follow."""
    machine = carried_machines()["hgx-h100-8"]
    published = gpu_slice("n", machine)
    for position, device in enumerate(published["spec"]["devices"]):
        near = [0, 1] if position < 4 else [1, 0]
        device["attributes"]["resource.kubernetes.io/numaNode"] = {"ints": near}
        device["attributes"]["resource.kubernetes.io/pcieRoot"] = {"strings": [f"pci{position}"]}
    found = choose_fabric(None, GPU_DRIVER, whole_gpus(published, GPU_DRIVER))
    assert found is not None
    assert found.graph.numa == (0, 0, 0, 0, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("term", "seen"),
    [
        ("numas == 0", "[0, 1]"),
        ("roots.includes('x')", "['pci0000:00', 'pci0000:64']"),
        ("releases == 1", "[1.0.0, 2.3.0]"),
        ("nothing == 1", "[]"),
        ("flags == true", "[true, false]"),
        ("numas", "[0, 1]"),
    ],
)
def test_a_failed_term_shows_the_list_as_cel_writes_it(term: str, seen: str) -> None:
    _, slice_, _ = node_of("n", [{"name": "a", "attributes": WORLD["device"]["attributes"]}], [])
    tested = f"{'7 in ' if term == 'numas' else ''}device.attributes['d'].{term}"
    found = failed_term(tested, Dialect(), SliceDecoder().decode(slice_).devices[0], "d")
    assert found == f"`{tested}` is false (saw {seen})"


def test_the_preferred_gpus_are_joined_ones_whose_lists_meet() -> None:
    """Of four GPUs in two NVLink pairs, the middle two alone have equal lists."""
    machine = carried_machines()["rtx-a6000-4-bridged"]
    published = gpu_slice("n", machine)
    for device, near in zip(published["spec"]["devices"], ([0], [0, 1], [0, 1], [1]), strict=True):
        device["attributes"]["resource.kubernetes.io/numaNode"] = {"ints": near}
    cache = put(ClusterCache(), CLASS, NODE, published, fabric_slice("n", machine))
    constraints = [{"matchAttribute": "resource.kubernetes.io/numaNode"}]
    request = {"name": "r", "exactly": {"deviceClassName": "any", "count": 2}}
    requirements, context = asked(cache, claim_for(request, constraints=constraints))
    status = evaluate(cache.snapshot().node_infos["n"], requirements, context)
    assert isinstance(status, Placement)
    assert status.solution.mask in (0b0011, 0b1100)
