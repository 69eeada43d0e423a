"""Reading of YAML and JSON that users write. The size and depth of a text are limited; errors give line and column.

All commands, the policy and the HTTP endpoints for users use this module. Requests of kube-scheduler and watch events
do not. No message quotes the content, because a user may name a wrong file, which may hold secrets.

Values are those of JSON: objects with string keys, lists, strings, 64-bit integers, finite numbers, booleans and null.
A plain YAML scalar has the value that kubectl gives it: dates and sexagesimal numbers are strings. `values_of` has
orjson parse a JSON text, and checks the limits afterwards; all other texts are read from the events of libyaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson
import yaml

from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line

MAX_YAML = 8 * 1024 * 1024  # characters of YAML text; parsing this much takes some seconds
MAX_JSON = 256 * 1024 * 1024  # bytes of JSON text: `berth snapshot` of a large cluster
MAX_DEPTH = 100  # nested objects and lists; a manifest has about 20 levels
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 64) - 1
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEYS = re.compile(rf"{_STRING}(\s*:)?")
_KEYS_AND_BRACES = re.compile(rf"({_STRING})(\s*:)?|[{{}}]")
_STRINGS_AND_LONG_INTEGERS = re.compile(rf"{_STRING}|(?<![\w.+-])-?[0-9]{{19,}}(?![\w.])", re.ASCII)
_TEXTS = re.compile(rb'"[^"]*"')
_AS_BRACES = bytes.maketrans(b"[]", b"{}")
_NO_BRACKETS = bytes(set(range(256)) - set(b'"{}[]'))
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = b"0" * 19  # a shorter one has at most 64 bits
_MAX_DIGITS = 20  # of a decimal integer of 64 bits, with its sign
Path = tuple[str | int, ...]
Positions = dict[Path, tuple[int, int]]  # (line, column) of fields and items, counted from 1
# libyaml gives the same events and is many times faster.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SEPARATOR = re.compile(r"^(?=---(?:[ \t\r]|$))", re.MULTILINE)
_PREAMBLE = re.compile(r"(?:(?:[%#].*|[ \t]*)(?:\r?\n|\Z))*\Z")  # directives, comments and empty lines
_UNPRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BOOLEANS = {
    form: value
    for words, value in ((("true", "yes", "on"), True), (("false", "no", "off"), False))
    for word in words
    for form in (word, word.capitalize(), word.upper())
}
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*|0)\Z", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_NOT_FINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_SAFE_DIGITS = 19  # a decimal integer with fewer digits fits into 64 bits
_MAX_TAG_LINES = 16
_MAX_INTEGER_TEXT = 80  # characters: enough for 64 binary digits with sign and prefix; int() rejects thousands


class Document(NamedTuple):
    """One document of a YAML stream or JSON text. `where` names it; `line` is the number of lines before it."""

    where: str
    text: str
    line: int = 0


def text_of(content: bytes, where: str) -> str:
    """Decode the content of a file or request body. Raises WireError if it is empty, binary or not UTF-8."""
    if b"\0" in content:
        raise WireError(where, f"is binary: byte {content.index(0) + 1} is zero")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        raise _fault(where, f"is not UTF-8: byte 0x{content[error.start]:02x}", *_position(before)) from error
    if not text.strip():
        raise WireError(where, "is empty")
    return text


def documents_of(text: str, where: str) -> list[Document]:
    """Split a YAML stream or JSON text into documents without parsing them. Raises WireError if it is too large."""
    if not _SEPARATOR.search(text):
        return [Document(where, text)]
    _check_size(text, where)
    pieces = _SEPARATOR.split(text)
    if _PREAMBLE.match(pieces[0]):
        pieces[:2] = ["".join(pieces[:2])]
    found: list[Document] = []
    line = 0
    for piece in pieces:
        found.append(Document(f"{where}, document {len(found) + 1}", piece, line))
        line += piece.count("\n")
    return found


def values_of(document: Document) -> list[Any]:
    """Parse a document: one value, or none if it has only comments. Raises WireError."""
    start = document.text.lstrip()[:1]
    if start and start in "{[":
        try:
            found = orjson.loads(document.text)
        except orjson.JSONDecodeError as error:
            if len(document.text) > MAX_YAML:
                raise _not_json(error, document.where) from error
        else:
            _check_json(found, document.text, document.where)
            return [found]
    _check_size(document.text, document.where)
    return _Reader(document).values()


def one_value(content: bytes | str, where: str, most: int, positions: Positions | None = None) -> Any:
    """Parse a text that has exactly one document and at most `most` bytes. Fills `positions`. Raises WireError."""
    content = content.encode("utf-8", "replace") if isinstance(content, str) else content
    if len(content) > most:
        raise WireError(where, f"is larger than {most} bytes")
    values: list[Any] = []
    for document in documents_of(text_of(content, where), where):
        values += _Reader(document, positions).values()
    if len(values) != 1:
        raise WireError(where, f"holds {len(values)} documents where one is expected" if values else "is empty")
    return values[0]


def json_value(content: bytes, where: str) -> Any:
    """Parse a JSON text. Raises WireError."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise _not_json(error, where) from error
    _check_json(found, content.decode(), where)
    return found


