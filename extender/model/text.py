"""Text that came from outside, made fit for a message."""

from __future__ import annotations

MOST_BYTES = 128  # of one part of a message that a user, a node or a file wrote


def cut(text: str, most: int = MOST_BYTES) -> str:
    """The text on one line, of at most so many bytes of UTF-8; `…` stands where something was left out."""
    head = text[: most + 1]
    line = head if head.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in head)
    content = line.encode()
    return line if len(content) <= most else content[: most - 3].decode("utf-8", "ignore") + "…"


def shown(value: object, most: int = MOST_BYTES) -> str:
    """A value as Python writes it, cut."""
    return cut(repr(value), most)
