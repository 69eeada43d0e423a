"""`berth lint` finds comparisons of amounts that fail, and `--fix` corrects them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.worlds.lint_worlds import CLEAN, Json, claim, exactly, lint, says


def selecting(expression: str) -> Json:
    return claim(exactly("gpu.nvidia.com", expression))


EXPRESSIONS = [
    ('device.attributes["d.x"]["memory"].compareTo(quantity("40Gi")) >= 0', '{}.compareTo(quantity("40Gi")) >= 0'),
    ("device.attributes['d.x'][ 'memory' ] > 40 * 1073741824", "{}.compareTo(quantity('40Gi')) > 0"),
    ('device.capacity["d.x"]["memory"] >= quantity("40Gi")', '{}.compareTo(quantity("40Gi")) >= 0'),
    ('quantity("40Gi") <= device.attributes["d.x"].memory', '{}.compareTo(quantity("40Gi")) >= 0'),
    ('true && (quantity("40Gi") > device.capacity["d.x"].memory)', 'true && ({}.compareTo(quantity("40Gi")) < 0)'),
    ('"40Gi" == device.attributes["d.x"]["memory"]', '{}.compareTo(quantity("40Gi")) == 0'),
]


@pytest.mark.parametrize(("expression", "fixed"), EXPRESSIONS)
def test_fix_writes_comparisons_of_memory(tmp_path: Path, expression: str, fixed: str) -> None:
    q = '"' if '"' in expression else "'"
    wanted = fixed.format(f"device.capacity[{q}d.x{q}].memory")
    found = lint(tmp_path, selecting(expression), options=("--fix",))
    request = yaml.safe_load(found.stdout)["spec"]["devices"]["requests"][0]
    assert request["exactly"]["selectors"] == [{"cel": {"expression": wanted}}]
    assert found.stderr.endswith(f"correction: write {wanted}\n1 finding, 1 fixed, 0 left\n"), found.stderr


def test_cores_have_no_unit(tmp_path: Path) -> None:
    found = lint(tmp_path, selecting('device.capacity["dra.cpu"].cpu >= 4'), options=("--fix",))
    assert 'correction: write device.capacity["dra.cpu"].cpu.compareTo(quantity("4")) >= 0\n' in found.stderr
    found = lint(tmp_path, selecting('device.capacity["dra.cpu"].cpu >= "x"'))
    assert 'cpu.compareTo(quantity("4")) >= 0, with your amount' in found.stdout


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ('quantity("40Gi") <= device.capacity["d.x"].memory', "<= does not compare amounts"),
        ('device.capacity["d.x"].a >= device.capacity["d.x"].b', "correction: compare amounts with compareTo"),
        (
            'device.capacity["d.x"].memory.compareTo(quantity("40GB")) >= 0',
            "error: '40GB' is no quantity: write an amount as 40Gi (binary) or 40G (decimal)",
        ),
        (
            "device.capacity['d.x'].memory.compareTo(quantity('40GB')) >= 0",
            "error: '40GB' is no quantity: write an amount as 40Gi (binary) or 40G (decimal)",
        ),
    ],
)
def test_words_about_amounts(tmp_path: Path, expression: str, words: str) -> None:
    found = lint(tmp_path, selecting(expression))
    assert says(found.stdout, words)
    assert (found.code, found.stdout.splitlines()[-1]) == (1, "1 finding")


MEMORY_OF_ATTRIBUTES = [
    'device.attributes["d.x"].?memory.orValue(0) > 40',
    'device.attributes["d.x"][?"memory"].hasValue()',
    'device.attributes[?"d.x"].?memory.orValue(0) > 40',
    'cel.bind(d, device.attributes["d.x"], d.memory.isGreaterThan(quantity("40Gi")))',
    'cel.bind(m, device.attributes["d.x"].memory, m > 40)',
    '"memory" in device.attributes["d.x"]',
]


@pytest.mark.parametrize("expression", MEMORY_OF_ATTRIBUTES)
def test_memory_is_no_attribute_however_it_is_read(tmp_path: Path, expression: str) -> None:
    found = lint(tmp_path, selecting(expression))
    assert (found.code, found.stdout.splitlines()[-1]) == (1, "1 finding")
    assert "memory is a capacity, not an attribute" in found.stdout
    assert 'correction: write device.capacity["d.x"].memory.compareTo(quantity("40Gi")) >= 0' in found.stdout


@pytest.mark.parametrize(
    "expression",
    [
        'quantity("40Gi") == device.capacity["d.x"].memory',
        'device.capacity["d.x"]["memory"].compareTo(quantity("40Gi")) >= 0',
        'quantity("1Gi").add(device.capacity["d.x"].memory).compareTo(quantity("40Gi")) >= 0',
        'isQuantity("40GB")',
        'cel.bind(c, device.capacity["d.x"], c.memory.compareTo(quantity("40Gi")) >= 0)',
        'device.capacity["d.x"].?memory.hasValue() && device.attributes["d.x"].exists(name, name == "uuid")',
        'device.attributes["d.x"].?model.orValue("") == "memory"',
    ],
)
def test_comparisons_that_are_right(tmp_path: Path, expression: str) -> None:
    assert lint(tmp_path, selecting(expression)).stdout == CLEAN