def _check_json(value: Any, text: str, where: str) -> None:
    """Raises WireError if `value`, parsed from `text`, breaks a limit.

    Of a key that occurs twice in an object, orjson takes the last. That is found in texts of at most MAX_YAML
    characters: longer ones are written by programs, and the search would take seconds.
    """
    content = text.encode()
    _check_depth(content, where)
    if _LONG_INTEGER in content.translate(_AS_ZEROS):
        _check_integers(text, where)
    if len(text) <= MAX_YAML and _count_keys(value) != sum(map(bool, _KEYS.findall(text))):
        raise _fault(where, "a key occurs twice", *_position(text[: _second_key(text)]))


def _not_json(error: orjson.JSONDecodeError, where: str) -> WireError:
    return _fault(where, f"is not JSON: {one_line(error.msg)}", error.lineno, error.colno)


def _fault(where: str, problem: str, line: int, column: int) -> WireError:
    return WireError(where, f"{problem} (line {line}, column {column})")


def _position(before: str) -> tuple[int, int]:
    """(line, column), counted from 1, of the character after the text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _check_depth(content: bytes, where: str) -> None:
    """Raises WireError if JSON is nested too deep. Each of these steps runs in C: a walk over the values takes longer.

    Without strings and all else, the brackets are left. Each pass removes the innermost ones.
    """
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_AS_BRACES, _NO_BRACKETS)
    brackets = _TEXTS.sub(b"", plain.replace(b'""', b""))
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        brackets = brackets.replace(b"{}", b"")
    if brackets:
        raise WireError(where, f"is nested deeper than {MAX_DEPTH} levels")


def _count_keys(value: Any) -> int:
    """The keys of all objects in a value, whose depth is limited."""
    if type(value) is dict:
        return len(value) + sum(map(_count_keys, value.values()))
    return sum(map(_count_keys, value)) if type(value) is list else 0


def _check_integers(text: str, where: str) -> None:
    """Raises WireError for an integer beyond 64 bits in a JSON text; 1e30 is no integer."""
    for match in _STRINGS_AND_LONG_INTEGERS.finditer(text):
        digits = match[0]
        if digits[0] == '"':
            continue
        if len(digits) > _MAX_DIGITS or not _MIN_INTEGER <= int(digits) <= _MAX_INTEGER:
            raise _fault(where, "a number is beyond 64 bits", *_position(text[: match.start()]))


def _second_key(text: str) -> int:
    """Where the first key begins that its object has already."""
    objects: list[set[str]] = []
    for match in _KEYS_AND_BRACES.finditer(text):
        if match[0] == "{":
            objects.append(set())
        elif match[0] == "}":
            objects.pop()
        elif match[2]:
            key = orjson.loads(match[1])
            if key in objects[-1]:
                return match.start()
            objects[-1].add(key)
    raise AssertionError("no object has a key twice")


def _check_size(text: str, where: str) -> None:
    if len(text) > MAX_YAML:
        raise WireError(where, f"is larger than the {MAX_YAML >> 20} MiB that YAML may have: write it as JSON")


class _Reader:
    """Builds the values of a document from libyaml's events, with limits of depth and aliases.

    PyYAML's own constructors recurse without a limit, share the values of aliases, and cost more time.
    """

    def __init__(self, document: Document, positions: Positions | None = None) -> None:
        self._source = document
        self._positions = positions
        self._anchors: dict[str, Any] = {}
        self._copied = 0  # number of values that aliases have added

    def values(self) -> list[Any]:
        """The values of all documents in the text."""
        bad = _UNPRINTABLE.search(self._source.text)
        if bad:
            line, column = _position(self._source.text[: bad.start()])
            raise _fault(self._source.where, f"holds {bad[0]!a}, which YAML forbids", self._source.line + line, column)
        if self._source.text.count("\n%TAG") > _MAX_TAG_LINES:  # libyaml compares each with all lines before
            raise WireError(self._source.where, f"has more than {_MAX_TAG_LINES} lines %TAG")
        found = []
        try:
            events = yaml.parse(self._source.text, Loader=_LOADER)
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent):
                    self._anchors.clear()
                    found.append(self._value(next(events), events, (), 0))
        except yaml.YAMLError as error:
            raise self._not_yaml(error) from error
        return found

    def _value(self, event: Any, events: Iterator[Any], path: Path, depth: int) -> Any:
        """The value that begins with the event. `depth` is the number of objects and lists around it."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            found: Any = self._scalar(event)
        elif kind is yaml.AliasEvent:
            return self._copy(self._known(event), event, depth)
        else:
            self._check_nested(event, depth)
            is_map = kind is yaml.MappingStartEvent
            if event.tag and not event.implicit and event.tag not in ("!", _TAG + ("map" if is_map else "seq")):
                raise self._wrong(event, "has a tag that is not known")
            found = (self._object if is_map else self._list)(events, path, depth + 1)
        if event.anchor:
            self._anchors[event.anchor] = found
        return found

    def _list(self, events: Iterator[Any], path: Path, depth: int) -> list[Any]:
        found: list[Any] = []
        while type(event := next(events)) is not yaml.SequenceEndEvent:
            inner = self._note(path, len(found), event)
            found.append(self._value(event, events, inner, depth))
        return found

    def _object(self, events: Iterator[Any], path: Path, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        while type(event := next(events)) is not yaml.MappingEndEvent:
            if type(event) is yaml.ScalarEvent and event.value == "<<" and event.implicit[0]:
                value = self._value(event := next(events), events, self._note(path, "<<", event), depth)
                merged += self._to_merge(value, event)
                continue
            key = self._key(event)
            if key in found:
                raise self._wrong(event, "a key occurs twice")
            inner = self._note(path, key, event)
            found[key] = self._value(next(events), events, inner, depth)
        for other in merged:
            for key, value in other.items():
                found.setdefault(key, value)
        return found

    def _key(self, event: Any) -> str:
        """The key of a field. As in kubectl, a number or boolean becomes its text."""
        if type(event) not in (yaml.ScalarEvent, yaml.AliasEvent):
            raise self._wrong(event, "a key must be a string")
        key = self._known(event) if type(event) is yaml.AliasEvent else self._scalar(event)
        if type(event) is yaml.ScalarEvent and event.anchor:
            self._anchors[event.anchor] = key
        if type(key) is bool:
            return "true" if key else "false"
        if type(key) in (str, int, float):
            return str(key)
        raise self._wrong(event, f"a key must be a string, is {'null' if key is None else type(key).__name__}")

    def _to_merge(self, value: Any, event: Any) -> Iterable[dict[str, Any]]:
        found = value if isinstance(value, list) else [value]
        if not all(isinstance(one, dict) for one in found):
            raise self._wrong(event, "`<<` takes an object or a list of objects")
        return found

    # -- limits ----------------------------------------------------------------------------------------------

    def _check_nested(self, event: Any, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise self._wrong(event, f"is nested deeper than {MAX_DEPTH} levels")

    def _known(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise self._wrong(event, "an alias names no anchor that is complete before it")
        return self._anchors[event.anchor]

    def _copy(self, value: Any, event: Any, depth: int) -> Any:
        """Copy a value for one use of its alias."""
        self._copied += 1
        if self._copied > len(self._source.text):
            raise self._wrong(event, "its aliases stand for more values than the text has characters")
        if type(value) not in (dict, list):
            return value
        self._check_nested(event, depth)
        if type(value) is dict:
            return {key: self._copy(inner, event, depth + 1) for key, inner in value.items()}
        return [self._copy(inner, event, depth + 1) for inner in value]

    # -- scalars ---------------------------------------------------------------------------------------------

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if event.implicit[0]:
            return self._plain(text, event)
        tag: str = event.tag or ""
        if event.implicit[1] or tag in ("!", f"{_TAG}str"):
            return text
        if tag in (f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool", f"{_TAG}null"):
            return self._plain(text, event)
        raise self._wrong(event, "has a tag that is not known")

    def _plain(self, text: str, event: Any) -> Any:
        if text in _NULLS:
            return None
        if text[0] not in "-+.0123456789":
            return _BOOLEANS.get(text, text)
        if len(text) < _SAFE_DIGITS and text[0] in "123456789" and text.isdigit() and text.isascii():
            return int(text)
        if _INTEGER.match(text):
            return self._integer(text, event)
        if _NOT_FINITE.match(text):
            raise self._wrong(event, f"{text} is not a finite number")
        if not _NUMBER.match(text):
            return text
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise self._wrong(event, "a number is beyond 64 bits")
        return value

    def _integer(self, text: str, event: Any) -> Any:
        digits = text.replace("_", "")
        if len(digits) <= _MAX_INTEGER_TEXT:
            sign, bare = (-1, digits[1:]) if digits[0] == "-" else (1, digits.lstrip("+"))
            base = {"0b": 2, "0o": 8, "0x": 16}.get(bare[:2], 8 if bare[:1] == "0" and len(bare) > 1 else 10)
            try:
                value = sign * int(bare, base)
            except ValueError:
                return text  # only underscores follow the prefix
            if _MIN_INTEGER <= value <= _MAX_INTEGER:
                return value
        raise self._wrong(event, "a number is beyond 64 bits")

    # -- places ----------------------------------------------------------------------------------------------

    def _note(self, path: Path, step: str | int, event: Any) -> Path:
        """Store line and column of the field or item that begins here, and return its path."""
        if self._positions is None:
            return ()
        mark, inner = event.start_mark, (*path, step)
        self._positions.setdefault(inner, (self._source.line + mark.line + 1, mark.column + 1))
        return inner

    def _wrong(self, event: Any, problem: str) -> WireError:
        mark = event.start_mark
        return _fault(self._source.where, problem, self._source.line + mark.line + 1, mark.column + 1)

    def _not_yaml(self, error: yaml.YAMLError) -> WireError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        problem = f"is not YAML or JSON: {one_line(str(problem))}"
        if mark is None:
            return WireError(self._source.where, problem)
        lines = self._source.text.splitlines()
        if mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t":
            problem = "is not YAML or JSON: a tab, but YAML indents with spaces"
        return _fault(self._source.where, problem, self._source.line + mark.line + 1, mark.column + 1)
