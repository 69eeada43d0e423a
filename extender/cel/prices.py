"""The price of a function: the rules for its estimate, and the rules for its charge.

The estimate is the worst case before an expression runs, by the cost rules of k8s.io/apiserver. The charge is taken
from the budget while the expression runs, by every operation that walks or grows. The limit is the API server's runtime
limit. An operation costs about as much as in the reference, and never less than the work it makes here: a unit stands
for 50 ns. So every expression ends in a bounded time and memory; only loops that make no sense on a device can cost
more here than there. The library gives every function a `Price` beside its overloads; no other module finds costs by
the name of a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from extender.cel.frame import Frame, spend
from extender.cel.types import Type
from extender.cel.values import List, Map, total_weight, weighed, weight
from extender.model import Semver

UNBOUNDED = 2**64 - 1
LIST_COST, MAP_COST, MESSAGE_COST = 10, 30, 40  # units for making a list, a map or a message
_CALL = 20  # units of a call that walks over values
_SEARCH = 40  # units of a search with a pattern beside those for the text
_COMPARED = 400  # characters that are compared in the time of a unit
_ADDRESS = 16  # bytes of an IPv6 address
_NAME_FORMAT_REGEX = 128  # length of the longest pattern among the name formats
_CONSTANT_EQUALITY = frozenset({"kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR"})


class Argument(NamedTuple):
    """The type of an argument, the largest size of its value and of its items, and the value of a literal.

    A size counts characters, bytes or items.
    """

    type: Type
    size: int
    item: int
    literal: object = None


Arguments = Sequence[Argument]
Values = tuple[Any, ...]


def flat(_: Arguments) -> int:
    """The estimate of a call whose work does not depend on its arguments."""
    return 1


def by_type(_: Arguments) -> None:
    """The type of the result decides its size: 1 for a scalar, no bound for anything else."""


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of one function, and the size of its result."""

    estimate: Callable[[Arguments], int] = flat
    size: Callable[[Arguments], int | None] = by_type  # largest size of the result
    overhead: int = 0  # units of a call with arguments of any size
    slowness: int = 1  # units for each value, or ten characters, of the largest argument, for a function with overhead
    work: Callable[[Values], int] | None = None  # units by the values, for a function without overhead
    each: Callable[[Values], int] | None = None  # units for each item of a result that is an iterator
    scalar: bool = False  # the result is never larger than a number, and the work is small: no charge by size
    bounded: bool = False  # an attribute's 64 characters bound the work: a call on a scalar is free
    returns_argument: bool = False  # the result is the first argument

    def charge(self) -> Callable[[Values], int] | None:
        """The units that a call with large arguments takes before it runs; None where it takes none."""
        if self.overhead:
            return lambda values: self.overhead + self.slowness * max(map(weight, values))
        return self.work


# -- sums that do not exceed UNBOUNDED ------------------------------------------------------------------------------


def add(*costs: int) -> int:
    return min(sum(costs), UNBOUNDED)


def times(a: int, b: int) -> int:
    return min(a * b, UNBOUNDED)


