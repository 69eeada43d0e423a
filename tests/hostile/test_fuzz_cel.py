"""Random and damaged CEL on random devices: an answer or one of the errors of CEL, twice the same, and no more work
than the estimate says. `make fuzz` runs these tests for longer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extender.api.resource_slices import Device, SliceDecoder
from extender.cel import BudgetExceeded, CompileError, EvalError, cost
from extender.cel.dra import COST_LIMIT, Dialect, Selector, check_selector, compile_selector, compile_value
from tests.worlds.counted_work import calls_of
from tests.worlds.fuzzing import CASES, CRASHES, OBJECTS, mutated, profile, unfolded

DRIVER = "gpu.example.com"
REAL = [text for text, _ in yaml.safe_load((CASES / "selectors.yaml").read_text())["cases"]]
LISTS = Dialect(list_types=True)
ERRORS = (CompileError, EvalError, BudgetExceeded)
CALLS_PER_UNIT, CALLS = 4, 202  # Python's calls that a unit of cost stands for, and those of an expression of any cost

names = st.sampled_from(["model", "index", "healthy", "driver", "memory", "names", "missing", "a/b", ""])
domains = st.sampled_from([DRIVER, "other.example.com", ""])
TEXTS = [
    "a", "H100", "1", "1Gi", "1.2.3", "10.0.0.1", "10.0.0.0/8", "90m", "é😀", "(a*)*b", "https://x/y?z=1", "+25:00",
    "Asia/Tokyo",
]  # fmt: skip
texts = st.one_of(st.sampled_from(["", *TEXTS]), st.text(max_size=8))
integers = st.one_of(st.integers(-3, 12), st.sampled_from([2**31, 2**63 - 1, -(2**63), 2**64 - 1]))


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """A device with attributes of every kind."""
    scalar = st.one_of(
        integers.filter(lambda n: abs(n) < 2**63).map(lambda n: {"int": n}),
        st.booleans().map(lambda b: {"bool": b}),
        texts.map(lambda t: {"string": t}),
        st.sampled_from(["1.2.3", "580.65.6", "1.0.0-rc.1", "x"]).map(lambda v: {"version": v}),
        st.lists(texts, max_size=3).map(lambda items: {"strings": items}),
        st.lists(st.integers(-3, 3), max_size=3).map(lambda items: {"ints": items}),
    )
    amounts = st.sampled_from(["0", "1", "80Gi", "1500m", "9" * 30]).map(lambda text: {"value": text})
    published = st.sampled_from(["model", "index", "healthy", "driver", "other.example.com/model"])
    attributes = draw(st.dictionaries(published, scalar, max_size=4))
    capacity = draw(st.dictionaries(st.sampled_from(["memory", "other.example.com/memory"]), amounts, max_size=2))
    device = {"name": "d", "attributes": attributes, "capacity": capacity}
    spec = {"driver": DRIVER, "nodeName": "n", "pool": {"name": "n"}, "devices": [device]}
    return SliceDecoder().decode({"metadata": {"name": "s"}, "spec": spec}).devices[0]


def quoted(text: str) -> str:
    return '"' + "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in text) + '"'


def written(template: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """The template with a drawn text for each of its places."""
    return st.tuples(*parts).map(lambda drawn: template.format(*drawn))


def words(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(text.split())


FUNCTIONS = words(
    "size string int uint double bool quantity semver ip cidr url duration timestamp type dyn lists.range optional.of"
    " isQuantity isSemver optional.unwrap"
)
METHODS = words(
    "size sort sum min max distinct reverse isSorted lowerAscii trim asInteger major family getHost getHours flatten"
    " hasValue value sign join first"
)
METHODS_OF_TWO = words(
    "startsWith contains matches find findAll split join indexOf compareTo isGreaterThan add charAt substring"
    " containsIP orValue includes format quote getHours getFullYear"
)


def grown(plain: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """An expression around others; some of them hide their type until the evaluation."""
    inner = st.one_of(plain, written("dyn({})", plain))
    return st.one_of(
        written("({} {} {})", inner, words("&& || == != < >= + - * / % in"), inner),
        written("{}({})", words("! -"), inner),
        written("({} ? {} : {})", inner, inner, inner),
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(written("{}: {}", inner, inner), max_size=2).map(lambda entries: f"{{{', '.join(entries)}}}"),
        written("{}.{}()", inner, METHODS),
        written("{}({})", FUNCTIONS, inner),
        written("{}.{}({})", inner, METHODS_OF_TWO, inner),
        written("{}.{}(x, {})", inner, words("all exists exists_one filter map"), inner),
        written("cel.bind(x, {}, {})", inner, inner),
        written("{}[{}]", inner, inner),
        written("{}({}, {})", words("sets.contains sets.intersects"), inner, inner),
    )


short_names = names.map(lambda name: name.replace("a/b", "ab") or "x")
leaves = st.one_of(
    texts.map(quoted),
    integers.map(str),
    written("{}u", st.integers(0, 9).map(str)),
    words('timestamp("9999-12-31T23:59:59Z") timestamp(0)'),
    words("1.5 0.0 1e308 true false null x b'a' device device.driver device.allowMultipleAllocations"),
    written('device.{}["{}"].{}', words("attributes capacity"), domains, short_names),
    written('device.attributes["{}"].?{}', domains, short_names),
    st.just(f'"model" in device.attributes["{DRIVER}"]'),
)
expressions = st.recursive(leaves, grown, max_leaves=8)
damaged_selectors = (
    st.sampled_from(REAL).flatmap(lambda text: mutated(text.encode())).map(lambda text: text.decode("utf-8", "replace"))
)


@pytest.fixture(scope="module", autouse=True)
def _zones() -> None:
    """The first look-up of a time zone in a process reads the names of all zones."""
    zone = "timestamp('2026-01-01T00:00:00Z').getHours('Asia/Tokyo') == 9"
    assert compile_selector(zone).match(Device("d"), DRIVER) is True


def ending(run: Callable[[], object]) -> tuple[str, str]:
    """The result as text: a value or one of the errors of CEL."""
    try:
        return "value", repr(run())
    except ERRORS as error:
        return type(error).__name__, str(error)


def counted(run: Callable[[], object]) -> tuple[tuple[str, str], int]:
    """The result, and the number of function calls."""
    found = list[tuple[str, str]]()
    calls = calls_of(lambda: found.append(ending(run)), ("call", "c_call"))
    return found[0], calls


def reads(build: Callable[[str, Dialect], Any], text: str, dialect: Dialect) -> object:
    return build(text, dialect).reads


def check(text: str, device: Device) -> None:
    for dialect in (Dialect(), LISTS, Dialect((1, 34), stored=False)):
        for build in (compile_selector, compile_value):
            compiled = ending(partial(reads, build, text, dialect))
            assert compiled == ending(partial(reads, build, text, dialect))
    try:
        selector = compile_value(text, LISTS)
    except CompileError:
        return
    within_its_cost(selector, device)
    answers = [ending(lambda: compile_selector(text, LISTS).match(device, DRIVER)) for _ in range(2)]
    assert answers[0] == answers[1]
    assert "internal error" not in str(answers[0]), text


def within_its_cost(selector: Selector, device: Device) -> None:
    """Two runs have equal results and equal work, and the estimated cost bounds the work.

    The exception is findAll. The API server estimates one search for all matches, and 0 for an empty pattern, but each
    match is a search. The run-time price must bound these: as few units as calls are not enough.
    """
    worst = min(cost(check_selector(selector.expression, LISTS)), COST_LIMIT)
    first, calls = counted(lambda: selector.value(device, DRIVER))
    second, again = counted(lambda: selector.value(device, DRIVER))
    assert first == second
    most = max(calls, again)
    if ".findAll(" in selector.expression and most > CALLS + CALLS_PER_UNIT * worst:
        assert ending(lambda: selector.value(device, DRIVER, most))[0] == "BudgetExceeded", (most, worst)
    else:
        assert most <= CALLS + CALLS_PER_UNIT * worst, (calls, again, worst)


@profile(5)
@given(expressions, devices())
def test_random_expressions(text: str, device: Device) -> None:
    check(text, device)


@profile(5)
@given(damaged_selectors, devices())
def test_damaged_selectors(text: str, device: Device) -> None:
    check(text, device)


def test_former_crashes_stay_fixed() -> None:
    device = SliceDecoder().decode(OBJECTS["resourceslices"]["driver's"]).devices[0]
    for case in CRASHES["cel"]:
        check(unfolded(case["expression"]).decode(), device)
