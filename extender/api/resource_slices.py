"""ResourceSlices, their pools and devices, and DeviceTaintRules (resource.k8s.io).

Each device stores a tuple of attribute values. It shares a schema (names and value types) with all devices that have
the same attributes: 40,000 devices of six models share six schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from cachetools import LRUCache

from extender.api.fields import Json, amount, flag, get, inner, integer, many, need, string, strings, wrong
from extender.api.nodes import NO_SELECTION, NodeSelection, Taint, decode_selection, decode_taint
from extender.api.quantity import Quantity
from extender.api.semver import Semver, parse_semver
from extender.base.berth_errors import WireError
from extender.base.text_limits import REASON_BYTES, cut

_Scalar = int | bool | str | Semver
Value = _Scalar | tuple[_Scalar, ...]
_SCALARS: dict[str, type] = {"int": int, "bool": bool, "string": str, "version": str}
_LISTS: dict[str, type] = {"ints": int, "bools": bool, "strings": str, "versions": str}
LIST_TYPES = frozenset(_LISTS)
_NODE_ALLOCATABLE = ("nodeAllocatableResources", "nodeAllocatableResourceMappings")  # in Kubernetes 1.37 and in 1.36
_SELECTOR_VALUES = 8192  # of all node selectors of a slice; a condition counts as one more
_PROBLEM_BYTES = 128  # of the reason why CEL cannot read an attribute
_MAX_ORDERS = 4096  # distinct sets of attribute names; a fleet has dozens
_COUNTER_USES = 4096  # distinct ones that are shared; the MIG devices of a node have some 100
_SchemaKey = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]  # the arguments of Schema


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

    __slots__ = ("__weakref__", "domains", "index", "names", "problems", "readable", "shared", "value_types")

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

    __slots__ = ("__weakref__", "_hash")
    _hash: int

    def __hash__(self) -> int:  # type: ignore[override] # dict declares None
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self.items()))
            return self._hash

    @property
    def steps(self) -> int:
        """The steps of a search that a look at them costs: some 3 us each. 0 for a few without policies."""
        return len(self) // _CAPACITIES_PER_STEP + sum(one.policy is not None for one in self.values())


NO_CAPACITY = Capacities()


class CounterUse(NamedTuple):
    """The counters that one device consumes from one counter set."""

    counter_set: str
    counters: tuple[tuple[str, int], ...]  # (name, nanos)
    compatibility_groups: tuple[str, ...] = ()  # KEP-5963


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


class PoolKey(NamedTuple):
    """Driver and name of a pool. Two drivers may use the same pool name."""

    driver: str
    name: str


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


class SliceDecoder:
    """Decodes slices. Equal schemas and capacities share one object as long as a device refers to it."""

    def __init__(self) -> None:
        self._schemas: WeakValueDictionary[_SchemaKey, Schema] = WeakValueDictionary()
        self._capacities: WeakValueDictionary[frozenset[tuple[str, Capacity]], Capacities] = WeakValueDictionary()
        self._orders: LRUCache[tuple[str, ...], tuple[tuple[str, str, bool], ...]] = LRUCache(_MAX_ORDERS)
        self._consumes: LRUCache[tuple[CounterUse, ...], tuple[CounterUse, ...]] = LRUCache(_COUNTER_USES)

    def decode(self, obj: Json) -> Slice:
        """Decode a ResourceSlice. If its content is not readable, `problem` says so, which makes the pool invalid.

        Raises WireError if the name, the driver or the pool is not readable.
        """
        metadata = inner(obj, "metadata", "")
        name = need(metadata, "name", "metadata")
        spec = inner(obj, "spec", "")
        driver = intern(need(spec, "driver", "spec"))
        pool = inner(spec, "pool", "spec")
        key = PoolKey(driver, intern(need(pool, "name", "spec.pool")))
        generation = integer(pool, "generation", "spec.pool")
        count = integer(pool, "resourceSliceCount", "spec.pool")
        version = string(metadata, "resourceVersion", "metadata")
        try:
            selection = decode_selection(spec, "spec")
            devices = many(spec, "devices", "spec", lambda item, path: self._device(item, path, driver))
            _check_selectors([selection, *(device.selection for device in devices)])
            return Slice(
                name,
                key,
                generation,
                count,
                selection=selection,
                per_device=flag(spec, "perDeviceNodeSelection", "spec"),
                devices=devices,
                counter_sets=many(spec, "sharedCounters", "spec", _counter_set),
                resource_version=version,
                skip_node_operations=tuple(strings(spec, "skipNodeOperations", "spec")),
            )
        except WireError as error:
            node = spec.get("nodeName")
            selection = NodeSelection(node_name=node if isinstance(node, str) else "", all_nodes=not node)
            return Slice(
                name, key, generation, count, selection, resource_version=version, problem=cut(str(error), REASON_BYTES)
            )

    def _device(self, obj: Json, path: str, driver: str) -> Device:
        # resource.k8s.io/v1 has the fields directly in the device; v1beta1 had them in `basic`.
        return Device(
            name=intern(need(obj, "name", path)),
            attributes=self._attributes(inner(obj, "attributes", path), driver),
            capacity=self._capacity(inner(obj, "capacity", path), f"{path}.capacity", driver),
            consumes=self._consumed(obj, path),
            selection=decode_selection(obj, path),
            binds_to_node=flag(obj, "bindsToNode", path),
            taints=many(obj, "taints", path, decode_taint),
            binding_conditions=tuple(strings(obj, "bindingConditions", path)),
            binding_failure_conditions=tuple(strings(obj, "bindingFailureConditions", path)),
            allow_multiple=flag(obj, "allowMultipleAllocations", path),
            node_allocatable=next((name for name in _NODE_ALLOCATABLE if inner(obj, name, path)), ""),
        )

    def _attributes(self, obj: Json, driver: str) -> Attributes:
        if not obj:
            return NO_ATTRIBUTES
        names = self._sorted_names(driver, obj)
        kinds, values, problems = [], [], []
        for name, full, is_shared in names:
            kind, value, problem = _attribute(obj[name])
            kinds.append(kind)
            values.append(intern(value) if is_shared and type(value) is str else value)
            if problem:
                problems.append((full, cut(f"attribute {name}: {problem}", _PROBLEM_BYTES)))
        key = (tuple([full for _, full, _ in names]), tuple(kinds), tuple(problems))
        schema = self._schemas.get(key)
        if schema is None:
            schema = self._schemas[key] = Schema(*key)
        return Attributes(schema, tuple(values))

    def _sorted_names(self, driver: str, obj: Json) -> tuple[tuple[str, str, bool], ...]:
        """(attribute name, the same qualified by the driver, whether other devices may have its value), sorted."""
        key = (driver, *obj)
        known = self._orders.get(key)
        if known is None:
            known = self._orders[key] = tuple(
                (name, intern(name if "/" in name else f"{driver}/{name}"), not is_identity(name))
                for name in sorted(obj)
            )
        return known

    def _consumed(self, obj: Json, path: str) -> tuple[CounterUse, ...]:
        """The MIG devices of all nodes consume the same: 120 of a node took 40 KiB."""
        found = many(obj, "consumesCounters", path, _counter_use)
        return self._consumes.setdefault(found, found) if found else ()

    def _capacity(self, obj: Json, path: str, driver: str) -> Capacities:
        if not obj:
            return NO_CAPACITY
        capacity: dict[str, Capacity] = {}
        for name, value in obj.items():
            own = own_name(name, driver)
            one = _one_capacity(value, f"{path}[{name}]", qualified=own != name)
            if one.qualified or own not in capacity:
                capacity[intern(own)] = one
        key = frozenset(capacity.items())
        known = self._capacities.get(key)
        if known is None:
            known = self._capacities[key] = Capacities(capacity)
        return known


def _attribute(obj: Any) -> tuple[str, Value, str]:
    """(kind, value, why CEL cannot use the attribute or '')."""
    if type(obj) is dict and len(obj) == 1:  # nearly all attributes
        ((kind, value),) = obj.items()
        if type(value) is _SCALARS.get(kind):
            return _parsed_version(kind, value)
    return _uncommon_attribute(obj)


def _uncommon_attribute(obj: Any) -> tuple[str, Value, str]:
    """See _attribute. A value of another type, such as one that a newer server knows, matters only where it is read."""
    fields = obj if type(obj) is dict else {}
    for kind, wanted in _SCALARS.items():
        value = fields.get(kind)
        if type(value) is wanted:
            return _parsed_version(kind, value)
    for kind, wanted in _LISTS.items():
        items = fields.get(kind)
        if type(items) is list and all(type(item) is wanted for item in items):
            parts = [_parsed_version(kind.removesuffix("s"), item) for item in items]
            problem = next((text for *_, text in parts if text), "")
            return kind, tuple(value for _, value, _ in parts), problem  # type: ignore[misc] # scalars only
    return "unknown", "", "unsupported attribute value"


def _parsed_version(kind: str, value: Any) -> tuple[str, Value, str]:
    if kind != "version":
        return kind, value, ""
    try:
        return kind, parse_semver(value), ""
    except ValueError as error:
        return kind, value, f"parse semantic version: {error}"


def _one_capacity(obj: Any, path: str, *, qualified: bool) -> Capacity:
    if type(obj) is not dict:
        raise wrong(path, dict, obj)
    policy = inner(obj, "requestPolicy", path)
    value = amount(obj.get("value"), f"{path}.value")
    return Capacity(value, _policy(policy, f"{path}.requestPolicy") if policy else None, qualified)


def _policy(obj: Json, path: str) -> RequestPolicy:
    limits, where = inner(obj, "validRange", path), f"{path}.validRange"
    values = get(obj, "validValues", list, path, [])
    return RequestPolicy(
        default=_optional_amount(obj, "default", path),
        valid_values=tuple(amount(value, f"{path}.validValues[{i}]") for i, value in enumerate(values)),
        range_min=_optional_amount(limits, "min", where),
        range_max=_optional_amount(limits, "max", where),
        range_step=_optional_amount(limits, "step", where),
        has_range=obj.get("validRange") is not None,
    )


def _optional_amount(obj: Json, key: str, path: str) -> Quantity | None:
    value = obj.get(key)
    return None if value is None else amount(value, f"{path}.{key}")


def _counter_use(obj: Json, path: str) -> CounterUse:
    counters = tuple(sorted(_counters(obj, path).items()))
    return CounterUse(intern(need(obj, "counterSet", path)), counters, tuple(strings(obj, "compatibilityGroups", path)))


def _counters(obj: Json, path: str) -> dict[str, int]:
    """The nanos of each counter of a counter set, or of a device's use of it. Raises WireError."""
    found: dict[str, int] = {}
    for name, item in inner(obj, "counters", path).items():
        where = f"{path}.counters[{name}]"
        if type(item) is not dict:
            raise wrong(where, dict, item)
        found[intern(name)] = amount(item.get("value"), where).nanos
    return found


