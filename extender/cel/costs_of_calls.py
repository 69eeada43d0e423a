"""What a call costs at worst, and how large its answer can be, by function (k8s.io/apiserver CEL cost rules)."""

from __future__ import annotations

from typing import NamedTuple

from extender.cel import ast

UNBOUNDED = 2**64 - 1
LIST_COST, MAP_COST, MESSAGE_COST = 10, 30, 40  # what the reference charges for making one

_NAME_FORMAT_REGEX = 128  # length of the longest pattern among the name formats
_FLAT = frozenset(
    ["sign", "asInteger", "isInteger", "asApproximateFloat", "isGreaterThan", "isLessThan", "compareTo", "add", "sub", "major", "minor", "patch", "getScheme", "getHostname", "getHost", "getPort", "getEscapedPath", "getQuery", "masked", "prefixLength", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast", "isLinkLocalUnicast", "isGlobalUnicast"]
)
_LIST_WALKS = frozenset({"isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"})
_PARSERS = frozenset({"quantity", "isQuantity", "semver", "isSemver", "cidr", "isIP", "isCIDR", "url"})
_SAME_SIZE = frozenset({"lowerAscii", "upperAscii", "substring", "trim"})
_ORDERS = frozenset({"_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_"})
_CONSTANT_EQUALITY = frozenset({"kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR"})
_ADDRESS = 16  # bytes of an IPv6 address


class Sized(NamedTuple):
    """An argument with the largest size of the value and of its items."""

    node: ast.Node
    size: int
    item: int

    @property
    def kind(self) -> str:
        return self.node.type.kind if self.node.type is not None else "dyn"

    @property
    def type_name(self) -> str:
        return self.node.type.name if self.node.type is not None else ""


def add(*costs: int) -> int:
    return min(sum(costs), UNBOUNDED)


def times(a: int, b: int) -> int:
    return min(a * b, UNBOUNDED)


def traversal(size: int, factor: float = 1.0) -> int:
    """Looking at `size` characters: a tenth of a unit each."""
    if size >= UNBOUNDED:
        return UNBOUNDED
    return -int(-size * factor // 10)


def call_cost(node: ast.Call, args: list[Sized]) -> tuple[int, int | None]:
    """(cost beside the arguments', size of the answer or None where the type decides)."""
    name = node.function
    if name in _FLAT or name.startswith("format."):
        return 1, None
    if name in ("_&&_", "_||_"):
        return 0, 1
    if name in _ORDERS:
        return _comparison(name, args), 1
    if name in ("matches", "find", "findAll"):
        regex = times(traversal(add(args[0].size, 1)), _quarter(args[1].size))
        return regex, args[0].size if name == "findAll" else None
    if name in _PARSERS:
        return traversal(args[0].size), args[0].size if name == "url" else None
    if name == "@in":
        return (args[1].size if args[1].kind == "list" else 1), 1
    return _text_or_list(node, args)


def _quarter(size: int) -> int:
    """A pattern has about one state in four characters."""
    return UNBOUNDED if size >= UNBOUNDED else -(-size // 4)


def _comparison(name: str, args: list[Sized]) -> int:
    if name == "_==_" and args[0].type_name in _CONSTANT_EQUALITY and args[0].type_name == args[1].type_name:
        return 1
    ordered_text = args[0].kind in ("string", "bytes") or name in ("_==_", "_!=_")
    dynamic = {"dyn", "any"} & {args[0].kind, args[1].kind}
    return traversal(min(args[0].size, args[1].size)) if ordered_text or dynamic else 1


def _text_or_list(node: ast.Call, args: list[Sized]) -> tuple[int, int | None]:
    name = node.function
    size = args[0].size if args else 0
    if name in _LIST_WALKS and node.target is not None:
        return _walk(args[0]), None
    if name in _SAME_SIZE:
        return traversal(size), size
    if name == "_+_" and args[0].kind in ("string", "bytes", "list", "dyn", "any"):
        total = add(size, args[1].size)
        return 1 if args[0].kind == "list" else traversal(total), total
    if name == "split":
        return traversal(size, 2), size
    if name == "replace":
        return traversal(size, 2), _replaced(size, args)
    if name == "join":
        total = add(times(size, args[0].item), times(max(size - 1, 0), args[1].size) if len(args) > 1 else 0)
        return traversal(total), total
    if name in ("startsWith", "endsWith"):
        return traversal(args[1].size), 1
    if name == "contains":
        return times(traversal(size), traversal(args[1].size)), 1
    if name == "lists.range":
        literal = args[0].node.value if isinstance(args[0].node, ast.Literal) else None
        size = literal % 2**64 if isinstance(literal, int) else UNBOUNDED  # unsigned there, so below zero is huge
        return add(size, LIST_COST), size
    if name in ("distinct", "sort") or name.startswith("sets."):
        return times(size, args[-1].size), size if node.target is not None else 1
    return _address_or_plain(name, args)


def _walk(target: Sized) -> int:
    if target.kind == "string":
        return traversal(target.size)
    params = target.node.type.params if target.node.type is not None else ()
    textual = bool(params) and params[0].kind in ("string", "bytes")
    return times(target.size, add(1, traversal(target.item)) if textual else 1)


def _replaced(size: int, args: list[Sized]) -> int:
    old, new = args[1].size, args[2].size
    if old == 0:
        return add(times(add(size, 1), new), size)
    return size if new <= 1 else times(size, new)


def _address_or_plain(name: str, args: list[Sized]) -> tuple[int, int | None]:
    size = args[0].size if args else 0
    if name == "ip":
        return (1 if args[0].type_name == "net.CIDR" else traversal(size)), None
    if name == "ip.isCanonical":
        return traversal(size, 2), None
    if name in ("containsIP", "containsCIDR"):
        parse = traversal(args[1].size) if args[1].kind == "string" else 0
        masking = add(traversal(_ADDRESS), 1) if name == "containsCIDR" else 0
        return add(traversal(2 * _ADDRESS), parse, masking), None
    if name == "validate":
        return times(traversal(args[1].size), _quarter(_NAME_FORMAT_REGEX)), None
    if name == "format":
        return traversal(size), None
    if name == "strings.quote":
        return traversal(size), add(times(size, 2), 2)
    if name == "string" and args[0].kind == "bytes":
        return traversal(size), size
    if name == "bytes" and args[0].kind == "string":
        return traversal(size), times(size, 4)
    return 1, None
