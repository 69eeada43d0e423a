"""The node names of a request. kube-scheduler sends thousands with every call; a filter call looks up a few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import overload

import orjson

from extender.api.fields import Json, strings
from extender.base.berth_errors import WireError

_NEAR_BYTES = 8192  # bytes before and after the last offset of a name; kube-scheduler reorders some hundred names
MAX_NAMES = 200_000  # in one call; the largest known clusters have 130,000 nodes
_MAX_NAMES = 4096  # names whose offset is stored


def checked_names(head: Json) -> list[str]:
    """The list NodeNames of a decoded request. Raises WireError, also if it has more than MAX_NAMES names."""
    names = strings(head, "NodeNames", "")
    if len(names) > MAX_NAMES:
        raise WireError("NodeNames", f"has {len(names)} names, of at most {MAX_NAMES}")
    return names


class NameOffsets:
    """Offsets of names in earlier requests. kube-scheduler sends the nodes in nearly the same order with each call."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, int]] = {}  # name to (name in quotes, offset from the start of the list)

    def __len__(self) -> int:
        """The number of names whose offset is stored."""
        return len(self._known)

    def has_all(self, body: bytes, text: slice, names: Iterable[str]) -> bool:
        """Whether the JSON list of names at `text` in the body has all of these names."""
        at, start = self._known, text.start
        for name in names:
            known = at.get(name)
            if (known is None or not body.startswith(known[0], start + known[1])) and not self._find(body, text, name):
                return False
        return True

    def _find(self, body: bytes, text: slice, name: str) -> bool:
        start, end = text.start, text.stop
        quoted, before = self._known.get(name) or (b'"%b"' % name.encode(), 0)
        found = body.find(quoted, start + max(before - _NEAR_BYTES, 0), min(start + before + _NEAR_BYTES, end))
        if found < 0:
            found = body.find(quoted, start, end)
        if found >= 0:
            if len(self._known) >= _MAX_NAMES:
                self._known.clear()
            self._known[name] = quoted, found - start
        return found >= 0


class NodeNames(Sequence[str]):
    """The list of names in a request body. It is parsed on the first access to an item, which may raise WireError."""

    def __init__(self, body: bytes, text: slice, offsets: NameOffsets) -> None:
        self._body = body
        self._text = text
        self._offsets = offsets

    @property
    def text(self) -> memoryview:
        """The list as JSON text of the request."""
        return memoryview(self._body)[self._text]

    def has_all(self, names: Iterable[str]) -> bool:
        """Whether the list has all of these names. The list is parsed only if it has a backslash escape."""
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
        """How many names the list has if none has a quote, without parsing it: that takes three times as long."""
        return self._body.count(b'"', self._text.start, self._text.stop) // 2

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
    """Whether `names` has all `wanted` names."""
    return names.has_all(wanted) if isinstance(names, NodeNames) else set(wanted).issubset(names)


def estimated_len(names: Sequence[str]) -> int:
    """How many names there are, for traces only. Decisions use len()."""
    return names.estimated_len() if isinstance(names, NodeNames) else len(names)
