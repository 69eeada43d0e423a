"""The loader of user-written files reads values as kubectl does, has limits, and reports the place of every fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extender.api.documents import MAX_DEPTH, Positions, documents_of, json_value, one_value, text_of, values_of
from extender.base.berth_errors import WireError
from extender.files import read_file, read_mounted
from extender.policy import PolicyError, load_policy
from extender.runtime.file_reload import reloaded_policy
from tests.worlds.bad_values import FILES, bomb


def values(content: bytes | str) -> list:
    content = content.encode() if isinstance(content, str) else content
    return [value for one in documents_of(text_of(content, "f"), "f") for value in values_of(one)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\n---\nb: 2", [{"a": 1}, {"b": 2}]),
        ("--- {a: 1}\n--- {b: 2}", [{"a": 1}, {"b": 2}]),
        ("%YAML 1.1\n---\na: 1", [{"a": 1}]),
        ("# x\n\n---\na: 1\n...\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("a: |\n  ---\n  x", [{"a": "---\nx"}]),
        ('{"a": [1, 2.5, null, true, "x"]}', [{"a": [1, 2.5, None, True, "x"]}]),
        (
            "[2024-01-01, 12:30:45, 0x1f, 010, 0o10, -0b11, 1_000, .5, 1e3, 1., yes, Off, ~, 'on', ! x]",
            [["2024-01-01", "12:30:45", 31, 8, 8, -3, 1000, 0.5, 1000.0, 1.0, True, False, None, "on", "x"]],
        ),
        ("!!str 1", ["1"]),
        ("!!int '5'", [5]),
        ("1: a\ntrue: b\n1.5: c", [{"1": "a", "true": "b", "1.5": "c"}]),
        ("\ufeffa: 1", [{"a": 1}]),
        (
            "x: &x {a: 1}\ny: {<<: *x, b: 2}\nz: {a: 3, <<: [*x, {c: 4}]}",
            [{"x": {"a": 1}, "y": {"b": 2, "a": 1}, "z": {"a": 3, "c": 4}}],
        ),
        ("&k a: *k", [{"a": "a"}]),
        ("18446744073709551615", [2**64 - 1]),
        ("-9223372036854775808", [-(2**63)]),
        ("# nothing", []),
    ],
)
def test_values(text: str, expected: list) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "f: is empty"),
        (b" \n", "f: is empty"),
        (b"a: \x00", "f: is binary: byte 4 is zero"),
        (b"a: 1\nb: \xff", "is not UTF-8: byte 0xff (line 2, column 4)"),
        (b"a: \x01", "holds '\\x01', which YAML forbids (line 1, column 4)"),
        (b"a: [1,\nb", "is not YAML or JSON"),
        (
            b"---\na: 1\n---\nb:\n\tc",
            "f, document 2: is not YAML or JSON: a tab, but YAML indents with spaces (line 5, column 1)",
        ),
        (b"a: 1\na: 2", "a key occurs twice (line 2, column 1)"),
        (b"a: {[b]: 1}", "a key must be a string (line 1, column 5)"),
        (b"~: 1", "a key must be a string, is null"),
        (b"a: 18446744073709551616", "a number is beyond 64 bits (line 1, column 4)"),
        (b"a: " + b"9" * 5000, "is beyond 64 bits"),
        (b'{"b": 1e30,\n "a": 18446744073709551616}', "a number is beyond 64 bits (line 2, column 7)"),
        (b'{"a": [-9223372036854775809]}', "a number is beyond 64 bits (line 1, column 8)"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number is beyond 64 bits (line 1, column 7)"),
        (b'--- {}\n--- \n{"a": 1e30, "b":\n18446744073709551616}', "document 2: a number is beyond 64 bits (line 4"),
        (b'{"a": {"x": "}{", "y": [1, {"x": 2}]},\n "a" : 1}', "a key occurs twice (line 2, column 2)"),
        (b'{"b": "\\"a\\":", "a": 1, "\\u0061": 2}', "a key occurs twice (line 1, column 25)"),
        (b"a: 1e999", "is beyond 64 bits"),
        (b"a: .inf", ".inf is not a finite number"),
        (b"a: !!python/name:os.system x", "has a tag that is not known (line 1, column 4)"),
        (b"a: &x [*x]", "an alias names no anchor that is complete before it"),
        (b"a: *x", "names no anchor"),
        (b"a: {<<: 1}", "`<<` takes an object"),
        (b"[" * 101, "is nested deeper than 100 levels (line 1, column 101)"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "is nested deeper than 100 levels"),
        (bomb().encode(), "its aliases stand for more values than the text has characters (line 3, column"),
        (b"%TAG !a! x\n" * 20 + b"--- 1", "has more than 16 lines %TAG"),
        (b"a: &a {b: {c: {d: 1}}}\nx: " + b"[" * 99 + b"*a" + b"]" * 99, "is nested deeper"),
    ],
)
def test_faults_have_a_place(content: bytes, words: str) -> None:
    with pytest.raises(WireError) as caught:
        values(content)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_alias_that_is_used_honestly_is_read() -> None:
    honest = "\n".join(["base: &base {a: 1, b: [x, y, z]}", *(f"use{i}: *base" for i in range(20))])
    assert len(one_value(honest, "f", 1000)) == 21

    found = one_value("a: &a {x: 1}\nb: *a", "f", 100)
    found["b"]["x"] = 2
    assert found["a"] == {"x": 1}


def test_one_value_only() -> None:
    two = "holds 2 documents where one is expected"
    for text, words in (("a: 1\n---\nb: 2", two), ("# x", "is empty"), ("a: " + "x" * 100, "is larger than 50 bytes")):
        with pytest.raises(WireError, match=words):
            one_value(text, "f", 50)
    positions: Positions = {}
    one_value("weights:\n  link: 3\nlist: [1, {a: 2}]\n", "f", 100, positions)
    assert positions["weights", "link"] == (2, 3)
    assert positions["list", 1, "a"] == (3, 12)


def test_json_numbers() -> None:
    """A longer integer once became a number with other digits, and one in a string was refused."""
    assert values('{"a": 1e30, "b": "id 99999999999999999999 x"}') == [{"a": 1e30, "b": "id 99999999999999999999 x"}]
    assert values('{"a": 1e30, "b": "\\" 99999999999999999999 "}') == [{"a": 1e30, "b": '" 99999999999999999999 '}]
    text = b'{"a": [18446744073709551615, -9223372036854775808, 1e30, -9.3e18], "b": "99999999999999999999"}'
    assert json_value(text, "body") == values(text)[0]
    assert json_value(text, "body")["a"] == [2**64 - 1, -(2**63), 1e30, -9.3e18]
    with pytest.raises(WireError, match=r"body: a number is beyond 64 bits \(line 1, column 8\)"):
        json_value(b"[1e99, -100000000000000000000]", "body")


def test_a_json_text_has_each_key_once() -> None:
    with pytest.raises(WireError, match=r"body: a key occurs twice \(line 1, column 9\)"):
        json_value(b'{"a": 1,"a": 1}', "body")
    text = b'{"a": "\\\\", "b": {"a": ":", "": []}, "c": [{"a": {}}, {"a": null}], "\\"": "a"}'
    assert json_value(text, "body")["b"] == {"a": ":", "": []}


def test_json_depth() -> None:
    assert json_value(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, "body")
    with pytest.raises(WireError, match="deeper"):
        json_value(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "body")
    with pytest.raises(WireError, match=r"body: is not JSON: .* \(line 2, column"):
        json_value(b'{"a": 1,\n]', "body")


def leaves() -> st.SearchStrategy:
    numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | numbers | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=20,
    )


def depth_of(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth_of, inside), default=0)


BRACKETS = st.text('"\\\\{}[]:a', max_size=6)  # a text may have what the structure has


@given(
    st.recursive(
        BRACKETS | st.just(1),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(BRACKETS, inner, max_size=3),
        max_leaves=12,
    ),
    st.integers(MAX_DEPTH - 4, MAX_DEPTH),
    BRACKETS,
)
def test_json_is_refused_exactly_if_it_is_too_deep(value: object, around: int, key: str) -> None:
    for level in range(around):
        value = [value, key] if level % 2 else {key: value}
    text = orjson.dumps(value)
    if depth_of(value) <= MAX_DEPTH:
        assert json_value(text, "body") == value
    else:
        with pytest.raises(WireError, match="deeper"):
            json_value(text, "body")


@given(leaves())
def test_written_documents_are_read(value: object) -> None:
    text = yaml.safe_dump(value)
    assert values(text.encode()) == [value]
    assert json_value(orjson.dumps(value), "f") == value


@pytest.mark.parametrize("read", [read_file, read_mounted])
def test_files_that_cannot_be_read(read: Callable[[Path, int], object], tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 11)
    for path, words in (
        (tmp_path, "is a folder"),
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path / "long", "is larger than 10 bytes"),
        (Path("a\0b"), "cannot be read"),
    ):
        with pytest.raises(WireError, match=words):
            read(path, 10)


def test_a_policy_names_field_value_and_place_and_is_cut() -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy("candidates: 3\nweights:\n  link: " + "x" * 5000)
    assert str(caught.value).startswith("weights.link: ")
    assert "line 3, column 3)" in str(caught.value)
    assert len(str(caught.value)) < 400
    with pytest.raises(PolicyError) as caught:
        load_policy("\n".join(["candidates: 3", *(f"{'k' * 200}{i}: 1" for i in range(40))]))
    assert len(str(caught.value)) < 2000
    assert "and 35 more" in str(caught.value)
    for content in FILES.values():
        with pytest.raises(PolicyError) as caught:
            load_policy(content)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 2000


async def test_the_last_good_policy_stays_through_everything(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    used: list[Any] = []
    refused: list[Any] = []
    path.write_text("candidates: 3")
    file = reloaded_policy(path, used.append, refused.append, known=b"candidates: 3")
    assert await file.reload() == "", "a policy in force is not used again"
    assert used == [], "a policy in force is not used again"
    for content in FILES.values():
        path.write_bytes(content)
        await file.reload()
    path.unlink()
    assert "does not exist" in await file.reload()
    path.mkdir()
    assert "is a folder" in await file.reload()
    path.rmdir()
    assert used == []
    assert len(refused) > len(FILES) / 2
    path.write_text("candidates: 4")
    assert await file.reload() == ""
    assert [one.candidates for one in used] == [4]


async def test_a_wrong_policy_that_is_put_back_ends_its_problem(tmp_path: Path) -> None:
    """The file has the last valid content again. `reload` must report it as in force, so that the problem ends."""
    path = tmp_path / "policy.yaml"
    used: list[Any] = []
    refused: list[Any] = []
    file = reloaded_policy(path, used.append, refused.append, known=b"candidates: 3")
    for text in ("candidates: x", "candidates: 3"):
        path.write_text(text)
        await file.reload()
    assert len(refused) == 1
    assert [one.candidates for one in used] == [3]
