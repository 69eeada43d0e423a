"""Tokens for values: equal values share one token."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count
from weakref import WeakValueDictionary

NUMBERS = count()


class Interned:
    """A token for a value. Equal values share one token, and tokens are compared by identity.

    `number` is never used again. A cache that must not keep the token in memory stores the number.
    """

    __slots__ = ("__weakref__", "number")

    def __init__(self) -> None:
        self.number = next(NUMBERS)


Interns = WeakValueDictionary[Hashable, Interned]


def interned(table: Interns, key: Hashable) -> Interned:
    """The token of a key. The table holds it weakly: it lives as long as another reference."""
    found = table.get(key)
    if found is None:
        found = table[key] = Interned()
    return found
