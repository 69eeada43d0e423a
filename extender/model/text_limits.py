"""Limits of text: a part that a user writes is cut where a sentence takes it up, so that no sentence multiplies it."""

from __future__ import annotations

USER_BYTES = 128  # of one part that a user writes: a label's value has 63, a UUID 36; what is longer is no name
REASON_BYTES = 512  # of a reason, which a reply of filter repeats for every node
_ELLIPSIS = "…"
_ELLIPSIS_BYTES = len(_ELLIPSIS.encode())


def cut(text: str, most: int = USER_BYTES) -> str:
    """The text in at most `most` bytes of UTF-8; one that is longer ends with an ellipsis. No character is broken."""
    encoded = text[: most + 1].encode(errors="replace")
    if len(text) <= most and len(encoded) <= most:
        return text
    return encoded[: most - _ELLIPSIS_BYTES].decode(errors="ignore") + _ELLIPSIS


def one_line(text: str, most: int = USER_BYTES) -> str:
    """The text cut, with line breaks and other characters that do not print as Python escapes them."""
    head = text[: most + 1]
    return cut(head if head.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in head), most)


def shown(value: object, most: int = USER_BYTES) -> str:
    """A value as Python writes it, cut: a text stands in quotes."""
    return cut(repr(value), most)
