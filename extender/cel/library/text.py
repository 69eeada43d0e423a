"""Strings: the standard functions, cel-go's strings v2 with its format, Kubernetes' regex functions.

RE2 compiles regular expressions, and the expression pays for the work, also where RE2 refuses a pattern.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import re2

from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.library.conversions import format_double, string_of_bytes
from extender.cel.library.time import format_duration, format_timestamp
from extender.cel.types import function, member, plain
from extender.cel.values import Duration, Timestamp, TypeValue, UInt, from_key, type_name

# -- string.format, which writes numbers as en_US does ----------------------------------------------------------------

_CLAUSE = re.compile(r"%(?:(%)|(?:\.(\d+))?([a-zA-Z]))")
_LONGEST_PRECISION = 4  # digits of a precision; int() rejects thousands
_MAX_PRECISION = 100  # more than a double has; without a limit an expression could build megabytes
_WHOLE_FROM = 2.0**53  # a double from here on is a whole number
_DEFAULT_DIGITS = 6  # Go's default precision
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}
_ASCII, _BASIC_PLANE = 0x7F, 0xFFFF
_NUMBER_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def format_string(template: str, values: list[object]) -> str:
    """Replace each clause by its value. Raises EvalError for a bad clause, a missing value or a wrong type."""
    pieces: list[str] = []
    at, used = 0, 0
    while (start := template.find("%", at)) >= 0:
        pieces.append(template[at:start])
        match = _CLAUSE.match(template, start)
        if match is None:
            raise EvalError(f"could not parse formatting clause at {start}")
        at = match.end()
        if match.group(1):
            pieces.append("%")
            continue
        if used >= len(values):
            raise EvalError(f"index {used} out of range")
        pieces.append(_clause(match.group(3), match.group(2), values[used]))
        used += 1
    pieces.append(template[at:])
    return "".join(pieces)


def verbs_of(template: str) -> list[str]:
    """The verb of each value that a template takes. Raises EvalError for a clause that does not exist."""
    found: list[str] = []
    at = 0
    while (start := template.find("%", at)) >= 0:
        match = _CLAUSE.match(template, start)
        if match is None or (match.group(3) and match.group(3) not in _MAKERS and match.group(3) not in "fe"):
            raise EvalError(f"could not parse formatting clause: unrecognized formatting clause at {start}")
        if match.group(3):
            found.append(match.group(3))
        at = match.end()
    return found


def _clause(verb: str, precision: str | None, value: object) -> str:
    digits = _DEFAULT_DIGITS if precision is None else int(precision[:_LONGEST_PRECISION])
    if digits > _MAX_PRECISION:
        raise EvalError(f"precision {digits} exceeds {_MAX_PRECISION}")
    if verb == "f":
        return _fixed(digits, value)
    if verb == "e":
        return _scientific(digits, value)
    make = _MAKERS.get(verb)
    if make is None:
        raise EvalError(f'unrecognized formatting clause "{verb}"')
    return make(value)


def _fixed(digits: int, value: object) -> str:
    number = _number("fixed-point", value)
    return _not_finite(number) or f"{number or 0.0:,.{digits}f}"


def _scientific(width: int, value: object) -> str:
    """As in the reference, the precision is the least width, and there are always six decimals."""
    number = _number("scientific", value)
    shown = _not_finite(number)
    if not shown:
        mantissa, power = f"{number or 0.0:.{_DEFAULT_DIGITS}e}".split("e")
        shown = f"{mantissa}\N{MULTIPLICATION SIGN}10{power.lstrip('+').translate(_SUPERSCRIPT)}"
    return shown.rjust(width)


def _not_finite(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return ("∞" if number > 0 else "-∞") if math.isinf(number) else ""


def _number(clause: str, value: object) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, str) and value in _NUMBER_WORDS:
        return _NUMBER_WORDS[value]
    raise _wrong(clause, value)


def _wrong(clause: str, value: object) -> EvalError:
    return EvalError(f"error during formatting: {clause} clause cannot be used on {type_name(value)}")


def _in_base(clause: str, code: str, *kinds: type) -> Callable[[object], str]:
    def make(value: object) -> str:
        if type(value) in kinds:
            return f"{value:{code}}"
        raise _wrong(clause, value)

    return make


def _hex(value: object) -> str:
    if type(value) in (int, UInt):
        return f"{value:x}"
    if isinstance(value, str):
        return value.encode().hex()
    if isinstance(value, bytes):
        return value.hex()
    raise _wrong("hex", value)


def _text(value: object) -> str:
    simple = _TEXTS.get(type(value))
    if simple is not None:
        return simple(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inner, value))}]"
    if isinstance(value, dict):
        entries = sorted((_map_key(from_key(key)), _inner(item)) for key, item in value.items())
        return f"{{{', '.join(f'{key}:{item}' for key, item in entries)}}}"
    raise _wrong("string", value)


def _inner(value: object) -> str:
    """A value in a list or map, as CEL writes it."""
    match value:
        case str():
            return _quoted(value)
        case bytes():
            return f"b{_quoted(_text(value))}"
        case float() if _WHOLE_FROM <= abs(value) < math.inf:
            return f"{int(value)}.{'0' * _DEFAULT_DIGITS}"  # in a fifth of the time
        case float() if math.isfinite(value):
            return f"{value:.{_DEFAULT_DIGITS}f}"
        case float():
            return f'"{format_double(value)}"'
        case Timestamp():
            return f'timestamp("{format_timestamp(value)}")'
        case Duration():
            return f'duration("{format_duration(value)}")'
    return _text(value)


def _map_key(key: object) -> str:
    if isinstance(key, str):
        return _quoted(key)
    if type(key) in (bool, int, UInt):
        return _text(key)
    raise EvalError(f"no formatting function for map key of type {type_name(key)}")


def _quoted(text: str) -> str:
    """As Go's %q."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in ESCAPES:
        return ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code <= _ASCII:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _BASIC_PLANE else f"\\U{code:08x}"


