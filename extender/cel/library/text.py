"""Strings: the standard functions, cel-go's strings v2, Kubernetes' regex functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from extender.cel import prices
from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.library.formatting import ESCAPES, format_string
from extender.cel.overloads import function, member, plain
from extender.cel.prices import SEARCH, Price, Values, pattern_units

_MATCH = 120  # units for the text of a match beside its search
_ASCII_LOWER = {upper: upper + 32 for upper in range(65, 91)}
_ASCII_UPPER = {lower: lower - 32 for lower in range(97, 123)}
# Go's unicode.IsSpace, plus U+180E as cel-go's trim documents.
_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_QUOTED = str.maketrans(ESCAPES)


def matches(text: str, program: Any) -> bool:
    """Whether a text has a match; the caller compiles the pattern (see patterns.py)."""
    return program.search(text) is not None


def _find(text: str, program: Any) -> str:
    found = program.search(text)
    return found.group(0) if found else ""


def _find_all(text: str, program: Any, limit: int = -1) -> Iterator[str | None]:
    """The matches; None for an empty match at the end of the match before, which Go leaves out.

    The caller pays for each item before the search for the next one, which may read the whole text.
    """
    end, left = -1, limit
    if left == 0:
        return
    for match in program.finditer(text):
        found = None if match.start() == match.end() == end else match.group(0)
        end = match.end()
        yield found
        left -= found is not None
        if left == 0:
            return


def _checked(text: str, at: int) -> int:
    if not 0 <= at <= len(text):
        raise EvalError(f"index out of range: {at}")
    return at


def _char_at(text: str, at: int) -> str:
    _checked(text, at)
    return text[at : at + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    return text.find(part, start) if part and _begins_in(text, start) else -1 if part else start


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        return text.rfind(part)
    return text.rfind(part, 0, start + len(part)) if part and _begins_in(text, start) else -1 if part else start


def _begins_in(text: str, start: int) -> bool:
    """Whether a search starts before the end. As in the reference, a start after the end is no error."""
    if start < 0:
        raise EvalError(f"index out of range: {start}")
    return start < len(text)


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    _checked(text, start)
    _checked(text, stop)
    if start > stop:
        raise EvalError(f"invalid substring range. start: {start}, end: {stop}")
    return text[start:stop]


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if limit == 1:
        return [text]
    if not separator:
        pieces = list(text)
        return pieces if limit < 0 or len(pieces) <= limit else [*pieces[: limit - 1], "".join(pieces[limit - 1 :])]
    return text.split(separator, limit - 1 if limit > 0 else -1)


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, limit)


def _join(items: list[str], separator: str = "") -> str:
    if not all(isinstance(item, str) for item in items):
        raise EvalError("no such overload")
    return separator.join(items)


def _quote(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


def _pattern_work(values: Values) -> int:
    return pattern_units(len(values[0]), values[1].programsize)


def _match_work(values: Values) -> int:
    return _MATCH + _pattern_work(values)


_S, _I = t.STRING, t.INT
_WORDS = t.list_of(_S)
_SAME_SIZE = Price(prices.scan, prices.first_size)
_OTHER_CASE = replace(_SAME_SIZE, work=prices.read_slowly)
_PATTERN = Price(prices.pattern_search, work=_pattern_work)
_AFFIX = Price(prices.scan_second, prices.one, work=prices.compare_texts, bounded=True)
OVERLOADS = [
    *function(
        "contains",
        member((_S, _S), t.BOOL, lambda text, part: part in text),
        price=Price(prices.text_in_text, prices.one, work=prices.search),
    ),
    *function("startsWith", member((_S, _S), t.BOOL, str.startswith), price=_AFFIX),
    *function("endsWith", member((_S, _S), t.BOOL, str.endswith), price=_AFFIX),
    *function(
        "matches", member((_S, _S), t.BOOL, matches), plain((_S, _S), t.BOOL, matches), price=_PATTERN, pattern=True
    ),
    *function(
        "find",
        member((_S, _S), _S, _find),
        price=replace(_PATTERN, size=prices.first_size, work=_match_work),
        pattern=True,
    ),
    *function(
        "findAll",
        member((_S, _S), _WORDS, _find_all),
        member((_S, _S, _I), _WORDS, _find_all),
        price=Price(prices.pattern_search, prices.first_size, work=_match_work, each=_match_work),
        pattern=True,
    ),
    *function("charAt", member((_S, _I), _S, _char_at)),
    *function("indexOf", member((_S, _S), _I, _index_of), member((_S, _S, _I), _I, _index_of), price=SEARCH),
    *function(
        "lastIndexOf", member((_S, _S), _I, _last_index_of), member((_S, _S, _I), _I, _last_index_of), price=SEARCH
    ),
    *function("lowerAscii", member((_S,), _S, lambda text: text.translate(_ASCII_LOWER)), price=_OTHER_CASE),
    *function("upperAscii", member((_S,), _S, lambda text: text.translate(_ASCII_UPPER)), price=_OTHER_CASE),
    *function(
        "replace",
        member((_S, _S, _S), _S, _replace),
        member((_S, _S, _S, _I), _S, _replace),
        price=Price(prices.scan_twice, prices.replaced, work=prices.write_replaced),
    ),
    *function(
        "split",
        member((_S, _S), _WORDS, _split),
        member((_S, _S, _I), _WORDS, _split),
        price=Price(prices.scan_twice, prices.first_size, work=prices.search),
    ),
    *function("substring", member((_S, _I), _S, _substring), member((_S, _I, _I), _S, _substring), price=_SAME_SIZE),
    *function("trim", member((_S,), _S, lambda text: text.strip(_SPACE)), price=_OTHER_CASE),
    *function(
        "join",
        member((_WORDS,), _S, _join),
        member((_WORDS, _S), _S, _join),
        price=Price(prices.joining, prices.joined, work=prices.write_joined),
    ),
    *function(
        "format",
        member((_S, t.list_of(t.DYN)), _S, format_string),
        price=Price(prices.scan, overhead=100, slowness=40),
    ),
    *function(
        "strings.quote", plain((_S,), _S, _quote), price=Price(prices.scan, prices.quoted, overhead=40, slowness=20)
    ),
]
