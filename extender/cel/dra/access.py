"""Closures that read a device. A known path is one dictionary look-up; any other read makes nested maps."""

from __future__ import annotations

from typing import Any

from extender.cel.errors import EvalError
from extender.cel.frame import FIRST_INPUT, Closure, Frame, spend
from extender.cel.specialize import is_among
from extender.cel.values import equal
from extender.model import Attributes

INPUTS = ("device", "driver")  # a Device, and the name of its driver
_ENTRY = 8  # units for each attribute or capacity of a map
DEVICE, DRIVER = FIRST_INPUT, FIRST_INPUT + 1  # the slots of the inputs


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


def always(_: Frame) -> bool:
    return True


def driver_name(frame: Frame) -> Any:
    return frame[DRIVER]


def driver_test(wanted: object) -> Closure:
    """device.driver == wanted."""
    return lambda frame: frame[DRIVER] == wanted


def allows_multiple(frame: Frame) -> Any:
    return frame[DEVICE].allow_multiple


def whole_device(frame: Frame) -> Any:
    """The device as the map that an expression sees."""
    return {
        "driver": frame[DRIVER],
        "allowMultipleAllocations": frame[DEVICE].allow_multiple,
        "attributes": _nested_attributes(frame),
        "capacity": _nested_capacity(frame),
    }


def all_domains(kind: str) -> Closure:
    """device.attributes or device.capacity."""
    if kind == "attributes":
        return lambda frame: _nested_attributes(frame)
    return lambda frame: _nested_capacity(frame)


def one_domain(kind: str, domain: str) -> Closure:
    """device.attributes[domain] or device.capacity[domain]."""
    domains = all_domains(kind)
    return lambda frame: domains(frame)[domain]


def attribute(domain: str, name: str) -> Closure:
    """device.attributes[domain].name. The closure raises EvalError where the device has no such attribute."""
    key = f"{domain}/{name}"

    def read(frame: Frame) -> Any:
        attributes = frame[DEVICE].attributes
        position = attributes.schema.readable.get(key)
        if position is None:
            raise _unread(attributes, key, name)
        return attributes.values_[position]

    return read


# The next two closures repeat the reading: most selectors are one of them, and a shared one takes 5 to 10 % longer.


def attribute_equals(domain: str, name: str, wanted: object) -> Closure:
    """device.attributes[domain].name == wanted. The closure raises EvalError where the device has no such attribute."""
    key, kind = f"{domain}/{name}", type(wanted)

    def test(frame: Frame) -> bool:
        attributes = frame[DEVICE].attributes
        try:
            value = attributes.values_[attributes.schema.readable[key]]
        except KeyError:
            raise _unread(attributes, key, name) from None
        return value == wanted if type(value) is kind else equal(value, wanted)

    return test


def attribute_is_in(domain: str, name: str, texts: frozenset[object]) -> Closure:
    """device.attributes[domain].name in texts. The closure raises EvalError where the device has no such attribute."""
    key = f"{domain}/{name}"

    def test(frame: Frame) -> bool:
        attributes = frame[DEVICE].attributes
        try:
            value = attributes.values_[attributes.schema.readable[key]]
        except KeyError:
            raise _unread(attributes, key, name) from None
        return value in texts if type(value) is str else is_among(frame, texts, value)

    return test


def _unread(attributes: Attributes, key: str, name: str) -> EvalError:
    """The error of a read of an attribute that the device does not have, or that CEL cannot read."""
    return EvalError(attributes.schema.problems.get(key) or f"no such key: {name}")


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
    spend(frame, _ENTRY * len(device.attributes.values_))
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
    spend(frame, _ENTRY * len(device.capacity))
    for name, amount in device.capacity.items():
        domain, slash, short = name.partition("/")
        if slash:
            found.setdefault(domain, {})[short] = amount.value
        else:
            found.setdefault(driver, {})[name] = amount.value
    return found