_TEXTS: dict[type, Callable[..., str]] = {
    str: str,
    bool: lambda v: "true" if v else "false",
    int: str,
    UInt: lambda v: str(int(v)),
    float: format_double,
    bytes: string_of_bytes,
    type(None): lambda _: "null",
    Duration: format_duration,
    Timestamp: format_timestamp,
    TypeValue: lambda v: v.name,
}
_MAKERS: dict[str, Callable[[object], str]] = {
    "s": _text,
    "d": _in_base("decimal", "d", int, UInt),
    "b": _in_base("binary", "b", int, UInt, bool),
    "o": _in_base("octal", "o", int, UInt),
    "x": _hex,
    "X": lambda v: _hex(v).upper(),
}


# -- regular expressions ---------------------------------------------------------------------------------------------


def _options(max_mem: int) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = max_mem
    options.never_capture = True  # no function of CEL reads a group; groups make a search many times as long
    return options


# RE2 keeps its program and the states that its searches made within `max_mem`, and beside them the parsed pattern. Most
# patterns fit into 32 KiB. 256 KiB holds every pattern of a 10 KiB expression but those with absurd repetitions
# such as (a{1000}){1000}.
_OPTIONS = _options(32 * 1024), _options(256 * 1024)
_REMEMBERED_LENGTH = 256  # characters of the longest remembered pattern
# Bytes of the parsed pattern for each character, measured; in a pattern with Unicode classes, and in any other.
_CLASS_CHARACTER_BYTES, _CHARACTER_BYTES = 2000, 100
# Units of 50 ns, measured with generated patterns.
_FLAT, _CHARACTER, _INSTRUCTION = 500, 50, 10
_CLASS_CHARACTER = 1250  # in a pattern with Unicode classes such as \pL, which have hundreds of ranges
_TOO_LARGE = 140_000  # RE2 fills its memory before it refuses the pattern
_ESCAPE_SEQUENCES = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.", re.DOTALL)  # Go does not have RE2's \C, a byte


