"""The language on cases of our own, hostile expressions, masks, and a cross-check with cel-python."""

from __future__ import annotations

import contextlib
import sys

import celpy
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.api.resource_slices import Device, SliceDecoder
from extender.cel import UNBOUNDED, BudgetExceeded, CelError, CompileError, EvalError, cost
from extender.cel.dra import Dialect, Masks, check_cost, check_selector, compile_selector
from extender.cel.dra.terms import failed_term, split_terms
from extender.cli.select_command import answer
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice
from tests.worlds.costly_selectors import BLANK, CASES, EXPENSIVE, HOSTILE, LONG_TEXT

WORLD = yaml.safe_load((CASES / "selectors.yaml").read_text())
SLICE = SliceDecoder().decode(gpu_slice("n", carried_machines()["t4-4"]))


@pytest.mark.parametrize(("expression", "expected"), WORLD["cases"])
def test_own_cases(expression: str, expected: object) -> None:
    found = answer({"name": "x", "expression": expression, **WORLD["device"]}, "x")
    assert "internal error of the evaluation" not in (found["runtime_error"] or "")
    kind = "compile" if found["compile_error"] else "error" if found["runtime_error"] else found["match"]
    assert kind == expected, found


def test_compile_errors_have_line_column_and_caret() -> None:
    with pytest.raises(CompileError) as caught:
        compile_selector("true &&\n device.driver == 1")
    assert "ERROR: <input>:2:16: found no matching overload for '_==_' applied to '(string, int)'" in str(caught.value)
    assert str(caught.value).endswith("...............^")


@pytest.mark.parametrize(
    "expression", ["||".join(["a"] * 3400), "||".join(["(1+'a')"] * 1100), "a" * 10000, "a" * 5000 + "(b" + ")" * 5000]
)
def test_a_compile_error_does_not_multiply_the_expression(expression: str) -> None:
    """The error of an expression of 10 KB once had 52 MB: each of its 3,400 issues had the whole line."""
    with pytest.raises(CompileError) as caught:
        compile_selector(expression)
    assert len(str(caught.value)) < 32 * 1024
    assert sum(len(issue.message) for issue in caught.value.issues) < 32 * 1024


def test_a_compile_error_shows_the_place_in_a_long_line() -> None:
    with pytest.raises(CompileError) as caught:
        compile_selector("true || " * 500 + "nothing" + " || true" * 500)
    _, line, mark = str(caught.value).splitlines()
    assert line.index("nothing") == mark.index("^")
    assert len(line) < 250


# d has 10,000 characters.


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_expressions_end_within_their_budget(name: str) -> None:
    """A result is allowed, too. The second run gives the same result as the first, independent of caches."""

    def end() -> object:
        try:
            return compile_selector(EXPENSIVE[name]).match(BLANK, "d")
        except CelError as error:
            return type(error)

    assert end() == end()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_expressions_are_stopped(name: str) -> None:
    """Attack: stall scheduling with functions that cost more than their price on long texts."""
    with pytest.raises((CompileError, BudgetExceeded)):
        compile_selector(HOSTILE[name]).match(BLANK, "d")


class Broken(dict[str, object]):
    """Attributes that cannot be read."""

    @property
    def schema(self) -> object:
        return 1 // 0


def test_a_fault_in_an_evaluation_is_an_error_of_the_expression() -> None:
    """Attack: end the background work for all pods with a selector that fails in an unforeseen way."""
    selector = compile_selector("device.attributes['a.b'].c == 1")
    with pytest.raises(EvalError, match="internal error of the evaluation: ZeroDivisionError"):
        selector.match(Device("d", Broken()), "d")  # type: ignore[arg-type] # stands for a fault


@pytest.mark.parametrize(
    "call", ["int", "uint", "double", "bool", "timestamp", "duration", "url", "ip", "cidr", "quantity", "semver"]
)
def test_an_error_about_a_long_text_is_short(call: str) -> None:
    """int() once wrote 10,000 characters into its error, 128 us each time, and nothing paid for it."""
    with pytest.raises(EvalError) as caught:
        compile_selector(LONG_TEXT % f"{call}(d) == {call}(d)").match(BLANK, "d")
    assert len(str(caught.value)) < 1000


def test_a_tree_too_deep_for_the_stack_is_refused() -> None:
    text, limit = "dyn(" * 249 + "true" + ")" * 249, sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own, which cel-python raises
    try:
        with pytest.raises(CompileError, match="nested too deeply"):
            check_cost(text, Dialect())
        assert split_terms(text) == (text,)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 3000 + "true" + ")" * 3000,
        "[" * 3000,
        "1" + "+1" * 4000 + " > 0",
        "device" + ".a" * 4000 + " == 1",
        "9" * 5000 + " > 0",
        "x" * 11000,
        "'%.99999999f'.format([1.0]) == ''",
        "\x00",
        "'\\ud800' == ''",
    ],
)
def test_monstrous_sources_are_refused(text: str) -> None:
    with pytest.raises(CelError):
        compile_selector(text).match(BLANK, "d")


WORDS = (
    "device . attributes [ ] 'a' ( ) 1 1u 2.5 true null && || ! - + * / % == < in ? : , { } x has all map exists size "
    "matches quantity semver string int optional.of orValue .? [?"
)
alphabet = st.sampled_from([*WORDS.split(), " "])


@settings(max_examples=6 * settings().max_examples)
@given(st.lists(alphabet, max_size=25).map("".join))
def test_no_text_breaks_it(text: str) -> None:
    """Every text gives a bool or a CelError."""
    with contextlib.suppress(CelError):
        assert compile_selector(text).match(BLANK, "d") in (True, False)


