"""Devices, slices and pools as resource.k8s.io/v1 describes them.

Each device stores a tuple of attribute values. It shares a schema (names and value types) with all devices that have
the same attributes: 40,000 devices of six models share six schemas. Versions follow semver.org 2.0.0, strictly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import Any, NamedTuple, TypeVar

from extender.model.node_selector import NodeSelector
from extender.model.quantity import Quantity, whole_units
from extender.model.text_limits import REMEMBERED_TEXT, shown

_NUMBER = r"(0|[1-9]\d*)"
_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_STRICT = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_UINT64, _MOST_DIGITS = 2**64, 20


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version. Comparisons ignore the build metadata, which `text` keeps."""

    text: str
    major: int
    minor: int
    patch: int
    key: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Semver) -> bool:
        return self.key < other.key


def parse_semver(text: str) -> Semver:
    """Parse '1.2.3-rc.1+build'. Raises ValueError, which quotes the text."""
    return _known_semver(text) if len(text) <= REMEMBERED_TEXT else _parsed(text)


@lru_cache(maxsize=4096)
def _known_semver(text: str) -> Semver:
    return _parsed(text)


def _parsed(text: str) -> Semver:
    match = _STRICT.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is not a semantic version (major.minor.patch)")
    *parts, prerelease = match.group(1, 2, 3, 4)
    numbers = [*parts, *(part for part in (prerelease or "").split(".") if part.isdigit())]
    if any(len(number) > _MOST_DIGITS or int(number) >= _UINT64 for number in numbers):
        raise ValueError(f"{shown(text)} has a number beyond 64 bits")
    major, minor, patch = map(int, parts)
    return Semver(text, major, minor, patch, (major, minor, patch, _prerelease_key(prerelease)))


def _prerelease_key(prerelease: str | None) -> tuple[object, ...]:
    """A sort key as in semver.org §11: a release is above all pre-releases, numbers are below words."""
    if prerelease is None:
        return (1,)
    parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in prerelease.split("."))
    return (0, parts)


T = TypeVar("T")
Scalar = int | bool | str | Semver
Value = Scalar | tuple[Scalar, ...]
LIST_TYPES = frozenset({"ints", "bools", "strings", "versions"})


class PoolKey(NamedTuple):
    """Driver and name of a pool. Two drivers may use the same pool name."""

    driver: str
    name: str


class DeviceId(NamedTuple):
    """Driver, pool and device name. The three together are unique in the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


def own_name(name: str, driver: str) -> str:
    """The name of a capacity without the domain if that is the driver's: from 1.38, both names mean the same."""
    return name.removeprefix(f"{driver}/")


def is_identity(name: str) -> bool:
    """Whether an attribute of this name identifies one device. Such attributes form no equivalence classes."""
    return "uuid" in name.lower() or "serial" in name.lower()