def traversal(size: int, factor: float = 1.0) -> int:
    """The cost of reading `size` characters: a tenth of a unit each."""
    if size >= UNBOUNDED:
        return UNBOUNDED
    return -int(-size * factor // 10)


def _quarter(size: int) -> int:
    """A pattern has about one state in four characters."""
    return UNBOUNDED if size >= UNBOUNDED else -(-size // 4)


# -- estimates ------------------------------------------------------------------------------------------------------


def scan(args: Arguments) -> int:
    """The function reads its first argument once."""
    return traversal(args[0].size)


def scan_twice(args: Arguments) -> int:
    return traversal(args[0].size, 2)


def scan_second(args: Arguments) -> int:
    return traversal(args[1].size)


def scan_bytes(args: Arguments) -> int:
    """Only a conversion of bytes reads them."""
    return traversal(args[0].size) if args[0].type.kind == "bytes" else 1


def scan_string(args: Arguments) -> int:
    """Only a conversion of a string reads it."""
    return traversal(args[0].size) if args[0].type.kind == "string" else 1


def ordering(args: Arguments) -> int:
    """<, <=, > or >=: texts are compared character by character."""
    return _compared(args) if args[0].type.kind in ("string", "bytes") or _has_dynamic(args) else 1


def equality(args: Arguments) -> int:
    same_type = args[0].type.name == args[1].type.name
    return 1 if same_type and args[0].type.name in _CONSTANT_EQUALITY else _compared(args)


def inequality(args: Arguments) -> int:
    return _compared(args)


def _compared(args: Arguments) -> int:
    return traversal(min(args[0].size, args[1].size))


def _has_dynamic(args: Arguments) -> bool:
    return any(arg.type.kind in ("dyn", "any") for arg in args[:2])


def pattern_search(args: Arguments) -> int:
    return times(traversal(add(args[0].size, 1)), _quarter(args[1].size))


def membership(args: Arguments) -> int:
    return args[1].size if args[1].type.kind == "list" else 1


def list_walk(args: Arguments) -> int:
    """The function looks at every item, or at every character of a string."""
    target = args[0]
    if target.type.kind == "string":
        return traversal(target.size)
    params = target.type.params
    textual = bool(params) and params[0].kind in ("string", "bytes")
    return times(target.size, add(1, traversal(target.item)) if textual else 1)


def pairwise(args: Arguments) -> int:
    """The function compares every item of the first argument with every item of the last."""
    return times(args[0].size, args[-1].size)


def text_in_text(args: Arguments) -> int:
    return times(traversal(args[0].size), traversal(args[1].size))


def concatenation(args: Arguments) -> int:
    return traversal(concatenated(args)) if args[0].type.kind in ("string", "bytes", "dyn", "any") else 1


def joining(args: Arguments) -> int:
    return traversal(joined(args))


def making_range(args: Arguments) -> int:
    return add(range_size(args), LIST_COST)


def address(args: Arguments) -> int:
    """ip() parses a text, and reads the address of a CIDR."""
    return 1 if args[0].type.name == "net.CIDR" else traversal(args[0].size)


def containment(args: Arguments) -> int:
    """Whether a CIDR contains an address."""
    parse = traversal(args[1].size) if args[1].type.kind == "string" else 0
    return add(traversal(2 * _ADDRESS), parse)


def block_containment(args: Arguments) -> int:
    """Whether a CIDR contains another one."""
    return add(containment(args), traversal(_ADDRESS), 1)


def name_validation(args: Arguments) -> int:
    return times(traversal(args[1].size), _quarter(_NAME_FORMAT_REGEX))


# -- sizes of results -----------------------------------------------------------------------------------------------


def one(_: Arguments) -> int:
    return 1


def first_size(args: Arguments) -> int:
    return args[0].size


def concatenated(args: Arguments) -> int:
    return add(args[0].size, args[1].size)


def sum_size(args: Arguments) -> int | None:
    """The size of a + b: texts and lists grow."""
    growing = args[0].type.kind in ("string", "bytes", "list", "dyn", "any")
    return concatenated(args) if growing else None


def joined(args: Arguments) -> int:
    size = args[0].size
    return add(times(size, args[0].item), times(max(size - 1, 0), args[1].size) if len(args) > 1 else 0)


def replaced(args: Arguments) -> int:
    size, old, new = args[0].size, args[1].size, args[2].size
    if old == 0:
        return add(times(add(size, 1), new), size)
    return size if new <= 1 else times(size, new)


def quoted(args: Arguments) -> int:
    return add(times(args[0].size, 2), 2)


def decoded(args: Arguments) -> int | None:
    """The characters of bytes: no more than the bytes."""
    return args[0].size if args[0].type.kind == "bytes" else None


def encoded(args: Arguments) -> int | None:
    """The bytes of a string: up to four a character."""
    return times(args[0].size, 4) if args[0].type.kind == "string" else None


def range_size(args: Arguments) -> int:
    """The reference reads the number as an unsigned one: a number below zero is huge."""
    return args[0].literal % 2**64 if isinstance(args[0].literal, int) else UNBOUNDED


# -- charges --------------------------------------------------------------------------------------------------------


def call(_: Values) -> int:
    """The charge of a call that makes an object."""
    return _CALL


def showing(values: Values) -> int:
    """The text of a number or of bytes is made at once; that of a double, a time or an address is not."""
    return _CALL // 2 + weight(values[0]) if isinstance(values[0], str | bytes | int) else 5 * _CALL


def read_slowly(values: Values) -> int:
    """Half a unit for each character of a text; two for one with characters beyond ASCII."""
    text = values[0]
    return (len(text) // 2 if text.isascii() else 2 * len(text)) if isinstance(text, str) else 0


def compare_texts(values: Values) -> int:
    """Texts are compared quickly, character by character."""
    return min(map(len, values)) // _COMPARED if isinstance(values[0], str | bytes) else 0


def compare_versions(values: Values) -> int:
    """A version can have thousands of parts; a quantity is a number."""
    return walk_shortest(values) if isinstance(values[0], Semver) else 0


def walk_longest(values: Values) -> int:
    return _CALL + max(map(_walk, values))


def walk_shortest(values: Values) -> int:
    return _CALL + min(map(_walk, values))


def walk_slowly(values: Values) -> int:
    """The function compares every item with another one."""
    return _CALL + 20 * weight(values[0])


def walk_pairs(values: Values) -> int:
    return _CALL + 4 * weight(values[0]) * weight(values[-1])


def sorting(values: Values) -> int:
    return sort_units(weight(values[0]))


def sort_units(size: int) -> int:
    """The charge for sorting by keys that have so many values together."""
    return _CALL + 16 * size * size.bit_length()


def walk_pairs_twice(values: Values) -> int:
    return 2 * walk_pairs(values)


def _walk(value: object) -> int:
    """A text is read faster than the values of a list."""
    return (2 if isinstance(value, str | bytes) else 6) * weight(value)


def _search_units(text: str, part: str) -> int:
    """At worst a search compares the whole part at every position."""
    return max(0, len(text) - len(part)) * len(part) // _COMPARED


def search(values: Values) -> int:
    """The search of a text in a text, or of a value in a list."""
    text, part = values[:2]
    is_text = isinstance(text, str) and isinstance(part, str)
    return _CALL + max(_walk(text), _walk(part)) + (_search_units(text, part) if is_text else 0)


def write_replaced(values: Values) -> int:
    """Counts the matches before, which is a search of its own."""
    text, old, new = values[:3]
    return int(len(text) + text.count(old) * len(new)) // 10 + 2 * _search_units(text, old)


def write_joined(values: Values) -> int:
    separator = values[-1] if len(values) > 1 else ""
    return len(values[0]) + int(sum(map(len, values[0])) + len(values[0]) * len(separator)) // 10


def pattern_units(length: int, program: int) -> int:
    """Units for one search in a text of `length` characters: at worst every instruction of the pattern's program at
    every character."""
    return _SEARCH + (1 + length) * (1 + program) // 4


FLAT = Price()
WALK = Price(list_walk, work=walk_slowly)
SEARCH = Price(list_walk, work=search)
PARSE = Price(scan)


# -- payments -------------------------------------------------------------------------------------------------------


def make_list(frame: Frame, items: list[Any]) -> List:
    """A new list of the evaluation, which pays for it by its weight. Raises BudgetExceeded."""
    spend(frame, len(items) + LIST_COST)
    made = weighed(items)
    spend(frame, made.weight)
    return made


def make_map(frame: Frame, entries: dict[Any, Any]) -> Map:
    """A new map of the evaluation, which pays for it by its weight. Raises BudgetExceeded."""
    spend(frame, len(entries) + MAP_COST)
    made = Map(entries)
    made.weight = 1 + total_weight(entries.values()) + total_weight(entries)
    spend(frame, made.weight)
    return made


def charged(price: Price, apply: Callable[..., Any], *, grows: bool) -> Callable[..., Any] | None:
    """The implementation with the frame as first argument, which pays before the call and for its result; None where
    a call is free.

    `grows` says whether an argument or the result can be large.
    """
    if price.overhead and not grows:
        return _with_overhead(price.overhead, apply)
    if not grows or price.scalar:
        return None
    before = price.charge()

    def run(frame: Frame, *args: Any) -> Any:
        if before is not None:
            spend(frame, before(args))
        value = apply(*args)
        if price.each is not None:
            value = _listed(frame, value, price.each(args))
        if isinstance(value, str | bytes):
            spend(frame, 1 + len(value) // 10)
        elif type(value) is list:
            return make_list(frame, value)
        elif type(value) is dict:
            return make_map(frame, value)
        return value

    return run


def _listed(frame: Frame, items: Any, units: int) -> list[Any]:
    """The items of an iterator, each of which costs as many units; without None. Raises BudgetExceeded."""
    found = []
    for item in items:
        spend(frame, units)
        if item is not None:
            found.append(item)
    return found


def _with_overhead(units: int, apply: Callable[..., Any]) -> Callable[..., Any]:
    def run(frame: Frame, *args: Any) -> Any:
        spend(frame, units)
        return apply(*args)

    return run
