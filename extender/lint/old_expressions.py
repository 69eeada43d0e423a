"""Finds and corrects mistakes in selectors: wrong domains, memory read as an attribute, amounts compared as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from extender.api.fields import Json, inner, string
from extender.api.quantity import parse_quantity
from extender.api_schema import LintFinding
from extender.base.text_limits import shown
from extender.cel import CompileError
from extender.cel.dra import Dialect, compile_selector

# A name without a dot may be a domain: ["x"].y reads x/y. As a value, it is an attribute that lacks its domain.
_COMPARED = r"(?:==|!=|<=?|>=?)"
_NO_DOMAIN = re.compile(
    rf"(?P<before>{_COMPARED}\s*)?device\.(?P<kind>attributes|capacity)\[\s*[\"'](?P<name>[^\"'./]+)[\"']\s*\]"
    rf"(?P<after>\s*{_COMPARED}|\s+in\b|\s*\.(?:compareTo|is\w+Than|startsWith|endsWith|contains|matches|lowerAscii)\("
    r"|\s*\.(?:(?P=name)\.)?(?:quantity|string|bool|int)\b(?!\()|(?P<field>\s*[.\[]))?"
)
_FIELD = re.compile(
    r"\bdevice\.(?!(?:driver|attributes|capacity|allowMultipleAllocations)\b)(?P<name>[A-Za-z]\w*)"
    r"(?:\s*(?P<op>>=|<=|==|!=|>|<)\s*(?P<amount>\d+[KMGT]i)\b)?"
)
# After ["domain"].name, ["domain"]["name"], or ["name"]; ["domain"].version reads an attribute.
_OLD_ACCESSOR = re.compile(
    r"(?:(?:\]\s*\.\w+|\]\s*\[[^\]]*\])\s*\.(?=(?:quantity|string|version|bool|int)\b)"
    r"|\[\s*[\"'](?:[^\"'.]+|[^\"']+/[^\"']+)[\"']\s*\]\s*\.(?!version))(quantity|string|version|bool|int)\b(?!\()"
)
_QUALIFIED = re.compile(
    r"device\.(?P<kind>attributes|capacity)\[\s*(?P<q>[\"'])(?P<domain>[^\"'/]+)/(?P<name>\w+)(?P=q)\s*\]"
    r"(?:\.(?:quantity|string|version|bool|int)\b(?!\())?"
)
_DEVICE = (
    r"device\.(?P<kind>attributes|capacity)\[\s*(?P<q>[\"'])(?P<domain>[^\"']+)(?P=q)\s*\]"
    r"(?:\.(?P<name>\w+)|\[\s*(?P<k>[\"'])(?P<key>\w+)(?P=k)\s*\])"
)
_OPERATOR = r"\s*(?P<op>>=|<=|==|!=|>|<)\s*"
_AMOUNT = (
    r"(?P<amount>quantity\(\s*(?P<a>[\"'])(?P<quantity>[^\"']*)(?P=a)\s*\)|(?P<t>[\"'])(?P<text>[^\"']*)(?P=t)|"
    r"(?P<unit>\d+\.[KMGT]iB)\b|(?P<number>\d+(?:\s*\*\s*\d+)*))"
)
_READ = re.compile(rf"{_DEVICE}(?:{_OPERATOR}{_AMOUNT}(?!\s*[\w.*/+%(-]))?")
_TURNED = re.compile(rf"(?P<before>(?:^|[(&|?:,])\s*){_AMOUNT}{_OPERATOR}(?P<read>{_DEVICE})(?!\s*[\w.*/+%(\[-])")
_MIRRORED = {">=": "<=", "<=": ">=", ">": "<", "<": ">"}
_MEMORY = re.compile(r"(?:\.\??|\[\??\s*[\"'])memory\b|[\"']memory[\"']\s+in\b")
_CAPACITY = re.compile(r"device\.capacity\[[^\]]*\]\s*(?:\.\??\w+|\[[^\]]*\])?")
_DRIVER = re.compile(r"\bdevice\.driver\s*==\s*[\"']([^\"']+)[\"']")
_LITERAL = re.compile(r"\bquantity\(\s*([\"'])([^\"'\\]*)\1\s*\)")
_ATTRIBUTES = re.compile(r"device\.attributes\[\??\s*[\"']([^\"']+)[\"']")
_HAS_UNIT = re.compile(r"memory|storage|bandwidth|bytes|size", re.IGNORECASE)  # in names of amounts
_NO_ATTRIBUTE = "memory is a capacity, not an attribute"
_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"))


def corrected_expression(selector: Json, path: str, published: frozenset[str]) -> Iterator[LintFinding]:
    """Correct the CEL expression of a selector in place, and yield the findings about it. Raises WireError.

    `published` has the attributes, with domain, that slices in the same files publish.
    """
    yield from _placed(selector, path)
    cel = inner(selector, "cel", path)
    where = f"{path}.cel.expression"
    text = string(cel, "expression", f"{path}.cel")
    qualified = _QUALIFIED.search(text)
    if qualified:
        better = _QUALIFIED.sub(_read, text)
        fixed = _compiles(better)
        domain = f"{qualified['domain']}/{qualified['name']}"
        yield LintFinding("error", where, f"no device has the domain {domain!r}", f"write {_read(qualified)}", fixed)
        if fixed:
            cel["expression"] = text = better
    straight = _TURNED.sub(lambda found: _turned(found, published), text)
    wrong = [found for found in _READ.finditer(straight) if _is_wrong(found, published)]
    if wrong:
        better = _READ.sub(lambda found: _amount(found) if _is_wrong(found, published) else found[0], straight)
        fixed = all(map(_is_clear, wrong)) and _compiles(better)
        advice = " ".join(better.split()) if fixed else _example(wrong[0]["domain"], _name(wrong[0]))
        yield LintFinding("error", where, _problem(wrong[0], text), f"write {advice}", fixed)
        if fixed:
            cel["expression"] = text = better
    elif domain := _domain_of_memory(text, published):
        yield LintFinding("error", where, _NO_ATTRIBUTE, f"write {_example(domain, 'memory')}")
    yield from _old_forms(text, where)
    yield from _literals(text, where)


def _placed(selector: Json, path: str) -> Iterator[LintFinding]:
    """Move an expression that is beside `cel`, or in its place, to cel.expression."""
    name = "cel" if isinstance(selector.get("cel"), str) else "expression"
    if isinstance(selector.get(name), str) and (name == "cel" or not selector.get("cel")):
        selector["cel"] = {"expression": selector.pop(name)}
        correction = "write cel: {expression: …}" if name == "cel" else "indent it below cel"
        yield LintFinding("error", f"{path}.{name}", "the expression must be in cel.expression", correction, True)


def _read(qualified: re.Match[str]) -> str:
    q = qualified["q"]
    return f"device.{qualified['kind']}[{q}{qualified['domain']}{q}].{qualified['name']}"


def _turned(found: re.Match[str], published: frozenset[str]) -> str:
    """A comparison with the amount on the left, with the amount on the right if the comparison is wrong."""
    operator = _MIRRORED.get(found["op"], found["op"])
    read = _READ.match(f"{found['read']} {operator} {found['amount']}")
    return f"{found['before']}{read[0]}" if read is not None and _is_wrong(read, published) else found[0]


def _is_wrong(found: re.Match[str], published: frozenset[str]) -> bool:
    if found["kind"] == "attributes":
        return _name(found) == "memory" and f"{found['domain']}/memory" not in published
    return found["op"] is not None and not _is_equality(found)


def _name(found: re.Match[str]) -> str:
    return found["name"] or found["key"]


def _is_equality(found: re.Match[str]) -> bool:
    return found["quantity"] is not None and found["op"] in ("==", "!=")


def _is_clear(found: re.Match[str]) -> bool:
    """Whether the amount is one, with a unit or in bytes. No GPU has less than 1 Mi: such a number lacks its unit.

    Cores and the like have no unit.
    """
    if found["op"] is None:
        return True
    if found["number"] is not None:
        return not _HAS_UNIT.search(_name(found)) or _product(found["number"]) >= 1 << 20
    try:
        parse_quantity(_quantity(found))
    except ValueError:
        return False
    return True


def _amount(found: re.Match[str]) -> str:
    """The comparison of an amount as CEL allows it."""
    q = found["q"]
    read = f"device.capacity[{q}{found['domain']}{q}].{_name(found)}"
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
    return prod(map(int, text.split("*")))


def _problem(wrong: re.Match[str], text: str) -> str:
    if wrong["kind"] == "attributes":
        return _NO_ATTRIBUTE
    operator = wrong["op"] if wrong["op"] in text else _MIRRORED[wrong["op"]]
    return f"{operator} does not compare amounts: capacities need compareTo(quantity(…))"


def _example(domain: str, name: str) -> str:
    """The advice to the user if the meaning of the expression is not clear."""
    amount = "40Gi" if _HAS_UNIT.search(name) else "4"
    example = f'device.capacity["{domain}"].{name}.compareTo(quantity("{amount}")) >= 0'
    return f"{example}, with your amount and its unit"


def _domain_of_memory(text: str, published: frozenset[str]) -> str:
    """The domain of which an expression reads memory as an attribute, such as by `?.` or a variable; '' if none."""
    if not _MEMORY.search(_CAPACITY.sub("", text)):
        return ""
    try:
        reads = compile_selector(text, Dialect()).reads
    except CompileError:
        return ""
    if any(read.startswith("capacity:") and read.endswith("*") for read in reads):
        return ""  # a variable may be of the capacities
    for kind, _, path in (read.partition(":") for read in sorted(reads)):
        domain, _, name = path.rpartition("/")
        if kind == "attributes" and name in ("memory", "*") and f"{domain}/memory" not in published:
            return domain or _first(_ATTRIBUTES, text)
    return ""


def _first(pattern: re.Pattern[str], text: str) -> str:
    """The driver or domain that the text names first; NVIDIA's if it names none."""
    found = pattern.search(text)
    return found[1] if found is not None else "gpu.nvidia.com"


