"""Numbers with nouns in messages."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """The count with its noun: '1 node', '2 nodes'. `many` is the plural if it is not the noun with an 's'."""
    return f"{count} {one if count == 1 else many or one + 's'}"
