"""A unit of an evaluation stands for about the same time in every function, so that no evaluation takes long."""

from __future__ import annotations

import pytest

from extender.cel import BudgetExceeded
from extender.cel.dra import Dialect, check_cost, compile_selector
from extender.model import Device

BLANK = Device("blank")
LONG = f"[{','.join('1' * 900)}]"


def of_text(text: str, test: str) -> str:
    """One text that a function reads a thousand times."""
    return f"['{text}'].all(z, {LONG}.all(a, {test}))"


def nested(test: str) -> str:
    """A test of two variables that runs 27,000 times."""
    ones = f"[{','.join('1' * 30)}]"
    return "".join(f"{ones}.all(v{i}, " for i in range(3)) + f"{test})))"


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
    "maps of a device": nested("device != null && device.driver != '' && size(device.attributes) == 0"),  # 130
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_function_that_takes_long_costs_much(name: str) -> None:
    check_cost(COSTLY[name], Dialect())
    with pytest.raises(BudgetExceeded):
        compile_selector(COSTLY[name]).match(BLANK, "d")


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
