"""Parsing of JSON that the API server sends and that orjson rejects although Go accepts it.

Kubernetes keeps some parts of an object as raw text: the opaque parameters of a claim or class, and the data of a
device's status. They may have bytes that are not UTF-8, lone surrogates, and more levels than orjson reads. A tenant
can write them, so one such object must not make a list or a watch fail.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

MOST_LEVELS = 512  # deeper values become null, unless they are flat; orjson reads 1,024 levels and writes 254

# Half of a surrogate pair without its other half, in a text whose backslashes are all escapes of another character.
_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
# What holds no list or object, or one that holds none. The engine steps over it: a tenant's object may have 100,000.
_FLAT = rb'"[^"]*"|[^"\[\]{}]++|[\[{](?:"[^"]*"|[^"\[\]{}]++)*+[\]}]'
# Brackets that open, and brackets that close, each after such values. The quote has no other half.
_BRACKETS = re.compile(rb"(?:" + _FLAT + rb")*+([\[{]*+)(?:" + _FLAT + rb')*+([\]}]*+)"?')


def lenient_loads(text: bytes) -> Any:
    """Parse a JSON text. Raises orjson.JSONDecodeError.

    Invalid UTF-8 and lone surrogates become U+FFFD, as in Go. If orjson cannot read the depth, values below
    MOST_LEVELS become null, unless they are flat. orjson cannot write the rest either, so a caller that encodes it gets
    an error.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # Backslashes and quotes get longer escapes. So no step needs a Python function for each escape: a tenant's
        # object may have a million of them.
        text = text.decode("utf-8", "replace").encode().replace(rb"\\", rb"\u005c").replace(rb"\"", rb"\u0022")
        text = _LONE_SURROGATE.sub(rb"\\ufffd", text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(_limit_depth(text))


def _limit_depth(text: bytes) -> bytes:
    """The text with null in place of every object and list below MOST_LEVELS that is not flat."""
    parts: list[bytes] = []
    kept_to = depth = 0
    for found in _BRACKETS.finditer(text):
        (opens, opened), (closes, closed) = found.span(1), found.span(2)
        highest = depth + opened - opens
        lowest = highest - (closed - closes)
        if depth <= MOST_LEVELS < highest:
            parts += text[kept_to : opens + MOST_LEVELS - depth], b"null"
        if lowest <= MOST_LEVELS < highest:
            kept_to = closes + highest - MOST_LEVELS
        depth = lowest
    return b"".join((*parts, text[kept_to:])) if depth == 0 else text