class Schema:
    """Names and value types of attributes. Devices with the same names and types share one object."""

    __slots__ = (
        "__weakref__",
        "domains",
        "index",
        "names",
        "problems",
        "readable",
        "shared",
        "value_types",
    )

    def __init__(
        self, names: tuple[str, ...], value_types: tuple[str, ...], problems: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.names = names
        self.value_types = value_types
        self.index = {name: position for position, name in enumerate(names)}
        self.domains = frozenset(name.partition("/")[0] for name in names)
        self.problems = dict(problems)  # name to why CEL cannot read the attribute; most schemas have none
        # Positions of the attributes that CEL can read.
        self.readable = {name: i for name, i in self.index.items() if name not in self.problems}
        # Positions of the attributes that do not identify the device.
        self.shared = tuple(i for i, name in enumerate(names) if not is_identity(name))


class Attributes(Mapping[str, Value]):
    """Attributes of a device: qualified name ('domain/id') to value. The order has no meaning."""

    __slots__ = ("schema", "values_")

    def __init__(self, schema: Schema, values: tuple[Value, ...]) -> None:
        self.schema = schema
        self.values_ = values

    def __getitem__(self, name: str) -> Value:
        return self.values_[self.schema.index[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.schema.names)

    def __len__(self) -> int:
        return len(self.values_)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attributes):
            return NotImplemented
        return (self.schema.names, self.schema.value_types, self.values_) == (
            other.schema.names,
            other.schema.value_types,
            other.values_,
        )

    def __hash__(self) -> int:
        return hash((self.schema.names, self.values_))

    def without_identity(self) -> tuple[object, ...]:
        """A key that is equal for devices which differ only in identifying attributes."""
        values = self.values_
        return (self.schema, *[values[i] for i in self.schema.shared])

    def typed(self, name: str) -> tuple[str, Value] | None:
        """(value type, value), or None if the device does not have the attribute."""
        position = self.schema.index.get(name)
        return None if position is None else (self.schema.value_types[position], self.values_[position])


NO_ATTRIBUTES = Attributes(Schema((), ()), ())


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """The rules by which a request for consumable capacity is rounded (resource.k8s.io CapacityRequestPolicy)."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    range_min: Quantity | None = None
    range_max: Quantity | None = None
    range_step: Quantity | None = None
    has_range: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """An amount that a device has, and the policy for requests of a part of it.

    `qualified`: the driver publishes the name with its own domain in front.
    """

    value: Quantity
    policy: RequestPolicy | None = None
    qualified: bool = False


_CAPACITIES_PER_STEP = 8


class Capacities(dict[str, Capacity]):
    """Capacities of a device by name. The object is hashable, so the code must not change it after creation."""

    __slots__ = ("__weakref__", "_hash", "_steps")
    _hash: int
    _steps: int

    def __hash__(self) -> int:  # type: ignore[override] # dict declares None
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self.items()))
            return self._hash

    @property
    def steps(self) -> int:
        """The steps of a search that a look at them costs: some 3 us each. 0 for a few without policies."""
        try:
            return self._steps
        except AttributeError:
            self._steps = len(self) // _CAPACITIES_PER_STEP + sum(one.policy is not None for one in self.values())
            return self._steps


NO_CAPACITY = Capacities()
_MEMORY = ("memory", "gpu.nvidia.com/memory")


def amount_of_memory(amounts: Mapping[str, T]) -> T | None:
    """The amount of memory, of capacities or amounts by name; None without one."""
    return next((amounts[name] for name in _MEMORY if name in amounts), None)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a device or of a node. `effect` is NoSchedule, NoExecute, or None for a device."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule. It adds its taint to every device that matches all fields of its selector which are set."""

    name: str
    taint: Taint
    driver: str = ""
    pool: str = ""
    device: str = ""
    has_selector: bool = True  # False: the rule matches no device (docs/decisions/0010)

    def matches(self, pool: PoolKey, device: str) -> bool:
        return self.matches_pool(pool) and self.device in ("", device)

    def matches_pool(self, pool: PoolKey) -> bool:
        """Whether the rule may match devices of a pool."""
        return self.has_selector and self.driver in ("", pool.driver) and self.pool in ("", pool.name)


class CounterUse(NamedTuple):
    """The counters that one device consumes from one counter set."""

    counter_set: str
    counters: tuple[tuple[str, int], ...]  # (name, nanos)
    compatibility_groups: tuple[str, ...] = ()  # KEP-5963


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """The nodes that can use a slice or a device. Exactly one field is set in a valid object."""

    node_name: str = ""
    all_nodes: bool = False
    selector: NodeSelector | None = None

    @property
    def is_set(self) -> bool:
        return bool(self.node_name) or self.all_nodes or self.selector is not None


NO_SELECTION = NodeSelection()


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice. The names of capacities are own names, see `own_name`."""

    name: str
    attributes: Attributes = NO_ATTRIBUTES
    capacity: Capacities = NO_CAPACITY
    consumes: tuple[CounterUse, ...] = ()
    selection: NodeSelection = NO_SELECTION
    binds_to_node: bool = False
    taints: tuple[Taint, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple: bool = False
    node_allocatable: str = ""  # the API field by which it consumes resources of the node (KEP-5517), or ''

    @property
    def memory_bytes(self) -> int:
        """The total memory of the device; 0 if it publishes none."""
        capacity = amount_of_memory(self.capacity)
        return whole_units(capacity.value.nanos) if capacity is not None else 0


@dataclass(frozen=True, slots=True)
class CounterSet:
    """Counters that the devices of a pool share: counter name to nanos."""

    name: str
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Slice:
    """A ResourceSlice. `problem` names the field that Berth cannot read; such a slice makes its pool invalid."""

    name: str
    pool: PoolKey
    generation: int
    slice_count: int
    selection: NodeSelection = NO_SELECTION
    per_device: bool = False
    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()
    resource_version: str = ""
    problem: str = ""
    skip_node_operations: tuple[str, ...] = ()  # KEP-5945; copied to allocation results


def newest_slices(slices: Iterable[Slice]) -> list[Slice]:
    """The slices of the newest generation of one pool."""
    known = list(slices)
    newest = max((slice_.generation for slice_ in known), default=0)
    return [slice_ for slice_ in known if slice_.generation == newest]


def is_complete(slices: Sequence[Slice]) -> bool:
    """Whether these are all slices of one generation of a pool: as many as each of them says."""
    return bool(slices) and all(slice_.slice_count == len(slices) for slice_ in slices)
