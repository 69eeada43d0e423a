"""How a program reads a device: it recognises constant paths into `device` and takes short closures for them."""

from __future__ import annotations

from collections.abc import Collection

from extender.cel import ast
from extender.cel.dra import access
from extender.cel.frame import Closure
from extender.cel.specialize import hashed_constants, scalar_constant

_DEPTH = 3  # of the longest path: kind, domain, name
Path = tuple[str, ...]


class DeviceBinding:
    """Compiles the reads of one program.

    `reads` collects the parts of a device that the program reads: 'driver', 'allowMultipleAllocations',
    'attributes:domain/id', 'attributes:domain/*' or 'attributes:*', and the same for capacity.
    """

    def __init__(self) -> None:
        self.reads: set[str] = set()

    def read(self, node: ast.Node, hidden: Collection[str]) -> Closure | None:
        """The closure for a constant path such as device.attributes[d].i or its parts, or for has() of one."""
        if "device" in hidden:
            return None
        path, test = _path(node), isinstance(node, ast.Select) and node.test
        if path is None:
            path, test = _tested_path(node), True
        if path is None:
            return None
        match path:
            case ():
                self.reads.update(("driver", "allowMultipleAllocations", "attributes:*", "capacity:*"))
                return access.whole_device
            case ("driver",) | ("allowMultipleAllocations",):
                self.reads.add(path[0])
                if test:
                    return access.always
                return access.driver_name if path[0] == "driver" else access.allows_multiple
            case ("attributes" | "capacity" as kind,):
                self.reads.add(f"{kind}:*")
                return access.always if test else access.all_domains(kind)
            case ("attributes" | "capacity" as kind, domain):
                self.reads.add(f"{kind}:{domain}/*")
                return access.always if test else access.one_domain(kind, domain)
            case ("attributes" | "capacity" as kind, domain, name):
                self.reads.add(f"{kind}:{domain}/{name}")
                if test:
                    return access.has(kind, domain, name)
                return access.attribute(domain, name) if kind == "attributes" else access.capacity(domain, name)
        return None

    def call(self, node: ast.Call, hidden: Collection[str]) -> Closure | None:
        """One closure for device.driver == 'x', for device.attributes[d].i == 'x', or for the latter with `in`."""
        if node.function not in ("_==_", "@in") or "device" in hidden:
            return None
        left, right = node.parts
        path = None if isinstance(left, ast.Select) and left.test else _path(left)
        if path is None:
            return None
        return _equals(path, right) if node.function == "_==_" else _is_in(path, right)


def _equals(path: Path, right: ast.Node) -> Closure | None:
    constant = scalar_constant(right)
    if constant is None:
        return None
    wanted = constant.value
    match path:
        case ("driver",):
            return access.driver_test(wanted)
        case ("attributes", domain, name):
            return access.attribute_equals(domain, name, wanted)
    return None


def _is_in(path: Path, right: ast.Node) -> Closure | None:
    values = hashed_constants(right) if isinstance(right, ast.ListLiteral) else []
    if not values or any(type(value) is not str for value in values):
        return None
    match path:
        case ("attributes", domain, name):
            return access.attribute_is_in(domain, name, frozenset(values))
    return None


def _path(node: ast.Node) -> Path | None:
    """('attributes', domain, id) for a constant path into the device."""
    parts: list[str] = []
    outermost = node
    while True:
        match node:
            case ast.Ident(name="device"):
                return tuple(reversed(parts))
            case ast.Select(optional=False) if len(parts) < _DEPTH and (not node.test or node is outermost):
                parts.append(node.field_name)
                node = node.operand
            case ast.Call(function="_[_]", args=[operand, ast.Literal(value=str() as key)]) if len(parts) < _DEPTH - 1:
                # The device itself cannot be indexed.
                parts.append(key)
                node = operand
            case _:
                return None


def _tested_path(node: ast.Node) -> Path | None:
    """The path that '"id" in device.attributes[domain]' tests; has() is the same test."""
    match node:
        case ast.Call(function="@in", args=[ast.Literal(value=str() as name), operand]):
            path = _path(operand)
            return (*path, name) if path is not None and len(path) == _DEPTH - 1 else None
    return None
