"""A unit of an evaluation stands for about the same time in every function, so that no evaluation takes long."""

from __future__ import annotations

import pytest

from extender.api.resource_slices import Device
from extender.cel import BudgetExceeded
from extender.cel.dra import Dialect, check_cost, compile_selector

BLANK = Device("blank")
LONG = f"[{','.join('1' * 900)}]"


def of_text(text: str, test: str) -> str:
    """One text that a function reads a thousand times."""
    return f"['{text}'].all(z, {LONG}.all(a, {test}))"


def nested(test: str) -> str:
    """A test of two variables that runs 27,000 times."""
    ones = f"[{','.join('1' * 30)}]"
    return "".join(f"{ones}.all(v{i}, " for i in range(3)) + f"{test})))"


def of_two(value: str, test: str) -> str:
    """A test of two equal values that runs a thousand times."""
    return f"[{value}].all(a, [{value}].all(b, {LONG}.all(i, {test})))"


def of_long_texts(test: str) -> str:
    """A test of two equal texts of 200,000 characters, which runs a thousand times."""
    text = f"['{'a' * 100}'].map(c, [{','.join(['c'] * 100)}].join()).map(c, [{','.join(['c'] * 20)}].join())"
    return f"{text}.all(a, {text}.all(b, [{{a: 1}}].all(m, lists.range(1000).all(i, {test}))))"


# The API server accepts these; each had an answer, after the milliseconds beside it.
COSTLY = {
    "queries of URLs": of_text("/?" + "a&" * 2000, "isURL(z)"),  # 1,100
    "versions": of_text("1.2.3-" + "a." * 2000 + "a", "isSemver(z)"),  # 260
    "quantities": of_text("0" * 4000 + "1h", "!isQuantity(z)"),  # 300
    "control characters": of_text(r"\x00" * 500, "'%s'.format([[z]]) != ''"),  # 140
    "long numbers": of_text("0" * 4000 + "1", "double(z) == 1.0"),  # 200
    "searches": of_text("a" * 2400, f"z.indexOf('{'a' * 800}ba') < 0"),  # 170
    "searches from the end": of_text("a" * 2400, f"z.lastIndexOf('ab{'a' * 800}') < 0"),  # 170
    "separators": of_text("a" * 2400, f"z.split('{'a' * 800}ba').size() == 1"),  # 180
    "replaced texts": of_text("a" * 2400, f"z.replace('{'a' * 800}ba', '') == z"),  # 320
    "texts of matches": nested("'abc'.find('b') == 'b'"),  # 220
    "addresses": nested("ip('1::1').isGlobalUnicast() && !ip('ff03::1').isLinkLocalMulticast()"),  # 150
    "values of unknown types": nested("dyn(v0) + dyn(v1) > 0 && dyn(v1) + dyn(v2) > 0"),  # 210
    "versions with many parts": of_two(f"semver('1.2.3-{'a.' * 1700}a')", "a.compareTo(b) == 0"),
    "equal versions": of_two(f"semver('1.2.3-{'a.' * 1700}a')", "a == b"),  # 1,300
    "equal URLs": of_two(f"url('/?{'a&' * 1700}')", "a == b"),  # 330
    "joined empty texts": f"cel.bind(w, lists.range(5000).map(i, ''), {nested('w.join().size() == 0')})",
    "long keys": of_text("k" * 2800, "'%s'.format([{z: 1}]) != ''"),  # 470
    "maps of a device": nested("device != null && device.driver != '' && size(device.attributes) == 0"),  # 130
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_function_that_takes_long_costs_much(name: str) -> None:
    """Attack: stall scheduling with one selector whose functions take longer than they cost, such as isURL of a long
    query."""
    check_cost(COSTLY[name], Dialect())
    with pytest.raises(BudgetExceeded):
        compile_selector(COSTLY[name]).match(BLANK, "d")


@pytest.mark.parametrize("test", ["a <= b", "a.startsWith(b)", "a.endsWith(b)", "m[b] == 1", "m[?b].hasValue()"])
def test_a_comparison_of_long_texts_pays_for_their_length(test: str) -> None:
    """Texts of millions of characters were compared for the price of a number."""
    assert compile_selector(of_long_texts("a.size() == b.size()")).match(BLANK, "d", 400_000)
    with pytest.raises(BudgetExceeded):
        compile_selector(of_long_texts(test)).match(BLANK, "d", 400_000)


STAMPS = ",".join(["timestamp('2020-01-01T00:00:00Z')"] * 100)
CALLS = [
    (f"google.protobuf.ListValue{{values: [{STAMPS}]}}.size() > 0", 2000),
    (f"url('/?{'a&' * 2000}').getQuery().size() == 1", 3000),
    (f"'%s'.format([['{'é' * 3000}']]) != ''", 5000),
    (f"'{'é' * 2000}'.lowerAscii() != ''", 3000),
]


@pytest.mark.parametrize(("expression", "units"), CALLS)
def test_a_call_pays_for_its_work(expression: str, units: int) -> None:
    """Such calls once had the price of a call with a short text."""
    with pytest.raises(BudgetExceeded):
        compile_selector(expression).match(BLANK, "d", units)


ORDINARY = [
    nested("v0 <= v1 && v1 <= v2"),
    "['40Gi', '80Gi', '1Ti'].exists(size, quantity(size).compareTo(quantity('80Gi')) == 0)",
    "lists.range(1000).all(i, i in [0, 1, 2] || i > 2)",
    "lists.range(500).map(i, 500 - i).sort().isSorted()",
    "lists.range(64).all(i, string(i) != 'a' && ('gpu-' + string(i)).matches('^gpu-[0-9]+$'))",
]


@pytest.mark.parametrize("expression", ORDINARY)
def test_loops_over_ordinary_functions_have_an_answer(expression: str) -> None:
    assert compile_selector(expression).match(BLANK, "d") is True
