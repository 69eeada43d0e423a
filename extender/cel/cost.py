"""What an expression costs: the API server's estimate before it runs, and the units that it pays here while it runs.

1. **The estimate** (`Estimator`) is the worst case of an expression by the rules of cel-go and k8s.io/apiserver
   (library/cost.go): the API server refuses a new selector above its limit, and Berth says so before it does. A size
   is the largest number of characters, bytes or items of a value; a cost or a size without a bound is UNBOUNDED.
2. **The charge** (`charged`, `make_list`, `spend`) is taken from the budget of an evaluation by each operation that
   walks or grows. It bounds time and memory of `berth serve`: a unit stands for 50 ns, and a call never costs less than
   the work that it makes here. The budget is the API server's runtime limit, so only loops that make no sense on a
   device end earlier than there. `make bench-cel` finds charges that are too low.
3. **The work** (`Work`) bounds the time to compile one expression, in the same units.

`PRICES` has the estimate and the charge of every function that is not flat, by its name, as library/cost.go has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from extender.api.semver import Semver
from extender.cel import ast
from extender.cel import types as t
from extender.cel.errors import BudgetExceeded, TooMuchWork
from extender.cel.values import List, Map, total_weight, weighed, weight

UNBOUNDED = 2**64 - 1
LIST_COST, MAP_COST, MESSAGE_COST = 10, 30, 40  # units for making a list, a map or a message

# -- the work of compiling ------------------------------------------------------------------------------------------

# Measured with absurd expressions of 10 KiB; an ordinary one of this length takes up to 1,400,000 units.
COMPILE_LIMIT = 1_800_000  # units of one compilation: 90 ms
CHARACTER, TOKEN = 2, 50  # units to read and parse one
NODE_COST = 120  # to check, fold and compile one
TYPE_COST = 28  # of work with a type
OVERLOAD_COST = 80  # to try one with arguments of new types


class Work:
    """The units that a compilation may still spend. `is_short` says whether it ended with fewer than the limit."""

    __slots__ = ("_left", "_limit")

    def __init__(self, units: int = COMPILE_LIMIT) -> None:
        self._limit = self._left = min(units, COMPILE_LIMIT)

    @property
    def is_short(self) -> bool:
        return self._left < 0 and self._limit < COMPILE_LIMIT

    def spend(self, units: int) -> None:
        """Take units before the work. Raises TooMuchWork."""
        self._left -= units
        if self._left < 0:
            raise TooMuchWork("the expression takes too much work to compile")


# -- the budget of an evaluation ------------------------------------------------------------------------------------

Frame = list[Any]
"""The state of one evaluation: the units that it may still spend, the inputs, and the local variables."""
Closure = Callable[[Frame], Any]
"""A compiled node: it takes a frame and returns the value of the node."""
BUDGET, FIRST_INPUT = 0, 1  # slots of a frame; the local variables follow the inputs

ERROR_COST = 40  # units for raising and catching an error
LOOP_NODE_COST = 3  # of each node of a loop's body, in each iteration
CHOICE_COST = 8  # for each overload that may fit
FIELD_COST = 60  # for each value that a message literal takes in: it may write a timestamp as text
CONSTANT_COST = 6  # to compare a value with a constant of a list
_CALL_COST = 20  # units of a call that walks over values
_SEARCH, _MATCH = 40, 120  # of a search with a pattern beside those for the text, and of the text of a match
_COMPARED_CHARACTERS = 400  # characters that are compared in the time of a unit


def spend(frame: Frame, amount: int) -> None:
    """Take units from the budget. Raises BudgetExceeded."""
    frame[BUDGET] -= amount
    if frame[BUDGET] < 0:
        raise BudgetExceeded


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


def charged(function: str, apply: Callable[..., Any], *, grows: bool) -> Callable[..., Any] | None:
    """An implementation of a function with the frame as first argument, which pays before the call and for its result;
    None where a call is free.

    `grows` says whether an argument or the result can be large.
    """
    price = PRICES.get(function, FLAT)
    if price.overhead and not grows:
        return _with_overhead(price.overhead, apply)
    if not grows or price.scalar:
        return None
    before = price.charge()

    def run(frame: Frame, *args: Any) -> Any:
        units = 0
        if before is not None:
            units = before(args)
            spend(frame, units)
        value = apply(*args)
        if isinstance(value, str | bytes):
            spend(frame, 1 + len(value) // 10)
        elif type(value) is list:
            return make_list(frame, value)
        elif type(value) is dict:
            return make_map(frame, value)
        elif isinstance(value, Iterator):
            return make_list(frame, _listed(frame, value, units))
        return value

    return run


def _listed(frame: Frame, items: Iterator[Any], units: int) -> list[Any]:
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


# -- charges: the units of a call, by its values --------------------------------------------------------------------

Values = tuple[Any, ...]


def _showing(values: Values) -> int:
    """The text of a number or of bytes is made at once; that of a double, a time or an address is not."""
    return _CALL_COST // 2 + weight(values[0]) if isinstance(values[0], str | bytes | int) else 5 * _CALL_COST


def _read_slowly(values: Values) -> int:
    """Half a unit for each character of a text; two for one with characters beyond ASCII."""
    text = values[0]
    return (len(text) // 2 if text.isascii() else 2 * len(text)) if isinstance(text, str) else 0


def compare_texts(values: Values) -> int:
    """Texts are compared quickly, character by character."""
    return min(map(len, values)) // _COMPARED_CHARACTERS if isinstance(values[0], str | bytes) else 0


def _walk(value: object) -> int:
    """A text is read faster than the values of a list."""
    return (2 if isinstance(value, str | bytes) else 6) * weight(value)


def _walk_longest(values: Values) -> int:
    return _CALL_COST + max(map(_walk, values))


def _walk_shortest(values: Values) -> int:
    return _CALL_COST + min(map(_walk, values))


def _walk_pairs(values: Values) -> int:
    return _CALL_COST + 4 * weight(values[0]) * weight(values[-1])


def sorting(size: int) -> int:
    """The charge for sorting by keys that have so many values together."""
    return _CALL_COST + 16 * size * size.bit_length()


def _search_units(text: str, part: str) -> int:
    """At worst a search compares the whole part at every position."""
    return max(0, len(text) - len(part)) * len(part) // _COMPARED_CHARACTERS


def _search(values: Values) -> int:
    """The search of a text in a text, or of a value in a list."""
    text, part = values[:2]
    is_text = isinstance(text, str) and isinstance(part, str)
    return _CALL_COST + max(_walk(text), _walk(part)) + (_search_units(text, part) if is_text else 0)


def _write_replaced(values: Values) -> int:
    """Counts the matches before, which is a search of its own."""
    text, old, new = values[:3]
    return int(len(text) + text.count(old) * len(new)) // 10 + 2 * _search_units(text, old)


def _write_joined(values: Values) -> int:
    separator = values[-1] if len(values) > 1 else ""
    return len(values[0]) + int(sum(map(len, values[0])) + len(values[0]) * len(separator)) // 10


def pattern_units(length: int, program: int) -> int:
    """Units for one search in a text of `length` characters: at worst every instruction of the pattern's program at
    every character."""
    return _SEARCH + (1 + length) * (1 + program) // 4


def _match(values: Values) -> int:
    """A search, and the text of its match."""
    return _MATCH + pattern_units(len(values[0]), values[1].programsize)


# -- estimates: the worst cost of a call, and the largest size of its result, by the sizes of its arguments ---------


class Argument(NamedTuple):
    """The type of an argument, the largest size of its value and of its items, and the value of a literal."""

    type: t.Type
    size: int
    item: int
    literal: object = None


Arguments = Sequence[Argument]
_ADDRESS_BYTES = 16  # bytes of an IPv6 address
_NAME_FORMAT_REGEX = 128  # length of the longest pattern among the name formats
_CONSTANT_EQUALITY = frozenset({"kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR"})
_TEXTS, _UNKNOWN = ("string", "bytes"), ("dyn", "any")


def _traversal(size: int, factor: float = 1.0) -> int:
    """The cost of reading `size` characters: a tenth of a unit each."""
    return UNBOUNDED if size >= UNBOUNDED else -int(-size * factor // 10)


def _states(pattern: int) -> int:
    """A pattern has about one state in four characters."""
    return UNBOUNDED if pattern >= UNBOUNDED else -(-pattern // 4)


def _scan(args: Arguments) -> int:
    """The function reads its first argument once."""
    return _traversal(args[0].size)


def _scan_twice(args: Arguments) -> int:
    return _traversal(args[0].size, 2)


def _compared(args: Arguments) -> int:
    return _traversal(min(args[0].size, args[1].size))


def _ordering(args: Arguments) -> int:
    """<, <=, > or >=: texts are compared character by character."""
    slow = args[0].type.kind in _TEXTS or any(arg.type.kind in _UNKNOWN for arg in args[:2])
    return _compared(args) if slow else 1


def _equality(args: Arguments) -> int:
    constant = args[0].type.name == args[1].type.name and args[0].type.name in _CONSTANT_EQUALITY
    return 1 if constant else _compared(args)


def _pattern_search(args: Arguments) -> int:
    return _traversal(args[0].size + 1) * _states(args[1].size)


def _list_walk(args: Arguments) -> int:
    """The function looks at every item, or at every character of a string."""
    target = args[0]
    if target.type.kind == "string":
        return _traversal(target.size)
    textual = bool(target.type.params) and target.type.params[0].kind in _TEXTS
    return target.size * (1 + _traversal(target.item) if textual else 1)


def _pairwise(args: Arguments) -> int:
    """The function compares every item of the first argument with every item of the last."""
    return args[0].size * args[-1].size


def _containment(args: Arguments) -> int:
    """Whether a CIDR contains an address; a text is parsed first."""
    return _traversal(2 * _ADDRESS_BYTES) + (_traversal(args[1].size) if args[1].type.kind == "string" else 0)


def _first_size(args: Arguments) -> int:
    return args[0].size


def _concatenated(args: Arguments) -> int:
    return args[0].size + args[1].size


def _joined(args: Arguments) -> int:
    size, separator = args[0].size, args[1].size if len(args) > 1 else 0
    return size * args[0].item + max(size - 1, 0) * separator


def _replaced(args: Arguments) -> int:
    size, old, new = args[0].size, args[1].size, args[2].size
    if old == 0:
        return (size + 1) * new + size
    return size if new <= 1 else size * new


def _range_size(args: Arguments) -> int:
    """The reference reads the number as an unsigned one: a number below zero is huge."""
    return args[0].literal % 2**64 if isinstance(args[0].literal, int) else UNBOUNDED


# -- the prices -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Price:
    """The estimate of a function and the size of its result (None: 1 for a scalar, else no bound), and its charge.

    A function with `overhead` charges so many units, and `slowness` units for each value, or ten characters, of its
    largest argument. Another one charges `work`, which is also the price of each item of a result that is an iterator.
    """

    estimate: Callable[[Arguments], int] = lambda _: 1
    size: Callable[[Arguments], int | None] = lambda _: None
    overhead: int = 0
    slowness: int = 1
    work: Callable[[Values], int] | None = None
    scalar: bool = False  # the result is never larger than a number, and the work is small: no charge by size
    bounded: bool = False  # an attribute's 64 characters bound the work: a call on a scalar is free

    def charge(self) -> Callable[[Values], int] | None:
        """The units that a call with large arguments takes before it runs; None where it takes none."""
        if self.overhead:
            return lambda values: self.overhead + self.slowness * max(map(weight, values))
        return self.work


def _all(price: Price, names: str) -> dict[str, Price]:
    """The price of several functions."""
    return dict.fromkeys(names.split(), price)


def _of_kind(kind: str, rule: Callable[[Arguments], int], otherwise: int | None) -> Callable[[Arguments], Any]:
    """A rule for a conversion from one kind of type."""
    return lambda args: rule(args) if args[0].type.kind == kind else otherwise


FLAT = Price()
# Compares every item with another one.
_WALK = Price(_list_walk, work=lambda values: _CALL_COST + 20 * weight(values[0]))
_PAIRS = Price(_pairwise, work=_walk_pairs)
_AFFIX = Price(lambda args: _traversal(args[1].size), work=compare_texts, bounded=True)
# A version can have thousands of parts; a quantity is a number.
_VERSIONS = Price(work=lambda values: _walk_shortest(values) if isinstance(values[0], Semver) else 0, bounded=True)
# A date needs its time zone, which Python reads from the disk if it has read others since.
_DATE_PARTS = (
    "getFullYear getMonth getDayOfYear getDayOfMonth getDate getDayOfWeek getHours getMinutes getSeconds"
    " getMilliseconds"
)
_FORMATS = (
    "format.named format.dns1123Label format.dns1123Subdomain format.dns1035Label format.qualifiedName"
    " format.dns1123LabelPrefix format.dns1123SubdomainPrefix format.dns1035LabelPrefix format.labelValue format.uri"
    " format.uuid format.byte format.date format.datetime"
)
PRICES: dict[str, Price] = {
    # operators
    **_all(Price(scalar=True), "_-_ _*_ _/_ _%_ -_ !_ _[_] _[?_] int bool size"),
    "_+_": Price(
        lambda args: _traversal(_concatenated(args)) if args[0].type.kind in (*_TEXTS, *_UNKNOWN) else 1,
        lambda args: _concatenated(args) if args[0].type.kind in (*_TEXTS, *_UNKNOWN, "list") else None,
    ),
    **_all(Price(_ordering, work=compare_texts), "_<_ _<=_ _>_ _>=_"),
    "_==_": Price(_equality, work=_walk_shortest),
    "_!=_": Price(_compared, work=_walk_shortest),
    "@in": Price(lambda args: args[1].size if args[1].type.kind == "list" else 1, work=_walk_longest),
    # conversions
    "uint": Price(overhead=5),
    "double": Price(overhead=20, slowness=20),
    "bytes": Price(_of_kind("string", _scan, 1), _of_kind("string", lambda args: args[0].size * 4, None)),
    "string": Price(_of_kind("bytes", _scan, 1), _of_kind("bytes", _first_size, None), work=_showing),
    "duration": Price(overhead=40, slowness=80),
    "timestamp": Price(overhead=60, slowness=40),
    **_all(Price(work=lambda _: _CALL_COST), "type optional.of optional.ofNonZeroValue"),
    **_all(Price(work=_walk_longest), "optional.unwrap unwrapOpt flatten includes"),
    **_all(Price(overhead=500), _DATE_PARTS),
    # texts
    "contains": Price(lambda args: _traversal(args[0].size) * _traversal(args[1].size), work=_search),
    **_all(_AFFIX, "startsWith endsWith"),
    "matches": Price(_pattern_search, work=lambda values: pattern_units(len(values[0]), values[1].programsize)),
    **_all(Price(_pattern_search, _first_size, work=_match), "find findAll"),
    **_all(Price(_list_walk, work=_search), "indexOf lastIndexOf"),
    **_all(Price(_scan, _first_size, work=_read_slowly), "lowerAscii upperAscii trim"),
    "substring": Price(_scan, _first_size),
    "replace": Price(_scan_twice, _replaced, work=_write_replaced),
    "split": Price(_scan_twice, _first_size, work=_search),
    "join": Price(lambda args: _traversal(_joined(args)), _joined, work=_write_joined),
    "format": Price(_scan, overhead=100, slowness=40),
    "strings.quote": Price(_scan, lambda args: args[0].size * 2 + 2, overhead=40, slowness=20),
    # lists and sets
    **_all(_WALK, "isSorted min max sum"),
    "distinct": Price(_pairwise, _first_size, work=_walk_pairs),
    "sort": Price(_pairwise, _first_size, work=lambda values: sorting(weight(values[0]))),
    "lists.range": Price(lambda args: _range_size(args) + LIST_COST, _range_size),
    **_all(_PAIRS, "sets.contains sets.intersects"),
    "sets.equivalent": Price(_pairwise, work=lambda values: 2 * _walk_pairs(values)),
    # quantities, versions, URLs, addresses, formats
    **_all(Price(_scan, overhead=40, slowness=20), "quantity isQuantity semver isSemver"),
    **_all(_VERSIONS, "isGreaterThan isLessThan compareTo"),
    **_all(Price(bounded=True), "isInteger major minor patch"),
    **_all(Price(overhead=40), "asApproximateFloat add sub"),  # a quantity can have 4,300 digits
    "url": Price(_scan, _first_size, overhead=200, slowness=100),
    "isURL": Price(overhead=100, slowness=80),
    **_all(Price(overhead=60), "getScheme getHost getHostname getPort getEscapedPath"),
    "getQuery": Price(overhead=60, slowness=20),
    "ip": Price(lambda args: 1 if args[0].type.name == "net.CIDR" else _scan(args), overhead=150),
    **_all(Price(_scan, overhead=150), "isIP cidr isCIDR"),
    "ip.isCanonical": Price(_scan_twice, overhead=200),
    **_all(Price(overhead=80), "isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast isGlobalUnicast"),
    "containsIP": Price(_containment, overhead=300),
    "containsCIDR": Price(lambda args: _containment(args) + _traversal(_ADDRESS_BYTES) + 1, overhead=350),
    "masked": Price(overhead=250),
    **_all(Price(overhead=20), _FORMATS),
    "validate": Price(lambda args: _traversal(args[1].size) * _states(_NAME_FORMAT_REGEX), overhead=80, slowness=20),
}


class LoopCost(NamedTuple):
    """The units of a loop without the units of its range and its body, as in the reference's expansion of the macro."""

    start: int
    iteration: int
    end: int


