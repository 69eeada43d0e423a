"""Limits of text. A message cuts each part that a user wrote, so that long user input cannot make long messages."""

from __future__ import annotations

from collections.abc import Sequence

USER_BYTES = 128  # of one part that a user wrote; a label value has at most 63 bytes, a UUID 36
REASON_BYTES = 512  # of a reason, which the reply to a filter request repeats for each node
REMEMBERED_TEXT = 256  # characters; a cache by the text of a user keeps no longer one, since it counts its entries only
_ELLIPSIS = "…"
_ELLIPSIS_BYTES = len(_ELLIPSIS.encode())
_TEXT_BYTES = 64  # estimated size of a decoded text, besides its characters
_WIDE_BYTES = 4  # bytes of each character in a text that has a character beyond ASCII, at most


def decoded_bytes(content: bytes) -> int:
    """Estimated size in bytes of a JSON text with its decoded texts."""
    texts = len(content) * (1 if content.isascii() else _WIDE_BYTES) + content.count(b'"') // 2 * _TEXT_BYTES
    return len(content) + texts


def cut(text: str, most: int = USER_BYTES) -> str:
    """The text in at most `most` bytes of UTF-8. A longer text is cut between characters and ends with an ellipsis."""
    encoded = text[: most + 1].encode(errors="replace")
    if len(text) <= most and len(encoded) <= most:
        return text
    return encoded[: most - _ELLIPSIS_BYTES].decode(errors="ignore") + _ELLIPSIS


def printable(text: str) -> str:
    """The text on one line. Characters that cannot be printed are escaped as in Python.

    These are control characters, also of the range C1, and marks that change the direction of text.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def visible(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def one_line(text: str, most: int = USER_BYTES) -> str:
    """The text on one line, cut to `most` bytes."""
    return cut(printable(text[: most + 1]), most)


def error_line(text: str, most: int = REASON_BYTES) -> str:
    """The text of an error on one line, in `most` bytes. The middle of a longer text is left out.

    An API server repeats the object first, and says what is wrong with it at the end.
    """
    if len(text) > 2 * most:
        text = text[:most] + text[-most:]
    encoded, half = printable(text).encode(errors="replace"), (most - _ELLIPSIS_BYTES) // 2
    if len(encoded) <= most:
        return printable(text)
    return encoded[:half].decode(errors="ignore") + _ELLIPSIS + encoded[-half:].decode(errors="ignore")


def literal(value: object) -> str:
    """repr() of a value; null, true and false as YAML and JSON write them."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def shown(value: object) -> str:
    """The literal of a value, cut to USER_BYTES."""
    return cut(literal(value), USER_BYTES)


def counted(count: int, one: str, many: str = "") -> str:
    """The count with its noun: '1 node', '2 nodes'. `many` is the plural if it is not the noun with an 's'."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def first_few(names: Sequence[str], most: int) -> str:
    """The first names, `most` at most, and the number of the others: 'n1, n2 and 3 more'."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