numbers = st.integers(-50, 50)
arithmetic = st.recursive(
    numbers.map(lambda n: f"({n})"),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/%"), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
    max_leaves=6,
)
predicates = st.recursive(
    st.tuples(arithmetic, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), arithmetic).map(
        lambda p: f"({' '.join(p)})"
    ),
    lambda inner: st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda p: f"({' '.join(p)})"),
    max_leaves=4,
)
CELPY = celpy.Environment()


@given(predicates)
def test_agrees_with_cel_python_on_the_common_subset(text: str) -> None:
    """Arithmetic and logic: the same value, or an error in both."""
    try:
        mine: object = compile_selector(text).match(BLANK, "d")
    except EvalError:
        mine = "error"
    try:
        theirs: object = bool(CELPY.program(CELPY.compile(text)).evaluate({}))
    except (celpy.evaluation.CELEvalError, ValueError):
        theirs = "error"
    assert mine == theirs


def test_reads_are_known() -> None:
    selector = compile_selector(
        'device.driver == "d" && device.attributes["d"].model == "x" && "y" in device.attributes["e"]'
        ' && device.capacity["d"].memory.isGreaterThan(quantity("1"))'
    )
    assert selector.reads == {"driver", "attributes:d/model", "capacity:d/memory", "attributes:e/y"}


@pytest.mark.parametrize("kind", ["attributes", "capacity"])
@pytest.mark.parametrize("name", ["productName", "memory", "nothing", "a/b", ""])
@pytest.mark.parametrize("domain", ["gpu.nvidia.com", "other"])
def test_the_short_form_of_membership_equals_the_general_form(kind: str, name: str, domain: str) -> None:
    """The short form of '"x" in device.attributes[d]' against the general one."""
    device = SLICE.devices[0]
    short = compile_selector(f'"{name}" in device.{kind}["{domain}"]')
    general = compile_selector(f'device.{kind}["{domain}"].exists(key, key == "{name}")')
    assert short.match(device, "gpu.nvidia.com") == general.match(device, "gpu.nvidia.com")


@pytest.mark.parametrize("test", [' == "H100"', '.contains("H100")', ' . contains("H100")', '\n.contains("H100")'])
def test_a_failed_term_shows_its_observed_value_however_it_is_spaced(test: str) -> None:
    term = f'device.attributes["gpu.nvidia.com"].productName{test}'
    found = failed_term(f'device.driver == "gpu.nvidia.com" && {term}', Dialect(), SLICE.devices[0], "gpu.nvidia.com")
    assert found == f"`{term}` is false (saw 'Tesla T4')"


def test_a_failed_term_with_a_comment_in_it_shows_no_value() -> None:
    term = 'device.attributes["gpu.nvidia.com"].productName. // the model\ncontains("H100")'
    assert failed_term(term, Dialect(), SLICE.devices[0], "gpu.nvidia.com") == f"`{term}` is false"


@pytest.mark.parametrize(
    ("expression", "terms"),
    [
        ("a && (b && c) && d", ("a", "(b && c)", "d")),
        ("a && b || c", ("a && b || c",)),
        ("(a && b)", ("(a && b)",)),
        (" a&&b &&[1].all(x, x > 0 && true) ", ("a", "b", "[1].all(x, x > 0 && true)")),
        ("a && b ? c : d", ("a && b ? c : d",)),
        ("'x && y' == z && a // && b", ("'x && y' == z", "a // && b")),
        ("a &&", ("a &&",)),
    ],
)
def test_the_terms_of_a_selector(expression: str, terms: tuple[str, ...]) -> None:
    assert split_terms(expression) == terms


@pytest.mark.parametrize(
    ("version", "expression", "good"),
    [
        ((1, 34), "[1].sort() == [1]", False),
        ((1, 35), "[1].sort() == [1]", True),
        ((1, 36), "device.allowMultipleAllocations", True),
        ((1, 36), "'a'.includes('a')", False),
    ],
)
def test_new_expressions_may_use_only_the_version_before(version: tuple, expression: str, good: bool) -> None:
    dialect = Dialect(version, stored=False, list_types=False)
    assert compile_selector(expression)
    with contextlib.nullcontext() if good else pytest.raises(CompileError):
        compile_selector(expression, dialect)


def test_cost_is_that_of_the_api_server() -> None:
    assert cost(check_selector('device.attributes["d"].model == "x"')) == 5
    assert cost(check_selector('device.capacity["d"].memory != quantity("1")')) == UNBOUNDED
    assert cost(check_selector("""isSemver(device.attributes["d"].s.find('[0-9.]+'), true)""")) == 25
    with pytest.raises(CompileError, match="too complex"):
        check_cost(HOSTILE["nested loops"], Dialect(stored=False))


def test_masks_follow_slices_and_stay_bounded() -> None:
    """Only a changed slice is evaluated again; the memory of expressions has an end; an exhausted one is an error."""
    decoder, masks = SliceDecoder(), Masks(selector_bytes=7000)
    raw = gpu_slice("n", carried_machines()["t4-4"])
    slice_ = decoder.decode(raw)
    text = 'device.attributes["gpu.nvidia.com"].productName == "Tesla T4"'
    assert masks.of(text, slice_)[:2] == (0b1111, 0)
    assert masks.of(text, slice_) is masks.of(text, slice_)
    raw["spec"]["devices"][1]["attributes"].pop("productName")
    assert masks.of(text, decoder.decode(raw))[:2] == (0b1101, 0b0010)
    assert "no such key: productName" in masks.error(text, decoder.decode(raw).devices[1], "gpu.nvidia.com")
    for other in ("true", "false", "1 == 1"):
        masks.of(other, slice_)
    assert masks.remembered()["selectors"] == 2
    assert masks.of(HOSTILE["quadratic range"], slice_).error == 0b1111
    assert masks.of("device.", slice_).error == 0b1111