def compiled(pattern: str, pay: Callable[[int], None]) -> Any:
    """The program of a pattern. `pay` takes the same units each time, so that no answer depends on what is remembered.

    Raises EvalError with the message of RE2, and what `pay` raises.
    """
    pay(_FLAT + len(pattern) * (_CLASS_CHARACTER if _has_classes(pattern) else _CHARACTER))
    compiling = _compiled if len(pattern) <= _REMEMBERED_LENGTH else _compiled.__wrapped__
    program, problem, units = compiling(pattern)
    pay(units)
    if program is None:
        raise EvalError(problem)
    return program


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> tuple[Any, str, int]:
    """(program, or None with RE2's message; the units that it took beside those for the length)."""
    if "\\C" in (match.group() for match in _ESCAPE_SEQUENCES.finditer(pattern)):
        return None, "error parsing regexp: invalid escape sequence: `\\C`", 0
    problem = ""
    for options in _OPTIONS:
        try:
            program = re2.compile(pattern, options)
        except re2.error as error:
            problem = f"error parsing regexp: {error.args[0].decode()}"
            if "too large" not in problem:
                return None, problem, 0
        else:
            re2.purge()  # its own cache would keep 128 patterns of any length
            return program, "", _INSTRUCTION * program.programsize
    return None, problem, _TOO_LARGE


def bytes_of(program: Any) -> int:
    """The most bytes that a program takes, after any number of searches."""
    pattern = program.pattern
    tree = len(pattern) * (_CLASS_CHARACTER_BYTES if _has_classes(pattern) else _CHARACTER_BYTES)
    return int(program.options.max_mem) + tree


def _has_classes(pattern: str) -> bool:
    return "\\p" in pattern or "\\P" in pattern


# -- the functions ---------------------------------------------------------------------------------------------------


_ASCII_LOWER = {upper: upper + 32 for upper in range(65, 91)}
_ASCII_UPPER = {lower: lower - 32 for lower in range(97, 123)}
# Go's unicode.IsSpace, plus U+180E as cel-go's trim documents.
_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_QUOTED = str.maketrans(ESCAPES)


def matches(text: str, program: Any) -> bool:
    """Whether a text has a match; the caller compiles the pattern."""
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


def _check(text: str, *positions: int) -> None:
    for at in positions:
        if not 0 <= at <= len(text):
            raise EvalError(f"index out of range: {at}")


def _char_at(text: str, at: int) -> str:
    _check(text, at)
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
    _check(text, start, stop)
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


def _join(items: list[str], separator: str = "") -> str:
    if not all(isinstance(item, str) for item in items):
        raise EvalError("no such overload")
    return separator.join(items)


_S, _I = t.STRING, t.INT
_WORDS = t.list_of(_S)
OVERLOADS = [
    *function("contains", member((_S, _S), t.BOOL, lambda text, part: part in text)),
    *function("startsWith", member((_S, _S), t.BOOL, str.startswith)),
    *function("endsWith", member((_S, _S), t.BOOL, str.endswith)),
    *function("matches", member((_S, _S), t.BOOL, matches), plain((_S, _S), t.BOOL, matches), pattern=True),
    *function("find", member((_S, _S), _S, _find), pattern=True),
    *function("findAll", member((_S, _S), _WORDS, _find_all), member((_S, _S, _I), _WORDS, _find_all), pattern=True),
    *function("charAt", member((_S, _I), _S, _char_at)),
    *function("indexOf", member((_S, _S), _I, _index_of), member((_S, _S, _I), _I, _index_of)),
    *function("lastIndexOf", member((_S, _S), _I, _last_index_of), member((_S, _S, _I), _I, _last_index_of)),
    *function("lowerAscii", member((_S,), _S, lambda text: text.translate(_ASCII_LOWER))),
    *function("upperAscii", member((_S,), _S, lambda text: text.translate(_ASCII_UPPER))),
    *function("replace", member((_S, _S, _S), _S, str.replace), member((_S, _S, _S, _I), _S, str.replace)),
    *function("split", member((_S, _S), _WORDS, _split), member((_S, _S, _I), _WORDS, _split)),
    *function("substring", member((_S, _I), _S, _substring), member((_S, _I, _I), _S, _substring)),
    *function("trim", member((_S,), _S, lambda text: text.strip(_SPACE))),
    *function("join", member((_WORDS,), _S, _join), member((_WORDS, _S), _S, _join)),
    *function("format", member((_S, t.list_of(t.DYN)), _S, format_string)),
    *function("strings.quote", plain((_S,), _S, lambda text: f'"{text.translate(_QUOTED)}"')),
]
