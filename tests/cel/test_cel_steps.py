"""No evaluation makes more steps than its units pay for, whatever its values are."""

from __future__ import annotations

from contextlib import suppress

import pytest

from extender.api.quantity import parse_quantity
from extender.api.resource_slices import Device
from extender.cel import BudgetExceeded, CelError, EvalError
from extender.cel.dra import Dialect, compile_selector
from extender.cel.dra.terms import failed_term
from tests.worlds.counted_work import calls_of

BLANK = Device("blank")


def steps_of(expression: str) -> int:
    """The calls of an evaluation, of functions in Python and in C."""
    selector = compile_selector(expression)

    def evaluated() -> None:
        with suppress(CelError):
            selector.match(BLANK, "d")

    return calls_of(evaluated, ("call", "c_call"))


def alternating(levels: int, leaf: str) -> str:
    """leaf in nested operators, && and || in turn, none of which decides."""
    for level in range(levels):
        leaf = f"size(device.driver) > 9 || ({leaf})" if level % 2 else f"size(device.driver) < 9 && ({leaf})"
    return leaf


def test_a_failed_term_of_nested_operators_runs_once() -> None:
    """Each level once ran its terms again after an error: 12 levels over a long sum took 4 s, and 40 % of the units."""
    failing = "size(device.driver) + 1 > device.attributes['a'].b"
    assert steps_of(alternating(12, failing)) < 200
    with pytest.raises(EvalError, match="no such key: b"):
        compile_selector(alternating(20, failing)).match(BLANK, "d")


def test_a_variable_without_a_value_is_evaluated_once() -> None:
    """Each use once evaluated it again: with 15 levels of variables one evaluation took 18 s."""
    first = "size(device.driver) + 1 > device.attributes['a'].b"
    bound = "".join(f"cel.bind(v{i}, v{i - 1} || v{i - 1}, " for i in range(1, 20))
    expression = f"cel.bind(v0, {first}, {bound}v19{')' * 20}"
    assert steps_of(expression) < 2000
    with pytest.raises(EvalError, match="no such key: b"):
        compile_selector(expression).match(BLANK, "d")


def test_entries_that_a_map_has_already_are_paid_for() -> None:
    entries = "lists.range(2000).transformMap(k, v, v)"
    again = f"[{entries}].all(m, lists.range(100).all(i, [1, 2].transformMapEntry(j, v, m).size() == 0 || true))"
    with pytest.raises(BudgetExceeded):
        compile_selector(again).match(BLANK, "d", 150_000)


def repeated(test: str) -> str:
    return f"lists.range(500).all(i, {test})"


def test_a_loop_that_ends_early_reads_no_further_entries_of_a_map() -> None:
    """Each of 9,000 entries once cost time before the first iteration: one evaluation took 20 s."""
    expression = f"[lists.range(2000).transformMap(k, v, v)].all(m, {repeated('m.exists(k, true)')})"
    assert steps_of(expression) < 40_000


LONG_KEY = f"['{'k' * 5000}'].all(k, %s)"
LONG_LIST = "[lists.range(5000)].all(k, %s)"


@pytest.mark.parametrize(
    "expression",
    [
        LONG_KEY % "{'a': 1}[k] == 1",
        LONG_KEY % "[1, 2].transformMapEntry(i, v, {k: 1}).size() == 1",
        LONG_LIST % "dyn([1])[dyn(k)] == 1",
        LONG_LIST % "dyn([1])[?dyn(k)].hasValue()",
        LONG_LIST % "dyn(1)[dyn(k)] == 1",
        LONG_LIST % "dyn(google.protobuf.Empty{})[?dyn(k)].hasValue()",
    ],
)
def test_an_error_about_a_key_is_short(expression: str) -> None:
    """A list once stood in the error with all its items, which took 6 s in a loop."""
    with pytest.raises(EvalError) as caught:
        compile_selector(expression).match(BLANK, "d")
    assert len(str(caught.value)) < 1000


def test_sorting_by_long_keys_pays_for_their_length() -> None:
    keys = f"lists.range(100).map(i, '{'k' * 5000}' + string(i))"
    with pytest.raises(BudgetExceeded):
        compile_selector(f"{keys}.sortBy(k, k).size() == 100").match(BLANK, "d", 400_000)
    assert compile_selector("lists.range(100).sortBy(i, string(i)).size() == 100").match(BLANK, "d", 400_000)


@pytest.mark.parametrize(
    ("value", "wanted", "seen"),
    [
        (f"quantity('{'9' * 4200}e400')", "quantity('1')", "8673617379"),
        ("lists.range(5000).map(i, [i, i])", "[[1]]", "list"),
        (f"'{'a' * 5000}'", "'b'", "'aaaaaaaa"),
        (f"semver('1.2.3-{'a.' * 2000}a')", "semver('1.0.0')", "1.2.3-a.a"),
    ],
)
def test_the_value_that_a_term_saw_is_short(value: str, wanted: str, seen: str) -> None:
    """A quantity of 4,600 digits once raised ValueError; the text of a whole list was made before it was cut."""
    term = f"cel.bind(v, {value}, device.driver == 'd' ? v : v) == {wanted}"  # what reads no device has no value
    found = failed_term(term, Dialect(), BLANK, "d").removeprefix(f"`{term}` is false")
    assert found.startswith(f" (saw {seen}")
    assert len(found) < 150


def test_a_quantity_of_any_length_has_a_text() -> None:
    assert str(parse_quantity("9" * 4300 + "e99")) == "9" * 4300 + "0" * 81 + "e18"
