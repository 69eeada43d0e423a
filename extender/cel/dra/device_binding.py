"""How a program reads a device: the binding recognises constant paths into `device` and takes short closures for them.

A known path is one dictionary look-up; any other read makes nested maps.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from extender.cel import ast
from extender.cel.closures import Constant
from extender.cel.cost import FIRST_INPUT, Closure, Frame, spend
from extender.cel.errors import EvalError

_ENTRY_UNITS = 8  # units for each attribute or capacity of a map
DEVICE, DRIVER = FIRST_INPUT, FIRST_INPUT + 1  # the slots of the inputs: a Device, and the name of its driver


class DomainMap(dict[Any, Any]):
    """Attributes or capacity by domain: an unknown domain is an empty map, but is not `in` the map."""

    __slots__ = ()

    def __missing__(self, _: object) -> dict[str, Any]:
        return {}


class PartlyReadable(dict[Any, Any]):
    """The attributes of one domain, some of which CEL cannot read: their names are there, their values are errors."""

    __slots__ = ("problems",)

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}

    def __getitem__(self, name: Any) -> Any:
        if name in self.problems:
            raise EvalError(self.problems[name])
        return super().__getitem__(name)

    def items(self) -> Any:
        raise EvalError(next(iter(self.problems.values())))


def whole_device(frame: Frame) -> Any:
    """The device as the map that an expression sees."""
    return {
        "driver": frame[DRIVER],
        "allowMultipleAllocations": frame[DEVICE].allow_multiple,
        "attributes": _nested_attributes(frame),
        "capacity": _nested_capacity(frame),
    }


def attribute(domain: str, name: str) -> Closure:
    """device.attributes[domain].name. The closure raises EvalError where CEL can read no such attribute."""
    key = f"{domain}/{name}"

    def read(frame: Frame) -> Any:
        attributes = frame[DEVICE].attributes
        position = attributes.schema.readable.get(key)
        if position is None:
            raise EvalError(attributes.schema.problems.get(key) or f"no such key: {name}")
        return attributes.values_[position]

    return read


def capacity(domain: str, name: str) -> Closure:
    """device.capacity[domain].name. The closure raises EvalError where the device has no such capacity."""
    key = f"{domain}/{name}"

    def read(frame: Frame) -> Any:
        amounts = frame[DEVICE].capacity
        found = amounts.get(key)
        if found is None and frame[DRIVER] == domain:
            found = amounts.get(name)
        if found is None:
            raise EvalError(f"no such key: {name}")
        return found.value

    return read


def has(kind: str, domain: str, name: str) -> Closure:
    """Whether device.attributes[domain] or device.capacity[domain] has a name."""
    key = f"{domain}/{name}"
    if kind == "attributes":
        return lambda frame: key in frame[DEVICE].attributes.schema.index
    return lambda frame: key in frame[DEVICE].capacity or (frame[DRIVER] == domain and name in frame[DEVICE].capacity)


def _nested_attributes(frame: Frame) -> DomainMap:
    found, device = DomainMap(), frame[DEVICE]
    spend(frame, _ENTRY_UNITS * len(device.attributes.values_))
    problems = device.attributes.schema.problems
    for name in problems:
        found.setdefault(name.partition("/")[0], PartlyReadable())
    for name, value in zip(device.attributes.schema.names, device.attributes.values_, strict=True):
        domain, _, short = name.partition("/")
        inner = found.setdefault(domain, {})
        inner[short] = value
        if name in problems:
            inner.problems[short] = problems[name]
    return found


def _nested_capacity(frame: Frame) -> DomainMap:
    found, device, driver = DomainMap(), frame[DEVICE], frame[DRIVER]
    spend(frame, _ENTRY_UNITS * len(device.capacity))
    for name, amount in device.capacity.items():
        domain, slash, short = name.partition("/")
        if slash:
            found.setdefault(domain, {})[short] = amount.value
        else:
            found.setdefault(driver, {})[name] = amount.value
    return found


_DOMAINS: dict[str, Closure] = {"attributes": _nested_attributes, "capacity": _nested_capacity}


# -- the binding ----------------------------------------------------------------------------------------------------

_DEPTH = 3  # of the longest path: kind, domain, name
Path = tuple[str, ...]


class DeviceBinding:
    """Compiles the reads of one program.

    `reads` collects the parts of a device that the program reads: 'driver', 'allowMultipleAllocations',
    'attributes:domain/id', 'attributes:domain/*' or 'attributes:*', and the same for capacity.
    """

    slots = DRIVER + 1

    def __init__(self) -> None:
        self.reads: set[str] = set()

    def read(self, node: ast.Node, hidden: Collection[str]) -> Closure | None:
        """The closure for a constant path such as device.attributes[d].i or its parts, or for has() of one."""
        if "device" in hidden:
            return None
        path, test = constant_path(node), isinstance(node, ast.Select) and node.test
        if path is None:
            path, test = _tested_path(node), True
        if path is None:
            return None
        match path:
            case ():
                self.reads.update(("driver", "allowMultipleAllocations", "attributes:*", "capacity:*"))
                return whole_device
            case ("driver",) | ("allowMultipleAllocations",):
                self.reads.add(path[0])
                if test:
                    return Constant(True)
                if path[0] == "driver":
                    return lambda frame: frame[DRIVER]
                return lambda frame: frame[DEVICE].allow_multiple
            case ("attributes" | "capacity" as kind,):
                self.reads.add(f"{kind}:*")
                return Constant(True) if test else _DOMAINS[kind]
            case ("attributes" | "capacity" as kind, domain):
                self.reads.add(f"{kind}:{domain}/*")
                domains = _DOMAINS[kind]
                return Constant(True) if test else lambda frame: domains(frame)[domain]
            case ("attributes" | "capacity" as kind, domain, name):
                self.reads.add(f"{kind}:{domain}/{name}")
                if test:
                    return has(kind, domain, name)
                return attribute(domain, name) if kind == "attributes" else capacity(domain, name)
        return None


def constant_path(node: ast.Node) -> Path | None:
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
            path = constant_path(operand)
            return (*path, name) if path is not None and len(path) == _DEPTH - 1 else None
    return None
