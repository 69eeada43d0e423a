"""JSON as the API server sends it, where orjson is stricter than Go.

Parts of an object that Kubernetes keeps as raw text (the opaque parameters of a claim or class, the data of a device's
status) may hold bytes that are not UTF-8, halves of surrogate pairs, and more levels than orjson reads. A tenant can
write them, so one such object must not make a list or a watch unreadable.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

MOST_LEVELS = 512  # what is nested deeper becomes null; orjson reads 1,024 levels and writes 254

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|([\[{]+)|[\]}]+', re.DOTALL)


def lenient_loads(text: bytes) -> Any:
    """The value of a JSON text. What is not Unicode reads as U+FFFD, as Go has it; levels beyond MOST_LEVELS read as
    null, so that an encoder refuses their parents where they matter. Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        text = _ESCAPE.sub(_whole_pair, text.decode("utf-8", "replace").encode())
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(_shallow(text))


def _whole_pair(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape[1] else escape[0]


def _shallow(text: bytes) -> bytes:
    """The text with null for every object and list below MOST_LEVELS."""
    parts: list[bytes] = []
    kept_to = depth = 0
    for token in _TOKEN.finditer(text):
        start, end = token.span()
        if token[1]:
            if depth <= MOST_LEVELS < depth + end - start:
                parts += text[kept_to : start + MOST_LEVELS - depth], b"null"
            depth += end - start
        elif text[start] != _QUOTE:
            if depth - (end - start) <= MOST_LEVELS < depth:
                kept_to = start + depth - MOST_LEVELS
            depth -= end - start
    return b"".join((*parts, text[kept_to:])) if depth == 0 else text


_QUOTE = ord('"')