LOOPS: dict[str, LoopCost] = {
    "all": LoopCost(0, 3, 1),
    "exists": LoopCost(0, 4, 1),
    "exists_one": LoopCost(0, 2, 2),
    "filter": LoopCost(LIST_COST, LIST_COST + 3, 1),
    "map": LoopCost(LIST_COST, LIST_COST + 2, 1),
    "transformList": LoopCost(LIST_COST, LIST_COST + 2, 1),
    "sortBy": LoopCost(2 * LIST_COST, LIST_COST + 2, 3),
    "transformMap": LoopCost(MAP_COST, 3, 1),
    "transformMapEntry": LoopCost(MAP_COST, 2, 1),
}

# -- the estimate of an expression ----------------------------------------------------------------------------------

_SCALARS = frozenset({"bool", "int", "uint", "double", "duration", "timestamp", "null"})
_OPTIONAL_MAP_COST = 3  # hasValue, value, and the list that the macro's binding loops over; optional.of is one more


@dataclass(frozen=True, slots=True)
class Size:
    """The largest size of a value, of its items or values, and of its keys."""

    size: int = UNBOUNDED
    item: Size | None = None
    key: Size | None = None


Sizes = Mapping[str, Mapping[str, Size]]
"""The sizes of the fields of struct types that are inputs: type name, then field name."""


