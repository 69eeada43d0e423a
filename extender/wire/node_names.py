"""Names of nodes as kube-scheduler sends them: thousands with every call, of which filter looks for a few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import overload

import orjson

from extender.model import WireError
from extender.wire.fields import Json, string_list

_NEAR = 8192  # bytes to either side of where a name stood before: kube-scheduler's workers mix some hundred names
MAX_NAMES = 200_000  # in one call: the largest clusters told of have 130,000 nodes
_MOST = 4096  # names whose place is remembered


def checked_names(head: Json) -> list[str]:
    """The list NodeNames of an object. Raises WireError, also where it is longer than any cluster has nodes."""
    names = string_list(head, "NodeNames", "")
    if len(names) > MAX_NAMES:
        raise WireError("NodeNames", f"has {len(names)} names, of at most {MAX_NAMES}")
    return names


class NameOffsets:
    """Where names stood in the texts before: kube-scheduler lists nodes in nearly the same order with every call."""

    def __init__(self, most: int = _MOST, near: int = _NEAR) -> None:
        self._most = most
        self._near = near
        self._at: dict[str, tuple[bytes, int]] = {}  # a name in quotes, and how far from the start
        self._counted = (0, 0)  # length of a text, and the names in it

    def __len__(self) -> int:
        """Names whose place is remembered."""
        return len(self._at)

    def has_all(self, body: bytes, text: slice, names: Iterable[str]) -> bool:
        """Whether the list of names, as JSON in a part of the body, holds all these."""
        at, start = self._at, text.start
        for name in names:
            known = at.get(name)
            if (known is None or not body.startswith(known[0], start + known[1])) and not self._find(body, text, name):
                return False
        return True

    def _find(self, body: bytes, text: slice, name: str) -> bool:
        start, end = text.start, text.stop
        quoted, before = self._at.get(name) or (b'"%b"' % name.encode(), 0)
        found = body.find(quoted, start + max(before - self._near, 0), min(start + before + self._near, end))
        if found < 0:
            found = body.find(quoted, start, end)
        if found >= 0:
            if len(self._at) >= self._most:
                self._at.clear()
            self._at[name] = quoted, found - start
        return found >= 0

    def count(self, body: bytes, text: slice) -> int:
        """About how many names there are: texts of equal length, one after the other, are taken to hold equally
        many."""
        length = text.stop - text.start
        if self._counted[0] != length:
            self._counted = length, body.count(b'"', text.start, text.stop) // 2
        return self._counted[1]


class NodeNames(Sequence[str]):
    """A list of names in a body, neither copied nor parsed before somebody goes through it. Raises WireError then, where it is
    none."""

    def __init__(self, body: bytes, text: slice, offsets: NameOffsets) -> None:
        self._body = body
        self._text = text
        self._offsets = offsets

    @property
    def text(self) -> memoryview:
        """The list as it came."""
        return memoryview(self._body)[self._text]

    def has_all(self, names: Iterable[str]) -> bool:
        """Whether all these are among them; nothing is parsed for it, unless some name is escaped."""
        if self._body.find(b"\\", self._text.start, self._text.stop) >= 0:
            return set(names).issubset(self._parsed)
        return self._offsets.has_all(self._body, self._text, names)

    @cached_property
    def _parsed(self) -> list[str]:
        try:
            found = orjson.loads(self.text)
        except orjson.JSONDecodeError as error:
            raise WireError("NodeNames", f"is not JSON: {error}") from error
        return checked_names({"NodeNames": found})

    def estimated_len(self) -> int:
        """About how many names there are, for people: to parse thousands takes longer than the rest of a filter."""
        return len(self._parsed) if "_parsed" in self.__dict__ else self._offsets.count(self._body, self._text)

    def __len__(self) -> int:
        return len(self._parsed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._parsed[index]


def has_all(names: Sequence[str], wanted: Iterable[str]) -> bool:
    """Whether all that are wanted are among the names."""
    return names.has_all(wanted) if isinstance(names, NodeNames) else set(wanted).issubset(names)


def estimated_len(names: Sequence[str]) -> int:
    """About how many names there are. For journal and traces only; decisions take len()."""
    return names.estimated_len() if isinstance(names, NodeNames) else len(names)
