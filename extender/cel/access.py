"""Reading a device. Known paths become one dictionary look-up; anything else sees nested maps, built when asked."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from extender.cel import ast
from extender.cel.errors import EvalError
from extender.model.device import Device

Frame = list[Any]
Closure = Callable[[Frame], Any]


class DomainMap(dict[Any, Any]):
    """attributes or capacity by domain: an unknown domain is an empty map, but is not `in` the map."""

    __slots__ = ()

    def __missing__(self, _: object) -> dict[str, Any]:
        return {}


def device_read(node: ast.Node, reads: set[str], local_names: dict[str, int]) -> Closure | None:
    """The closure for device.driver, device.attributes[d].i, device.capacity[d].i and their parts, or None.

    `reads` collects what is read: 'driver', 'allowMultipleAllocations', 'attributes:domain/id', 'attributes:domain/*'
    or 'attributes:*', the same for capacity.
    """
    if "device" in local_names:
        return None
    path, test = _path(node), isinstance(node, ast.Select) and node.test
    if path is None:
        path, test = _asked_for(node), True
    if path is None:
        return None
    match path:
        case ():
            reads.update(("driver", "allowMultipleAllocations", "attributes:*", "capacity:*"))
            return _whole
        case ("driver",) | ("allowMultipleAllocations",):
            reads.add(path[0])
            if test:
                return lambda _: True
            return _driver if path[0] == "driver" else _multiple
        case ("attributes" | "capacity" as kind,):
            reads.add(f"{kind}:*")
            return (lambda _: True) if test else _all_domains(kind)
        case ("attributes" | "capacity" as kind, domain):
            reads.add(f"{kind}:{domain}/*")
            return (lambda _: True) if test else _one_domain(kind, domain)
        case ("attributes" | "capacity" as kind, domain, name):
            reads.add(f"{kind}:{domain}/{name}")
            if test:
                return _has(kind, domain, name)
            return _attribute(domain, name) if kind == "attributes" else _capacity(domain, name)
    return None


def _path(node: ast.Node) -> tuple[str, ...] | None:
    """('attributes', domain, id) for a constant path into the device."""
    parts: list[str] = []
    outermost = node
    while True:
        match node:
            case ast.Ident(name="device"):
                return tuple(reversed(parts)) if len(parts) <= 3 else None  # noqa: PLR2004 - kind, domain, id
            case ast.Select() if not node.optional and (not node.test or node is outermost):
                parts.append(node.field_name)
                node = node.operand
            case ast.Call(function="_[_]", args=[operand, ast.Literal(value=str() as key)]) if len(parts) < 2:  # noqa: PLR2004 - device itself cannot be indexed
                parts.append(key)
                node = operand
            case _:
                return None


def attribute_key(node: ast.Node, local_names: Collection[str]) -> tuple[str, str] | None:
    """('domain/id', id) where the node reads one attribute of the device, else None."""
    if "device" in local_names or (isinstance(node, ast.Select) and node.test):
        return None
    match _path(node):
        case ("attributes", domain, name):
            return f"{domain}/{name}", name
    return None


def reads_driver(node: ast.Node, local_names: Collection[str]) -> bool:
    """Whether the node is device.driver."""
    return "device" not in local_names and _path(node) == ("driver",) and not (isinstance(node, ast.Select) and node.test)


def _asked_for(node: ast.Node) -> tuple[str, ...] | None:
    """The path that '"id" in device.attributes[domain]' asks for: the same question as has()."""
    match node:
        case ast.Call(function="@in", args=[ast.Literal(value=str() as name), operand]):
            path = _path(operand)
            return (*path, name) if path is not None and len(path) == 2 else None  # noqa: PLR2004 - kind and domain
    return None


def _driver(frame: Frame) -> Any:
    return frame[1]


def _multiple(frame: Frame) -> Any:
    return frame[0].allow_multiple


def _whole(frame: Frame) -> Any:
    return {
        "driver": frame[1],
        "allowMultipleAllocations": frame[0].allow_multiple,
        "attributes": _nested_attributes(frame[0]),
        "capacity": _nested_capacity(frame[0], frame[1]),
    }


def _nested_attributes(device: Device) -> DomainMap:
    found = DomainMap()
    for name, value in zip(device.attributes.schema.names, device.attributes.values_, strict=True):
        domain, _, attribute = name.partition("/")
        found.setdefault(domain, {})[attribute] = value
    return found


def _nested_capacity(device: Device, driver: str) -> DomainMap:
    found = DomainMap()
    for name, capacity in device.capacity.items():
        domain, slash, bare = name.partition("/")
        if slash:
            found.setdefault(domain, {})[bare] = capacity.value
        else:
            found.setdefault(driver, {})[name] = capacity.value
    return found


def _all_domains(kind: str) -> Closure:
    if kind == "attributes":
        return lambda frame: _nested_attributes(frame[0])
    return lambda frame: _nested_capacity(frame[0], frame[1])


def _one_domain(kind: str, domain: str) -> Closure:
    everything = _all_domains(kind)
    return lambda frame: everything(frame)[domain]


def _attribute(domain: str, name: str) -> Closure:
    key = f"{domain}/{name}"

    def read(frame: Frame) -> Any:
        attributes = frame[0].attributes
        position = attributes.schema.index.get(key)
        if position is None:
            raise EvalError(f"no such key: {name}")
        return attributes.values_[position]

    return read


def _capacity(domain: str, name: str) -> Closure:
    key = f"{domain}/{name}"

    def read(frame: Frame) -> Any:
        capacity = frame[0].capacity
        found = capacity.get(key)
        if found is None and frame[1] == domain:
            found = capacity.get(name)
        if found is None:
            raise EvalError(f"no such key: {name}")
        return found.value

    return read


def _has(kind: str, domain: str, name: str) -> Closure:
    key = f"{domain}/{name}"
    if kind == "attributes":
        return lambda frame: key in frame[0].attributes.schema.index
    return lambda frame: key in frame[0].capacity or (frame[1] == domain and name in frame[0].capacity)
