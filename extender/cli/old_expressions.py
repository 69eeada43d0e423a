"""Finds and corrects two mistakes in selectors: memory read as an attribute, and amounts compared as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from extender.cel import CompileError
from extender.cel.dra import Dialect, compile_selector
from extender.cli.lint_finding import LintFinding
from extender.model import parse_quantity
from extender.wire import Json, get

_NO_DOMAIN = re.compile(r"device\.(attributes|capacity)\[\s*[\"']([^\"'./]+)[\"']\s*\]")
_OLD_ACCESSOR = re.compile(r"\]\s*\.(?:\w+\.)?(quantity|string|version|bool|int)\b(?!\()")
_READ = re.compile(
    r"device\.(?P<kind>attributes|capacity)\[\s*(?P<q>[\"'])(?P<domain>[^\"']+)(?P=q)\s*\]\.(?P<name>\w+)"
    r"(?:\s*(?P<op>>=|<=|==|!=|>|<)\s*(?:"
    r"quantity\(\s*([\"'])(?P<quantity>[^\"']*)\6\s*\)|([\"'])(?P<text>[^\"']*)\8|(?P<unit>\d+\.[KMGT]iB)\b|(?P<number>\d+(?:\s*\*\s*\d+)*)"
    r")(?!\s*[\w.*/+%(-]))?"
)
_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"))


def corrected_expression(selector: Json, path: str, published: frozenset[str]) -> Iterator[LintFinding]:
    """Correct the CEL expression of a selector in place, and yield the findings about it. Raises WireError.

    `published` has the attributes, with domain, that slices in the same files publish.
    """
    cel = get(selector, "cel", dict, path, {})
    where = f"{path}.cel.expression"
    text = get(cel, "expression", str, f"{path}.cel", "")
    wrong = [found for found in _READ.finditer(text) if _is_wrong(found, published)]
    if wrong:
        better = _READ.sub(lambda found: _amount(found) if _is_wrong(found, published) else found[0], text)
        fixed = all(map(_is_clear, wrong)) and _compiles(better)
        yield LintFinding(
            "error",
            where,
            _problem(wrong[0]),
            f"write {' '.join(better.split()) if fixed else _example(wrong[0])}",
            fixed,
        )
        if fixed:
            cel["expression"] = text = better
    yield from _old_forms(text, where)


def _is_wrong(found: re.Match[str], published: frozenset[str]) -> bool:
    if found["kind"] == "attributes":
        return found["name"] == "memory" and f"{found['domain']}/memory" not in published
    return found["op"] is not None and not _is_equality(found)


def _is_equality(found: re.Match[str]) -> bool:
    return found["quantity"] is not None and found["op"] in ("==", "!=")


def _is_clear(found: re.Match[str]) -> bool:
    """Whether the amount is one, with a unit or in bytes. No GPU has less than 1 Mi: such a number lacks its unit."""
    if found["op"] is None:
        return True
    if found["number"] is not None:
        return _product(found["number"]) >= 1 << 20
    try:
        parse_quantity(_quantity(found))
    except ValueError:
        return False
    return True


def _amount(found: re.Match[str]) -> str:
    """The comparison of an amount as CEL allows it."""
    q = found["q"]
    read = f"device.capacity[{q}{found['domain']}{q}].{found['name']}"
    if found["op"] is None:
        return read
    amount = f"quantity({q}{_quantity(found)}{q})"
    return f"{read} {found['op']} {amount}" if _is_equality(found) else f"{read}.compareTo({amount}) {found['op']} 0"


def _quantity(found: re.Match[str]) -> str:
    if found["unit"] is not None:
        return str(found["unit"]).replace(".", "").removesuffix("B")
    if found["number"] is None:
        return str(found["quantity"] or found["text"])
    count = _product(found["number"])
    return next((f"{count // unit}{name}" for unit, name in _UNITS if count % unit == 0), str(count))


def _product(text: str) -> int:
    count = 1
    for factor in text.split("*"):
        count *= int(factor)
    return count


def _problem(wrong: re.Match[str]) -> str:
    if wrong["kind"] == "attributes":
        return "memory is a capacity, not an attribute"
    return f"{wrong['op']} does not compare amounts: capacities need compareTo(quantity(…))"


def _example(wrong: re.Match[str]) -> str:
    """What to write if the meaning of the expression is not clear."""
    example = f'device.capacity["{wrong["domain"]}"].{wrong["name"]}.compareTo(quantity("40Gi")) >= 0'
    return f"{example}, with your amount and its unit"


def _compiles(text: str) -> bool:
    try:
        compile_selector(text, Dialect())
    except CompileError:
        return False
    return True


def _old_forms(text: str, where: str) -> Iterator[LintFinding]:
    bare = _NO_DOMAIN.search(text)
    if bare:
        kind, name = bare.groups()
        yield LintFinding(
            "warning",
            where,
            f'device.{kind}["{name}"] reads the domain {name!r}, not an attribute',
            f'write the domain first: device.{kind}["gpu.nvidia.com"].{name}',
        )
    old = _OLD_ACCESSOR.search(text)
    if old:
        hint = (
            "compare with quantity(…): .compareTo(quantity('40Gi')) >= 0"
            if old[1] == "quantity"
            else f"delete .{old[1]}: values have their type already"
        )
        yield LintFinding("warning", where, f".{old[1]} is how classic DRA read a value", hint)
