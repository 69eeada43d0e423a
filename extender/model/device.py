"""Devices, slices and pools as resource.k8s.io/v1 describes them.

Attributes are stored as one shared schema (names and kinds) and a tuple of values per device: forty thousand
devices of six models share six schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from extender.model.node_selector import NodeSelector
from extender.model.quantity import Quantity
from extender.model.semver import Semver

Scalar = int | bool | str | Semver
Value = Scalar | tuple[Scalar, ...]
LIST_KINDS = frozenset({"ints", "bools", "strings", "versions"})


class PoolKey(NamedTuple):
    """A pool is named within its driver: two drivers may use one pool name."""

    driver: str
    name: str


class DeviceId(NamedTuple):
    """Where a device is published; three strings, unique in the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


def is_identity(name: str) -> bool:
    """Whether an attribute of this name tells one device from every other, so that looking at it groups nothing."""
    return "uuid" in name.lower() or "serial" in name.lower()


class Schema:
    """Names and kinds of the attributes of a device model; shared by all devices that have the same."""

    __slots__ = ("__weakref__", "domains", "has_lists", "index", "irregular", "kinds", "names", "problem", "shared")

    def __init__(self, names: tuple[str, ...], kinds: tuple[str, ...], problem: str = "") -> None:
        self.names = names
        self.kinds = kinds
        self.index = {name: position for position, name in enumerate(names)}
        self.domains = frozenset(name.partition("/")[0] for name in names)
        self.has_lists = not LIST_KINDS.isdisjoint(kinds)
        self.problem = problem  # why no expression can be evaluated on such a device, or ""
        self.irregular = self.has_lists or bool(problem)  # expressions need a second look
        self.shared = tuple(
            i for i, name in enumerate(names) if not is_identity(name)
        )  # positions of all but identities


class Attributes(Mapping[str, Value]):
    """Qualified name ('domain/id') to value, in no particular order."""

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
        return (self.schema.names, self.schema.kinds, self.values_) == (
            other.schema.names,
            other.schema.kinds,
            other.values_,
        )

    def __hash__(self) -> int:
        return hash((self.schema.names, self.values_))

    def without_identity(self) -> tuple[object, ...]:
        """Equal for devices that differ in identity alone."""
        values = self.values_
        return (self.schema, *[values[i] for i in self.schema.shared])

    def typed(self, name: str) -> tuple[str, Value] | None:
        """(kind, value) or None where the device does not have the attribute."""
        position = self.schema.index.get(name)
        return None if position is None else (self.schema.kinds[position], self.values_[position])


NO_ATTRIBUTES = Attributes(Schema((), ()), ())


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How a request for a consumable capacity is rounded (resource.k8s.io CapacityRequestPolicy)."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    range_min: Quantity | None = None
    range_max: Quantity | None = None
    range_step: Quantity | None = None
    has_range: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """An amount that a device has, and the policy by which shares of it may be asked for."""

    value: Quantity
    policy: RequestPolicy | None = None


class Capacities(dict[str, Capacity]):
    """What a device has by name, never changed after it is made, so that it can be part of a key."""

    __slots__ = ("__weakref__", "_hash")
    _hash: int

    def __hash__(self) -> int:  # type: ignore[override] # dict declares None
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self.items()))
            return self._hash


NO_CAPACITY = Capacities()


@dataclass(frozen=True, slots=True)
class Taint:
    """Why a device should not be used; effects NoSchedule, NoExecute or None."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule: its taint is added to every device that all given selectors name."""

    name: str
    taint: Taint
    driver: str = ""
    pool: str = ""
    device: str = ""
    selective: bool = True  # False: no selector at all, which matches nothing (docs/decisions/0010)

    def matches(self, pool: PoolKey, device: str) -> bool:
        return self.selective and all(
            not wanted or wanted == have
            for wanted, have in ((self.driver, pool.driver), (self.pool, pool.name), (self.device, device))
        )


class CounterUse(NamedTuple):
    """What one device takes from one counter set."""

    counter_set: str
    counters: tuple[tuple[str, int], ...]  # name, nanos
    compatibility_groups: tuple[str, ...] = ()  # KEP-5963; read to leave such devices out


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """Which nodes reach a slice or a device; exactly one field is set in a valid object."""

    node_name: str = ""
    all_nodes: bool = False
    selector: NodeSelector | None = None

    @property
    def is_set(self) -> bool:
        return bool(self.node_name) or self.all_nodes or self.selector is not None


ANYWHERE = NodeSelection()


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice. Capacity names are kept as published (bare or qualified)."""

    name: str
    attributes: Attributes = NO_ATTRIBUTES
    capacity: Capacities = NO_CAPACITY
    consumes: tuple[CounterUse, ...] = ()
    selection: NodeSelection = ANYWHERE
    binds_to_node: bool = False
    taints: tuple[Taint, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple: bool = False
    node_allocatable: str = ""  # the field by which it takes resources of the node (KEP-5517), '' where it takes none


@dataclass(frozen=True, slots=True)
class CounterSet:
    """Counters that the devices of a pool share; nanos per counter name."""

    name: str
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Slice:
    """A ResourceSlice. `problem` names the field that made it unreadable; such a slice makes its pool invalid."""

    name: str
    pool: PoolKey
    generation: int
    slice_count: int
    selection: NodeSelection = ANYWHERE
    per_device: bool = False
    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()
    resource_version: str = ""
    problem: str = ""
    skip_node_operations: tuple[str, ...] = ()  # KEP-5945; copied to allocation results
