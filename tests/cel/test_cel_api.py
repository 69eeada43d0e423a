"""The public face of the language, its import contract, and what the library must keep."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from extender.api.resource_slices import Device
from extender.cel import (
    UNBOUNDED,
    BudgetExceeded,
    CompileError,
    Environment,
    EvalError,
    Size,
    check,
    cost,
    kubernetes_library,
    types,
)
from extender.cel.cost import PRICES
from extender.cel.dra import compile_selector

ROOT = Path(__file__).resolve().parents[2]
CEL = ROOT / "extender" / "cel"
LANGUAGE = sorted(path for path in CEL.rglob("*.py") if "dra" not in path.relative_to(CEL).parts)
OUTSIDE = sorted(
    path
    for folder in ("extender", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if CEL not in path.parents and path.name not in ("cel_prices.py", "test_cel_api.py")  # they look at each function
)
PUBLIC = {"extender.cel", "extender.cel.dra", "extender.cel.dra.terms"}  # serve does not load the last
BELOW = ("extender.api.", "extender.base.")
MODEL = {  # no device
    "BerthError", "LABEL", "MAX_LABEL", "MAX_SUBDOMAIN", "NANO", "Quantity", "SUBDOMAIN", "Semver", "add", "from_int",
    "parse_quantity", "parse_semver",
}  # fmt: skip
FUNCTIONS = kubernetes_library((1, 37), includes=True, all_versions=True)
DEVICE = Device("gpu-0")


def imported(path: Path) -> set[tuple[str, str]]:
    """The modules of this project that a file imports from, with the names."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {(alias.name, "") for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {
        (node.module or "", alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return {(module, name) for module, name in found if module.split(".")[0] == "extender"}


@pytest.mark.parametrize("path", LANGUAGE, ids=lambda path: str(path.relative_to(CEL)))
def test_the_language_imports_neither_its_binding_nor_a_device(path: Path) -> None:
    found = imported(path)
    others = {(module, name) for module, name in found if not module.startswith("extender.cel")}
    assert all(module.startswith(BELOW) and name in MODEL for module, name in others)
    assert not any(module.startswith("extender.cel.dra") for module, _ in found)


def test_other_packages_import_from_the_public_face_only() -> None:
    deep = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in OUTSIDE
        if "extender.cel" in path.read_text()
        for name, _ in imported(path)
        if name.startswith("extender.cel") and name not in PUBLIC
    }
    assert deep == set()


def test_a_local_variable_hides_the_device() -> None:
    assert compile_selector("[1, 2].map(device, device + 1) == [2, 3]").match(DEVICE, "d")


def test_each_step_has_its_error() -> None:
    with pytest.raises(CompileError, match="no matching overload"):
        compile_selector("device.driver + 1 == 2")
    with pytest.raises(EvalError, match="division by zero"):
        compile_selector("1 / (device.driver.size() - 1) == 0").match(DEVICE, "d")
    with pytest.raises(BudgetExceeded):
        compile_selector("lists.range(100).all(x, x >= 0)").match(DEVICE, "d", 100)


def test_the_cost_uses_the_sizes_of_the_inputs() -> None:
    fields = {"tags": types.list_of(types.STRING)}
    job = types.Type("struct", "test.Job")
    unbounded = Environment(FUNCTIONS, {"job": job}, structs={job.name: fields})
    bounded = replace(unbounded, sizes={job.name: {"tags": Size(10, Size(8))}})
    text = "job.tags.exists(tag, tag == 'x')"
    assert cost(check(text, unbounded)) == UNBOUNDED
    assert cost(check(text, bounded)) < 100


def test_all_overloads_of_a_function_have_the_same_properties_and_each_price_is_that_of_a_function() -> None:
    """Two families may declare one function, such as indexOf of texts and of lists."""
    properties = {name: {(o.pure, o.conversion, o.pattern) for o in found} for name, found in FUNCTIONS.items()}
    assert [name for name, found in properties.items() if len(found) > 1] == []
    assert PRICES.keys() - FUNCTIONS.keys() == set()
