"""Source text to tokens (cel-spec langdef, as cel-go v0.26 accepts it)."""

from __future__ import annotations

import re
import sys
from math import isinf
from typing import NamedTuple

from extender.cel.errors import CompileError, Issue
from extender.cel.values import UInt

_PATTERN = re.compile(
    r"(?P<space>[ \t\r\n\f]+|//[^\n]*)"
    r"|(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<uint>0x[0-9a-fA-F]+[uU]|\d+[uU])"
    r"|(?P<int>0x[0-9a-fA-F]+|\d+)"
    r"|(?P<string>(?:[bB][rR]?|[rR])?(?:\"\"\"|'''|\"|'))"
    r"|(?P<ident>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<op>==|!=|<=|>=|&&|\|\||[-+*/%!<>?:.,()\[\]{}])",
    re.ASCII,
)
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"`?])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2}))"
)
_SURROGATES = (0xD800, 0xDFFF)  # no characters of their own (Unicode 3.8)
_MAX_DIGITS = 64  # more than any 64-bit number has, leading zeros included
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Token(NamedTuple):
    """kind is int, uint, float, string, bytes, ident, op or end."""

    kind: str
    text: str
    offset: int
    value: object = None


def tokens(source: str) -> list[Token]:
    """All tokens, closed by one of kind 'end'. Raises CompileError at the first character that fits nowhere."""
    found: list[Token] = []
    at = 0
    while at < len(source):
        match = _PATTERN.match(source, at)
        if match is None:
            raise _syntax(source, at, f"token recognition error at: {source[at]!r}")
        kind = match.lastgroup or ""
        if kind == "string":
            token, at = _string(source, match)
            found.append(token)
            continue
        if kind != "space":
            found.append(_token(source, kind, match))
        at = match.end()
    found.append(Token("end", "<EOF>", len(source)))
    return found


def _syntax(source: str, offset: int, problem: str) -> CompileError:
    return CompileError(source, [Issue(offset, f"Syntax error: {problem}")])


def _token(source: str, kind: str, match: re.Match[str]) -> Token:
    text, offset = match.group(), match.start()
    if kind in ("int", "uint") and len(text) > _MAX_DIGITS:
        raise CompileError(source, [Issue(offset, f"invalid {kind} literal")])
    value: object = None
    if kind == "int":
        value = int(text, 16 if text.startswith("0x") else 10)
    elif kind == "uint":
        digits = text[:-1]
        value = UInt(int(digits, 16 if digits.startswith("0x") else 10))
        if value >= 2**64:
            raise CompileError(source, [Issue(offset, "invalid uint literal")])
    elif kind == "float":
        value = float(text)
        if isinf(value):
            raise CompileError(source, [Issue(offset, "invalid double literal")])
    return Token(kind, text, offset, value)


def _string(source: str, match: re.Match[str]) -> tuple[Token, int]:
    opening = match.group()
    quote = opening.lstrip("bBrR")
    prefix = opening[: len(opening) - len(quote)].lower()
    end = _closing(source, match.end(), quote, raw="r" in prefix)
    if end < 0:
        raise _syntax(source, match.start(), f"token recognition error at: {source[match.start() :][:20]!r}")
    body = source[match.end() : end]
    stop = end + len(quote)
    text = body if "r" in prefix else _unescape(source, body, match.start(), binary="b" in prefix)
    if "b" in prefix:
        data = text.encode() if "r" in prefix else text.encode("latin-1")
        return Token("bytes", source[match.start() : stop], match.start(), data), stop
    return Token("string", source[match.start() : stop], match.start(), text), stop


def _closing(source: str, start: int, quote: str, *, raw: bool) -> int:
    """The offset of the closing quote, or -1. A literal in single quotes may not contain a line break."""
    at = start
    while at < len(source):
        if source.startswith(quote, at):
            return at
        if len(quote) == 1 and source[at] in "\r\n":
            return -1
        at += 2 if source[at] == "\\" and not raw else 1
    return -1


def _unescape(source: str, body: str, offset: int, *, binary: bool) -> str:
    """The text without escapes. For bytes each character of the result is one byte."""
    pieces: list[str] = []
    at = 0
    while at < len(body):
        if body[at] != "\\":
            pieces.append(body[at].encode().decode("latin-1") if binary else body[at])
            at += 1
            continue
        match = _ESCAPE.match(body, at)
        if match is None:
            raise _syntax(source, offset, f"token recognition error at: {body[at : at + 2]!r}")
        pieces.append(_escaped(source, match, offset, binary=binary))
        at = match.end()
    return "".join(pieces)


def _escaped(source: str, match: re.Match[str], offset: int, *, binary: bool) -> str:
    simple, hexadecimal, short, long, octal = match.groups()
    if simple is not None:
        return _SIMPLE.get(simple, simple)
    if binary and (short or long):
        raise _syntax(source, offset, "unicode escape in a bytes literal")
    code = int(octal, 8) if octal else int(hexadecimal or short or long, 16)
    if not binary and (_SURROGATES[0] <= code <= _SURROGATES[1] or code > sys.maxunicode):
        raise _syntax(source, offset, "invalid unicode code point")
    return chr(code)