class Estimator(ast.Visitor[tuple[int, Size]]):
    """Estimates one checked tree; `sizes` are the sizes of the inputs. A method returns the worst cost of its node and
    the size of its value."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._locals: dict[str, Size] = {}

    def visit(self, node: ast.Node) -> tuple[int, Size]:
        cost, size = self.method(node)(node)
        return min(cost, UNBOUNDED), size

    def literal(self, node: ast.Literal) -> tuple[int, Size]:
        return 0, Size(len(node.value) if isinstance(node.value, str | bytes) else 1)

    def ident(self, node: ast.Ident) -> tuple[int, Size]:
        return 1, self._locals.get(node.name) or _by_type(node)

    def select(self, node: ast.Select) -> tuple[int, Size]:
        if node.type is not None and node.type.kind == "type":
            return 1, Size(1)
        cost, operand = self.visit(node.operand)
        if node.test:
            return cost, Size(1)
        kind = node.operand.type.kind if node.operand.type is not None else ""
        return cost + (kind in ("map", "struct", "var")), self._field(node, operand)

    def _field(self, node: ast.Select, operand: Size) -> Size:
        type_ = node.operand.type
        if isinstance(node.operand, ast.Ident) and type_ is not None and type_.name in self._sizes:
            return self._sizes[type_.name].get(node.field_name) or Size()
        return operand.item or _by_type(node)

    def call(self, node: ast.Call) -> tuple[int, Size]:
        found = [self.visit(part) for part in node.parts]
        costs = [cost for cost, _ in found]
        match node.function:
            case "_&&_" | "_||_":
                return sum(costs), Size(1, found[0][1].item)
            case "_[_]" | "_[?_]":
                return 1 + sum(costs), found[0][1].item or _by_type(node)
            case "_?_:_":
                (_, yes), (_, no) = found[1:]
                return costs[0] + max(costs[1:]), Size(max(yes.size, no.size), yes.item)
            case "dyn":
                return 1 + costs[0], found[0][1]
        price = PRICES.get(node.function, FLAT)
        arguments = [_argument(part, known) for part, (_, known) in zip(node.parts, found, strict=True)]
        size = price.size(arguments)
        largest = _by_type(node).size if size is None else min(size, UNBOUNDED)
        return price.estimate(arguments) + sum(costs), Size(largest, found[0][1].item if found else None)

    def list_literal(self, node: ast.ListLiteral) -> tuple[int, Size]:
        found = [self.visit(item) for item in node.items]
        largest = max((known.size for _, known in found), default=0)
        return LIST_COST + sum(cost for cost, _ in found), Size(len(node.items), Size(largest))

    def map_literal(self, node: ast.MapLiteral) -> tuple[int, Size]:
        keys = [self.visit(key) for key, _, _ in node.entries]
        values = [self.visit(value) for _, value, _ in node.entries]
        largest_key, largest = (max((known.size for _, known in found), default=0) for found in (keys, values))
        cost = MAP_COST + sum(cost for cost, _ in (*keys, *values))
        return cost, Size(len(node.entries), Size(largest), Size(largest_key))

    def message_literal(self, node: ast.MessageLiteral) -> tuple[int, Size]:
        return MESSAGE_COST + sum(self.visit(field.value)[0] for field in node.fields), Size(1)

    def loop(self, node: ast.Loop) -> tuple[int, Size]:
        outer, source = self.visit(node.range)
        mapping = node.range.type is not None and node.range.type.kind == "map"
        item, key = source.item or Size(), source.key or Size(1)
        saved, names = self._locals, node.variables
        two = len(names) > 1
        self._locals = {**saved, names[0]: key if mapping or two else item, **({names[1]: item} if two else {})}
        condition = self.visit(node.filter)[0] if node.filter is not None else None
        body, produced = self.visit(node.body)
        self._locals = saved
        cost = LOOPS[node.kind]
        iteration = body + cost.iteration
        if condition is not None:
            iteration += condition
        return outer + cost.start + source.size * iteration + cost.end, _result(node.kind, source, produced, item)

    def bind(self, node: ast.Bind) -> tuple[int, Size]:
        init, known = self.visit(node.init)
        body, result = self._with(node.name, known, node.body)
        return LIST_COST + init + body, result

    def optional_map(self, node: ast.OptionalMap) -> tuple[int, Size]:
        target, known = self.visit(node.target)
        body, result = self._with(node.name, known, node.body)
        return 2 * target + LIST_COST + body + _OPTIONAL_MAP_COST + (not node.flat), result

    def _with(self, name: str, known: Size, body: ast.Node) -> tuple[int, Size]:
        saved = self._locals
        self._locals = {**saved, name: known}
        found = self.visit(body)
        self._locals = saved
        return found


def _result(kind: str, source: Size, produced: Size, item: Size) -> Size:
    """The size of the result of a macro; `produced` is the size of its body."""
    match kind:
        case "all" | "exists" | "exists_one":
            return Size(1)
        case "filter" | "sortBy":
            return Size(source.size, item)
        case "map" | "transformList":
            return Size(source.size, produced)
        case "transformMap":
            return Size(source.size, produced, source.key)
        case _:
            return Size(source.size, produced.item, produced.key)


def _argument(node: ast.Node, known: Size) -> Argument:
    literal = node.value if isinstance(node, ast.Literal) else None
    return Argument(node.type or t.DYN, known.size, known.item.size if known.item else UNBOUNDED, literal)


def _by_type(node: ast.Node) -> Size:
    return Size(1) if node.type is not None and node.type.kind in _SCALARS else Size()
