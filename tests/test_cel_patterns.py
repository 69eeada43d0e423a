"""Regular expressions of selectors: the work of RE2 is bounded, also where RE2 refuses a pattern."""

from __future__ import annotations

from typing import Any

import pytest
import re2

from extender import cel
from extender.cel import BudgetExceeded, CompileError, Environment, kubernetes_library, types
from extender.cel.dra import Dialect, Masks, check_cost, compile_selector
from extender.model import Device
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice
from extender.wire import SliceDecoder

BLANK = Device("blank")
# 4,096 patterns of two to five letters after Unicode classes. RE2 refuses the patterns of four times ten classes.
LETTERS = '["a", "b", "c", "d", "e", "f", "g", "h"]'
LOOPS = "".join(f"{LETTERS}.all(v{i}, " for i in range(4)) + '!"".matches(u + v0 + v1 + v2 + v3)' + ")" * 4
CLASSES = r"\\pL\\pN" * 4
REFUSED = f'["{CLASSES}"].all(s, [{"+".join("s" * 10)}].all(u, {LOOPS}))'
ACCEPTED = rf'["\\pL"].all(u, {LOOPS})'


class Compiles:
    """Counts the patterns that RE2 compiles."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patterns: list[str] = []
        self._compile = re2.compile
        monkeypatch.setattr(re2, "compile", self)

    def __call__(self, pattern: str, options: Any = None) -> Any:
        self.patterns.append(pattern)
        assert len(self.patterns) < 1000, "RE2 compiles without end"
        return self._compile(pattern, options)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Compiles:
    return Compiles(monkeypatch)


@pytest.mark.parametrize("expression", [REFUSED, ACCEPTED], ids=["refused", "accepted"])
@pytest.mark.parametrize("call", ["matches", "find"])
def test_a_selector_that_makes_many_patterns_ends_within_its_budget(
    expression: str, call: str, compiles: Compiles
) -> None:
    selector = compile_selector(expression.replace('!"".matches', f'"" == "".{call}') if call == "find" else expression)
    check_cost(expression, Dialect())  # the API server accepts it
    with pytest.raises(BudgetExceeded):
        selector.match(BLANK, "d")
    assert len(compiles.patterns) < 100


def test_a_pattern_costs_the_same_when_it_is_remembered() -> None:
    inputs = {"made": types.STRING}
    environment = Environment(
        kubernetes_library((1, 37), includes=True, all_versions=True), inputs, tuple(inputs), budget=1_000_000
    )
    program = cel.compile('made.matches("^" + made) || made.matches("(" + made)', environment)
    left = []
    for _ in range(2):
        frame: list[Any] = [program.budget, "a pattern of no other test", *program.locals]
        assert program.run(frame) is True
        left.append(frame[0])
    assert left[0] == left[1] < program.budget


@pytest.mark.parametrize(
    "expression",
    [
        '["h100", "gpu", "b200"].exists(name, device.driver.matches("^" + name + "[.].*[a-z]+$"))',
        'device.driver.find("(?i)" + "GPU") == "gpu"',
        'device.driver.findAll("[a-z]" + "+", 2) == ["gpu", "nvidia"]',
        'dyn(device.driver).findAll(dyn("[a-z]+")).size() == 3',
        "matches(dyn(device.driver), dyn('g') + 'pu')",
    ],
)
def test_ordinary_patterns_that_are_no_constants_have_an_answer(expression: str) -> None:
    assert compile_selector(expression).match(BLANK, "gpu.nvidia.com") is True


def test_constant_patterns_are_compiled_once_and_not_for_each_device(compiles: Compiles) -> None:
    slice_ = SliceDecoder().decode(gpu_slice("n", carried_machines()["t4-4"]))
    long = "|".join(f"word{i}" for i in range(100))
    masks = Masks()
    first = masks.of(f'device.driver.find("{long}|gpu").matches("^g") && device.driver.findAll("[gp]u") != []', slice_)
    assert first.match == (1 << len(slice_.devices)) - 1
    assert len(compiles.patterns) <= 2 * 3, "the check and the program"


@pytest.mark.parametrize("repeated", [4, 100], ids=["accepted", "refused"])
def test_a_selector_with_many_costly_constant_patterns_is_refused(repeated: int, compiles: Compiles) -> None:
    expression = " || ".join(rf'"".matches("(\\pL){{{repeated}}}{i}")' for i in range(270))
    with pytest.raises(CompileError, match="take too much work to compile") as caught:
        compile_selector(expression)
    assert len(compiles.patterns) < 50
    assert len(caught.value.issues) < 50


def test_a_selector_with_a_hundred_ordinary_constant_patterns_has_an_answer() -> None:
    expression = " || ".join(rf'device.driver.matches("^gpu[.](host|node)-{i}[0-9]{{1,3}}\\d+.*$")' for i in range(100))
    assert compile_selector(expression).match(BLANK, "gpu.node-99123") is True