def _literals(text: str, where: str) -> Iterator[LintFinding]:
    for found in _LITERAL.finditer(text):
        try:
            parse_quantity(found[2])
        except ValueError:
            problem = f"{found[0]} fails on every device: {shown(found[2])} is no quantity"
            yield LintFinding("error", where, problem, "write an amount as 40Gi (binary) or 40G (decimal)")


def _compiles(text: str) -> bool:
    try:
        compile_selector(text, Dialect())
    except CompileError:
        return False
    return True


def _old_forms(text: str, where: str) -> Iterator[LintFinding]:
    field = _FIELD.search(text)
    if field:
        better = f'attributes["gpu.nvidia.com"].{field["name"]}'
        if field["name"] == "memory":
            amount = f'quantity("{field["amount"] or "40Gi"}")'
            better = f'capacity["gpu.nvidia.com"].memory.compareTo({amount}) {field["op"] or ">="} 0'
        problem = f"a device has no field {field['name']!r}"
        yield LintFinding("error", where, problem, f"write device.{better}, with your driver")
    compiles = _compiles(text)
    for bare in _NO_DOMAIN.finditer(text):
        is_value = bare["before"] or (bare["after"] and not bare["field"])
        if not is_value and (compiles or bare["field"]):
            continue
        kind, name = bare["kind"], bare["name"]
        problem = f'device.{kind}["{name}"] reads the domain {name!r}, not an attribute'
        domain, kind = _first(_DRIVER, text), "capacity" if name == "memory" else kind
        advice = f'write the domain first: device.{kind}["{domain}"].{name}'
        yield LintFinding("warning" if compiles else "error", where, problem, advice)
        break
    old = _OLD_ACCESSOR.search(text)
    if old:
        advice = f"delete .{old[1]}: values have their type already"
        if old[1] == "quantity":
            advice = "compare with quantity(…): .compareTo(quantity('40Gi')) >= 0"
        yield LintFinding("warning", where, f".{old[1]} is how classic DRA read a value", advice)