def _check_selectors(selections: list[NodeSelection]) -> None:
    """Raise WireError if the node selectors are too long: an event of the slice indexes each of their values."""
    selectors = [selection.selector for selection in selections if selection.selector is not None]
    terms = [term for selector in selectors for term in selector.terms]
    if sum(1 + len(one.values) for term in terms for one in (*term.expressions, *term.fields)) > _SELECTOR_VALUES:
        raise WireError("spec", f"the node selectors have more than {_SELECTOR_VALUES} values")


def _counter_set(obj: Json, path: str) -> CounterSet:
    return CounterSet(intern(need(obj, "name", path)), _counters(obj, path))


def decode_taint_rule(obj: Json) -> TaintRule:
    """Decode a DeviceTaintRule.

    An empty selector matches every device, a missing one none. Nor does one with a removed alpha field (class, CEL).
    """
    metadata, spec = inner(obj, "metadata", ""), inner(obj, "spec", "")
    selector = inner(spec, "deviceSelector", "spec")
    known = {field: string(selector, field, "spec.deviceSelector") for field in ("driver", "pool", "device")}
    foreign = any(selector.get(field) for field in ("deviceClassName", "selectors"))
    return TaintRule(
        need(metadata, "name", "metadata"),
        decode_taint(inner(spec, "taint", "spec"), "spec.taint"),
        **known,
        has_selector=spec.get("deviceSelector") is not None and not foreign,
    )
