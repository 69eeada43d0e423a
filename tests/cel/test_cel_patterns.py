"""Regular expressions of selectors: the work of RE2 is bounded, also where RE2 refuses a pattern."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from bisect import bisect_left
from typing import Any

import pytest
import re2

from extender.api.resource_slices import Device, SliceDecoder
from extender.cel import BudgetExceeded, CompileError
from extender.cel.dra import Dialect, Masks, check_cost, compile_selector
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice

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
        self.programs: list[Any] = []
        self._compile = re2.compile
        monkeypatch.setattr(re2, "compile", self)

    def __call__(self, pattern: str, options: Any = None) -> Any:
        self.patterns.append(pattern)
        assert len(self.patterns) < 1000, "RE2 compiles without end"
        self.programs.append(self._compile(pattern, options))
        return self.programs[-1]


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Compiles:
    return Compiles(monkeypatch)


@pytest.mark.parametrize("expression", [REFUSED, ACCEPTED], ids=["refused", "accepted"])
@pytest.mark.parametrize("call", ["matches", "find"])
def test_a_selector_that_makes_many_patterns_ends_within_its_budget(
    expression: str, call: str, compiles: Compiles
) -> None:
    """Attack: stall scheduling with one selector whose regular expressions are costly to compile."""
    selector = compile_selector(expression.replace('!"".matches', f'"" == "".{call}') if call == "find" else expression)
    check_cost(expression, Dialect())  # the API server accepts it
    with pytest.raises(BudgetExceeded):
        selector.match(BLANK, "d")
    assert len(compiles.patterns) < 100


def test_a_pattern_costs_the_same_when_it_is_remembered() -> None:
    selector = compile_selector(
        'device.driver.matches("(" + device.driver) || device.driver.matches("^" + device.driver)'
    )

    def suffices(driver: str, units: int) -> bool:
        try:
            return selector.match(BLANK, driver, units)
        except BudgetExceeded:
            return False

    least = bisect_left(range(100_000), True, key=lambda units: suffices("a pattern of no other test", units))
    assert 0 < least < 100_000
    assert suffices("b pattern of no other test", least)
    assert not suffices("c pattern of no other test", least - 1)


def test_constant_patterns_are_compiled_once_and_not_for_each_device(compiles: Compiles) -> None:
    slice_ = SliceDecoder().decode(gpu_slice("n", carried_machines()["t4-4"]))
    long = "|".join(f"word{i}" for i in range(100))
    masks = Masks()
    first = masks.of(f'device.driver.find("{long}|gpu").matches("^g") && device.driver.findAll("[gp]u") != []', slice_)
    assert first.match == (1 << len(slice_.devices)) - 1
    assert len(compiles.patterns) <= 2 * 3, "the check and the program"


@pytest.mark.parametrize("repeated", [4, 100], ids=["accepted", "refused"])
def test_a_selector_with_many_costly_constant_patterns_is_refused(repeated: int, compiles: Compiles) -> None:
    """Attack: stall scheduling with one selector whose regular expressions are costly to compile."""
    expression = " || ".join(rf'"".matches("(\\pL){{{repeated}}}{i}")' for i in range(270))
    with pytest.raises(CompileError, match="take too much work to compile") as caught:
        compile_selector(expression)
    assert len(compiles.patterns) < 50
    assert len(caught.value.issues) < 50


def test_a_selector_with_a_hundred_ordinary_constant_patterns_has_an_answer() -> None:
    expression = " || ".join(rf'device.driver.matches("^gpu[.](host|node)-{i}[0-9]{{1,3}}\\d+.*$")' for i in range(100))
    assert compile_selector(expression).match(BLANK, "gpu.node-99123") is True


def test_a_search_keeps_no_groups(compiles: Compiles) -> None:
    """With 400 groups a search once took twelve times as long as its price says: 0.6 s for one selector."""
    assert compile_selector('"xxaab".find("x(a+)(b)") == "xaab"').match(BLANK, "d") is True
    assert [program.groups for program in compiles.programs] == [0] * len(compiles.programs)


def test_each_match_of_find_all_is_paid() -> None:
    """Each search may read the whole text: 40,000 characters once took 1.4 s on one device."""
    loops = "".join(f"[{'+'.join(text * 10)}].all({name}, " for text, name in ("ab", "bc", "cd"))
    expression = f"""["{"x" * 40}"].all(a, {loops}d.findAll("x.*z|x").size() == 0)))) """
    check_cost(expression, Dialect())  # the API server accepts it
    with pytest.raises(BudgetExceeded):
        compile_selector(expression).match(BLANK, "d")
    some = compile_selector('"abcab".findAll("a|b", 3) == ["a", "b", "a"] && "ab".findAll("a", 0) == []')
    assert some.match(BLANK, "d") is True


MEMORY = """
import random
from extender.cel.library.text import bytes_of, compiled

def taken():
    (line,) = [line for line in open("/proc/self/smaps_rollup") if line.startswith("Private_Dirty")]
    return 1024 * int(line.split()[1])

rng, count = random.Random(1), 12
texts = ["".join(rng.choice("ab") for _ in range(2000)), "".join(map(chr, range(0x100, 0x800))), "ab" * 200]
hostile = ["gpu", "(a|b)*a(a|b){12}", "a.{12}b", "a{1,200}b", ".*" * 900, r"\\pL*" * 90, r"[\\pL\\pN]*" * 40]
hostile += [r"\\pL" * 10]
hostile += ["()" * 900, "[a-z]*" * 1500, "(?i)k" * 300, "[[:alpha:]]*" * 700, r"\\d+" * 50, "a{1,40}" * 20]
for pattern in hostile:
    programs, before = [], taken()
    for number in range(count):
        programs.append(compiled(pattern + str(number), lambda _: None))
        for text in texts:
            programs[-1].search(text)
    used, counted = taken() - before, sum(map(bytes_of, programs))
    assert used <= counted, (pattern[:20], used, counted)
"""


def test_regular_expressions_take_no_more_memory_than_is_counted() -> None:
    """Their programs and the states of their searches were not counted: 105 KB for a pattern of eight characters."""
    subprocess.run([sys.executable, "-c", MEMORY], check=True)


def test_selectors_with_many_patterns_leave_the_memory_of_selectors_bounded() -> None:
    """Attack: fill memory with regular expressions."""
    masks, slice_ = Masks(selector_bytes=2 << 20), SliceDecoder().decode(gpu_slice("n", carried_machines()["t4-4"]))
    for number in range(30):
        masks.of(" || ".join(f'"".matches("a.{{12}}b{number}{i}")' for i in range(10)), slice_)
    assert masks.remembered()["selectors"] == (2 << 20) // (10 * (64 << 10) + 20_000)
    masks.of(" || ".join(f'"".matches("a.{{12}}b{i}")' for i in range(100)), slice_)
    assert masks.remembered()["selectors"] < 4, "larger than the bound: it is not kept"


def test_a_pattern_remembers_no_long_texts() -> None:
    """64 texts of 90 KB were once remembered for each pattern."""
    uuid = 'device.attributes["gpu.nvidia.com"].uuid'
    made = f"[{'+'.join('s' * 10)}].all(t, [{'+'.join('t' * 10)}].all(u, !u.matches('zq')))"
    selector = compile_selector(f"""[{uuid} + "{"x" * 900}"].all(s, {made})""")
    slices = [SliceDecoder().decode(gpu_slice(f"n{i}", carried_machines()["t4-4"])) for i in range(10)]
    tracemalloc.start()
    for slice_ in slices:
        for device in slice_.devices:
            assert selector.match(device, "gpu.nvidia.com") is True
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000
