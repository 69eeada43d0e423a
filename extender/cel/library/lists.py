"""Lists and sets: Kubernetes' list functions, cel-go's lists v3 and sets, and includes."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.library.operators import duration, int64, uint64
from extender.cel.types import Version, function, member, plain
from extender.cel.values import NONE, Duration, Optional, Timestamp, UInt, compare, same

_LISTS_V3: Version = (1, 34)
MAX_RANGE = 10_000  # elements of lists.range; the reference has no limit and hangs beyond 100,000
MAX_INCLUDES = 48  # resource.k8s.io ResourceSliceMaxAttributeValuesPerDevice

_COMPARABLE = (int, UInt, float, bool, Duration, Timestamp, str, bytes)
_ORDERED = (t.INT, t.UINT, t.DOUBLE, t.BOOL, t.DURATION, t.TIMESTAMP, t.STRING, t.BYTES)


def _sum(add: Callable[[Any, Any], object], zero: object) -> Callable[[list[Any]], object]:
    return lambda items: functools.reduce(add, items, zero)


def _order(left: object, right: object) -> int:
    """-1, 0 or 1; 0 for values without an order between them, such as NaN or 1 and 'a'. Raises EvalError for a value
    of a type without an order."""
    if type(left) not in _COMPARABLE or type(right) not in _COMPARABLE:
        raise EvalError("no such overload")
    try:
        return compare(left, right)
    except EvalError:
        return 0


def _is_sorted(items: list[object]) -> bool:
    return all(_order(a, b) <= 0 for a, b in itertools.pairwise(items))


def _extreme(name: str, sign: int) -> Callable[[list[object]], object]:
    def pick(items: list[object]) -> object:
        if not items:
            raise EvalError(f"{name} called on empty list")
        best = items[0]
        for item in items[1:]:
            if _order(item, best) * sign > 0:
                best = item
        return best

    return pick


def _index_of(items: list[Any], wanted: object) -> int:
    return next((i for i, item in enumerate(items) if same(item, wanted)), -1)


def _last_index_of(items: list[Any], wanted: object) -> int:
    return next((i for i in range(len(items) - 1, -1, -1) if same(items[i], wanted)), -1)


def _slice(items: list[object], start: int, end: int) -> list[object]:
    if start < 0 or end < 0:
        raise EvalError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvalError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(items):
        raise EvalError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _flatten(items: Sequence[object], depth: int = 1) -> list[object]:
    if depth < 0:
        raise EvalError("level must be non-negative")
    found: list[object] = []
    for item in items:
        if isinstance(item, list | tuple) and depth > 0:
            found.extend(_flatten(item, depth - 1) if depth > 1 else item)
        else:
            found.append(item)
    return found


def sort_by(items: list[Any], keys: list[Any]) -> list[object]:
    if any(type(key) is not type(keys[0]) for key in keys[1:]):
        raise EvalError("list elements must have the same type")
    if keys and type(keys[0]) not in _COMPARABLE:
        raise EvalError("list elements must be comparable")
    by_key = functools.cmp_to_key(_order)
    pairs = sorted(zip(keys, items, strict=True), key=lambda pair: by_key(pair[0]))
    return [item for _, item in pairs]


def _distinct(items: list[object]) -> list[object]:
    found: list[object] = []
    for item in items:
        if not any(same(item, known) for known in found):
            found.append(item)
    return found


def _range(count: int) -> list[int]:
    if count > MAX_RANGE:
        raise EvalError(f"lists.range({count}) exceeds the limit of {MAX_RANGE} elements")
    return list(range(count))


def _contains(items: list[object], wanted: list[object]) -> bool:
    return all(any(same(have, want) for have in items) for want in wanted)


def _includes(value: object, wanted: object) -> bool:
    if not isinstance(value, list | tuple):
        return same(value, wanted)
    for position, item in enumerate(value):
        if position >= MAX_INCLUDES:
            raise EvalError(f"list exceeds the limit of {MAX_INCLUDES} elements")
        if same(item, wanted):
            return True
    return False


def _equivalent(left: list[object], right: list[object]) -> bool:
    return _contains(left, right) and _contains(right, left)


def _intersects(left: list[object], right: list[object]) -> bool:
    return any(same(x, y) for x in left for y in right)


INCLUDES = function("includes", member((t.DYN, t.DYN), t.BOOL, _includes, (1, 36)))
_SUMS = {
    t.INT: _sum(lambda a, b: int64(a + b), 0),
    t.UINT: _sum(lambda a, b: uint64(int(a) + int(b)), UInt(0)),
    t.DOUBLE: _sum(operator.add, 0.0),
    t.DURATION: lambda items: duration(sum(item.nanos for item in items)),
}
_ITEMS = t.list_of(t.A)


_ANYTHING = t.list_of(t.DYN)
_SORTABLE = [(t.list_of(item), item) for item in _ORDERED]
OVERLOADS = [
    # Kubernetes'
    *function("isSorted", *(member((items,), t.BOOL, _is_sorted) for items, _ in _SORTABLE)),
    *function("min", *(member((items,), item, _extreme("min", -1)) for items, item in _SORTABLE)),
    *function("max", *(member((items,), item, _extreme("max", 1)) for items, item in _SORTABLE)),
    *function("sum", *(member((t.list_of(item),), item, apply) for item, apply in _SUMS.items())),
    *function("indexOf", member((_ITEMS, t.A), t.INT, _index_of)),
    *function("lastIndexOf", member((_ITEMS, t.A), t.INT, _last_index_of)),
    # cel-go's lists, version 3
    *function("slice", member((_ITEMS, t.INT, t.INT), _ITEMS, _slice, _LISTS_V3)),
    *function(
        "flatten",
        member((t.list_of(_ITEMS),), _ITEMS, _flatten, _LISTS_V3),
        member((_ANYTHING, t.INT), _ANYTHING, _flatten, _LISTS_V3),
    ),
    *function("distinct", member((_ITEMS,), _ITEMS, _distinct, _LISTS_V3)),
    *function("reverse", member((_ITEMS,), _ITEMS, lambda items: items[::-1], _LISTS_V3)),
    *function("first", member((_ITEMS,), t.optional_of(t.A), lambda x: Optional(x[0]) if x else NONE, _LISTS_V3)),
    *function("last", member((_ITEMS,), t.optional_of(t.A), lambda x: Optional(x[-1]) if x else NONE, _LISTS_V3)),
    *function("lists.range", plain((t.INT,), t.list_of(t.INT), _range, _LISTS_V3)),
    *function(
        "sort", *(member((items,), items, lambda have: sort_by(have, have), _LISTS_V3) for items, _ in _SORTABLE)
    ),
    # cel-go's sets
    *function("sets.contains", plain((_ITEMS, _ITEMS), t.BOOL, _contains)),
    *function("sets.equivalent", plain((_ITEMS, _ITEMS), t.BOOL, _equivalent)),
    *function("sets.intersects", plain((_ITEMS, _ITEMS), t.BOOL, _intersects)),
]
