"""The terms of a selector: the operands of its top-level &&, evaluated in turn to find the term that fails."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from extender.api.quantity import Quantity, readable
from extender.api.resource_slices import Device
from extender.api.semver import Semver
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.base.text_limits import cut, literal
from extender.cel import ast
from extender.cel.cost import Work
from extender.cel.dra.masks import evaluated
from extender.cel.dra.selector import Dialect, Selector, compile_selector, compile_value, terms_of
from extender.cel.errors import CelError, CompileError, Compiling
from extender.cel.parser import parse
from extender.cel.values import type_name, weight

_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"})
# The comparison that a term is to have so that the value which it rejected matches; == for all others.
_OPERATORS = {
    "_<_": "<=", "_<=_": "<=", "isLessThan": "<=", "_>_": ">=", "_>=_": ">=", "isGreaterThan": ">=",
}  # fmt: skip
# The same comparison with its sides exchanged, as far as it is another one.
_MIRRORED = {
    "_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_", "isLessThan": "isGreaterThan",
    "isGreaterThan": "isLessThan",
}  # fmt: skip
_CONSTANT_IN = "constant in"  # instead of the function of a term that looks for a constant in a device's list
_RESULT = "result"  # instead of the function of a term that compares the result of a test, such as with false
_MAX_CONSTANTS = 16  # of a term, to which the values of devices are compared
_SHOWN_WEIGHT = 100  # of a value that is shown; the largest attribute has 65
_TESTS = frozenset(
    {"compareTo", "isGreaterThan", "isLessThan", "startsWith", "endsWith", "contains", "matches", "includes"}
)


def split_terms(expression: str) -> tuple[str, ...]:
    """The terms of an expression that need not compile."""
    try:
        with Compiling(expression):
            return terms_of(expression, parse(expression, Work()))
    except CompileError:
        return (expression.strip(),)


def failed_term(expression: str, dialect: Dialect, device: Device, driver: str) -> str:
    """The first term that is false or fails on a device, with the value that it read; '' if all are true."""
    for term in split_terms(expression):
        try:
            if compile_selector(term, dialect).match(device, driver):
                continue
        except CompileError:
            continue  # some terms compile only as a part of the expression
        except CelError as error:
            return f"`{term}` fails: {error}"
        return f"`{term}` is false" + _observed(term, dialect, device, driver)
    return ""


def _observed(term: str, dialect: Dialect, device: Device, driver: str) -> str:
    try:
        value = observed_value(left_side(term, dialect), device, driver)
    except CompileError:
        return ""
    return f" (saw {value})" if value else ""


def observed_value(left: Selector, device: Device, driver: str, deadline: Deadline = NO_DEADLINE) -> str:
    """The value of the left side of a term on a device, as a user writes it; '' if it has none. Raises
    DeadlineExceeded."""
    try:
        return _shown(evaluated(left.value, device, driver, deadline))
    except CelError:
        return ""


def left_side(term: str, dialect: Dialect, work: Work | None = None) -> Selector:
    """The expression that a term compares or tests: the side of a comparison that reads the device, the list in which
    it looks for a constant, or the target of a method. Raises CompileError if the term has none."""
    work = work or Work()
    return compile_value(_compared(term, work).text, dialect, work)


class _Compared(NamedTuple):
    """What a term compares or tests, as if it were on the left."""

    text: str
    function: str  # that compares or tests it, or _CONSTANT_IN or _RESULT
    others: list[ast.Node]  # what it is compared with


def _compared(term: str, work: Work) -> _Compared:
    """Raises CompileError if the term has no comparison and no test, or if it reads no device."""
    with Compiling(term):
        tree = parse(term, work)
    start, end, function, others = 0, len(term), "", list[ast.Node]()
    if isinstance(tree, ast.Call) and tree.function in _COMPARISONS:
        left, right = tree.args
        function, others = tree.function, [right]
        if _reads_device(left):
            end, tree = tree.offset, left
        else:
            start = tree.offset + len(function.strip("_@"))
            function, tree, others = _CONSTANT_IN if function == "@in" else _mirrored(function), right, [left]
    if isinstance(tree, ast.Call) and tree.target is not None and tree.function in _TESTS:
        target = tree.target
        function = _RESULT if function and tree.function != "compareTo" else function or tree.function
        if _reads_device(target):
            end, others, tree = term.rindex(tree.function, start, tree.offset), tree.args, target
        elif tree.args:
            start, end, function = tree.offset + 1, term.rindex(")", start, end), _mirrored(function)
            others, tree = [target], tree.args[0]
    if not function or not _reads_device(tree):
        raise CompileError(term, [], "no comparison and no test of a device")
    text = term[start:end].strip().removesuffix(".")
    if isinstance(tree, ast.Call) and tree.target is not None and tree.function == "orValue":
        # The default in place of an attribute that a device lacks is no value of the device.
        text = f"{term[start : term.rindex(tree.function, start, tree.offset)].lstrip()}value()"
    return _Compared(text, function, others)


def _reads_device(tree: ast.Node) -> bool:
    return any(isinstance(node, ast.Ident) and node.name == "device" for node in ast.walk(tree))


def _mirrored(function: str) -> str:
    return _MIRRORED.get(function, function)


def constants_of(term: str) -> list[str]:
    """The texts and numbers with which a term compares what it reads, as text; [] for one without a comparison."""
    try:
        others = _compared(term, Work()).others
    except CompileError:
        return []
    return list(islice(chain.from_iterable(map(_constants, others)), _MAX_CONSTANTS))


def _constants(tree: ast.Node) -> Iterator[str]:
    if isinstance(tree, ast.Literal) and isinstance(tree.value, str | int) and not isinstance(tree.value, bool):
        yield str(tree.value)
    elif isinstance(tree, ast.ListLiteral):
        for item in tree.items:
            yield from _constants(item)
    elif isinstance(tree, ast.Call) and tree.function in ("quantity", "semver"):
        yield from _constants(tree.args[0])


def term_for(term: str, dialect: Dialect, device: Device, driver: str, deadline: Deadline = NO_DEADLINE) -> str:
    """The term with the value of this device on its right side, so that it matches the device; '' if there is none.

    Raises DeadlineExceeded.
    """
    try:
        text, function, _ = _compared(term, Work())
        if function in (_CONSTANT_IN, _RESULT, "_!=_"):  # the value of a device is what != excludes
            return ""
        value = evaluated(compile_value(text, dialect).value, device, driver, deadline)
        found = _comparison(text, _OPERATORS.get(function, "=="), value)
        return found if found and evaluated(compile_selector(found, dialect).match, device, driver, deadline) else ""
    except CelError:
        return ""


def _comparison(text: str, operator: str, value: object) -> str:
    """`text operator value` in CEL; '' for a value that CEL has no short literal for."""
    match value:
        case bool():
            return f"{text} == {literal(value)}"
        case int():
            return f"{text} {operator} {value}"
        case str():
            return f"{text} == {literal(value)}" if len(value) < _SHOWN_WEIGHT else ""
        case Quantity():
            # The readable amount is rounded down: `at most` and `equal` need the exact one.
            amount = readable(value.nanos) if operator == ">=" else str(value)
            return f'{text}.compareTo(quantity("{amount}")) {operator} 0'
        case Semver():
            return f'{text}.compareTo(semver("{value.text}")) {operator} 0'
    return ""


def _shown(value: object) -> str:
    """The value in 128 bytes. An expression can make a text or a list of any length."""
    if isinstance(value, str):
        return f"'{cut(value)}'"
    if isinstance(value, Semver):
        return cut(value.text)
    if isinstance(value, Quantity):
        return cut(readable(value.nanos))
    if weight(value) > _SHOWN_WEIGHT:
        return type_name(value)
    if isinstance(value, list | tuple):
        return cut(f"[{', '.join(map(_shown, value))}]")
    return str(value).lower() if isinstance(value, bool) else cut(str(value))
