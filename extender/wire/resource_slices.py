"""Decoding of ResourceSlices and DeviceTaintRules. It interns repeated names and values."""

from __future__ import annotations

from sys import intern
from typing import Any
from weakref import WeakValueDictionary

from cachetools import LRUCache

from extender.model import (
    NO_ATTRIBUTES,
    NO_CAPACITY,
    NO_SELECTION,
    REASON_BYTES,
    Attributes,
    Capacities,
    Capacity,
    CounterSet,
    CounterUse,
    Device,
    NodeSelection,
    PoolKey,
    Quantity,
    RequestPolicy,
    Schema,
    Slice,
    Taint,
    TaintRule,
    Value,
    WireError,
    cut,
    own_name,
    parse_semver,
)
from extender.wire.fields import Json, amount, amounts, get, many, need, node_selector, strings, wrong

_SCALARS: dict[str, type] = {"int": int, "bool": bool, "string": str, "version": str}
_LISTS: dict[str, type] = {"ints": int, "bools": bool, "strings": str, "versions": str}
_NODE_ALLOCATABLE = ("nodeAllocatableResources", "nodeAllocatableResourceMappings")  # in Kubernetes 1.37 and in 1.36
_SELECTOR_VALUES = 8192  # of all node selectors of a slice; a condition counts as one more
_ORDERS = 4096  # distinct sets of attribute names; a fleet has dozens


class SliceDecoder:
    """Decodes slices. Equal schemas and capacities share one object as long as a device refers to it."""

    def __init__(self, orders: int = _ORDERS) -> None:
        self._schemas: WeakValueDictionary[tuple[tuple[str, ...], tuple[str, ...], str], Schema] = WeakValueDictionary()
        self._capacities: WeakValueDictionary[frozenset[tuple[str, Capacity]], Capacities] = WeakValueDictionary()
        self._orders: LRUCache[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = LRUCache(orders)

    def interned(self) -> dict[str, int]:
        """The number of interned objects of each kind."""
        return {"schemas": len(self._schemas), "capacities": len(self._capacities), "orders": len(self._orders)}

    def decode(self, obj: Json) -> Slice:
        """Decode a ResourceSlice. If its content is not readable, `problem` says so, which makes the pool invalid.

        Raises WireError if the name, the driver or the pool is not readable.
        """
        metadata = get(obj, "metadata", dict, "", {})
        name = need(metadata, "name", "metadata")
        spec = get(obj, "spec", dict, "", {})
        driver = intern(need(spec, "driver", "spec"))
        pool = get(spec, "pool", dict, "spec", {})
        key = PoolKey(driver, intern(need(pool, "name", "spec.pool")))
        generation = get(pool, "generation", int, "spec.pool", 0)
        count = get(pool, "resourceSliceCount", int, "spec.pool", 0)
        version = get(metadata, "resourceVersion", str, "metadata", "")
        try:
            selection = _selection(spec, "spec")
            devices = many(spec, "devices", "spec", lambda item, path: self._device(item, path, driver))
            _check_selectors([selection, *(device.selection for device in devices)])
            return Slice(
                name,
                key,
                generation,
                count,
                selection=selection,
                per_device=get(spec, "perDeviceNodeSelection", bool, "spec", False),
                devices=devices,
                counter_sets=many(spec, "sharedCounters", "spec", _counter_set),
                resource_version=version,
                skip_node_operations=strings(spec, "skipNodeOperations", "spec"),
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
            attributes=self._attributes(get(obj, "attributes", dict, path, {}), f"{path}.attributes", driver),
            capacity=self._capacity(get(obj, "capacity", dict, path, {}), f"{path}.capacity", driver),
            consumes=many(obj, "consumesCounters", path, _counter_use),
            selection=_selection(obj, path),
            binds_to_node=get(obj, "bindsToNode", bool, path, False),
            taints=many(obj, "taints", path, _taint),
            binding_conditions=strings(obj, "bindingConditions", path),
            binding_failure_conditions=strings(obj, "bindingFailureConditions", path),
            allow_multiple=get(obj, "allowMultipleAllocations", bool, path, False),
            node_allocatable=next((name for name in _NODE_ALLOCATABLE if get(obj, name, dict, path, {})), ""),
        )

    def _attributes(self, obj: Json, path: str, driver: str) -> Attributes:
        if not obj:
            return NO_ATTRIBUTES
        names, qualified = self._sorted_names(driver, obj)
        kinds, values, problem = [], [], ""
        for name in names:
            kind, value, trouble = _attribute(obj[name], path, name)
            kinds.append(kind)
            values.append(value)
            problem = problem or (f"attribute {name}: {trouble}" if trouble else "")
        key = (qualified, tuple(kinds), problem)
        schema = self._schemas.get(key)
        if schema is None:
            schema = self._schemas[key] = Schema(*key)
        return Attributes(schema, tuple(values))

    def _sorted_names(self, driver: str, obj: Json) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(attribute names in alphabetical order, the same names qualified by the driver)."""
        key = (driver, *obj)
        known = self._orders.get(key)
        if known is None:
            names = tuple(sorted(obj))
            known = names, tuple(intern(name if "/" in name else f"{driver}/{name}") for name in names)
            self._orders[key] = known
        return known

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


def decode_taint_rule(obj: Json) -> TaintRule:
    """Decode a DeviceTaintRule. A selector by DeviceClass or CEL (removed alpha fields) matches no device."""
    metadata, spec = get(obj, "metadata", dict, "", {}), get(obj, "spec", dict, "", {})
    selector = get(spec, "deviceSelector", dict, "spec", {})
    known = {field: get(selector, field, str, "spec.deviceSelector", "") for field in ("driver", "pool", "device")}
    foreign = any(selector.get(field) for field in ("deviceClassName", "selectors"))
    return TaintRule(
        need(metadata, "name", "metadata"),
        _taint(get(spec, "taint", dict, "spec", {}), "spec.taint"),
        **known,
        selective=any(known.values()) and not foreign,
    )


def _selection(obj: Json, path: str) -> NodeSelection:
    selector = node_selector(obj, "nodeSelector", path)
    if selector is not None and len(selector.terms) > 1:
        raise WireError(f"{path}.nodeSelector", f"must have one term, has {len(selector.terms)}")
    found = NodeSelection(
        intern(get(obj, "nodeName", str, path, "")), get(obj, "allNodes", bool, path, False), selector
    )
    return found if found.is_set else NO_SELECTION  # most devices set no field


def _check_selectors(selections: list[NodeSelection]) -> None:
    """Raise WireError if the node selectors are too long: an event of the slice indexes each of their values."""
    selectors = [selection.selector for selection in selections if selection.selector is not None]
    terms = [term for selector in selectors for term in selector.terms]
    if sum(1 + len(one.values) for term in terms for one in (*term.expressions, *term.fields)) > _SELECTOR_VALUES:
        raise WireError("spec", f"the node selectors have more than {_SELECTOR_VALUES} values")


def _attribute(obj: Any, path: str, name: str) -> tuple[str, Value, str]:
    """(kind, value, why CEL cannot use the attribute or '')."""
    if type(obj) is dict and len(obj) == 1:  # nearly all attributes
        ((kind, value),) = obj.items()
        if type(value) is _SCALARS.get(kind):
            return _parsed_version(kind, intern(value) if type(value) is str else value)
    return _uncommon_attribute(obj, f"{path}[{name}]")


def _uncommon_attribute(obj: Any, path: str) -> tuple[str, Value, str]:
    if type(obj) is not dict:
        raise wrong(path, dict, obj)
    for kind, wanted in _SCALARS.items():
        value = obj.get(kind)
        if value is not None:
            if type(value) is not wanted:
                raise wrong(f"{path}.{kind}", wanted, value)
            return _parsed_version(kind, intern(value) if type(value) is str else value)
    for kind, wanted in _LISTS.items():
        items = obj.get(kind)
        if items is not None:
            if type(items) is not list or any(type(item) is not wanted for item in items):
                raise WireError(f"{path}.{kind}", f"must be a list of {wanted.__name__} values")
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
    policy = get(obj, "requestPolicy", dict, path, {})
    value = amount(obj.get("value"), f"{path}.value")
    return Capacity(value, _policy(policy, f"{path}.requestPolicy") if policy else None, qualified)


def _policy(obj: Json, path: str) -> RequestPolicy:
    limits = get(obj, "validRange", dict, path, {})
    values = get(obj, "validValues", list, path, [])
    return RequestPolicy(
        default=_optional_amount(obj, "default", path),
        valid_values=tuple(amount(v, f"{path}.validValues[{i}]") for i, v in enumerate(values)),
        range_min=_optional_amount(limits, "min", f"{path}.validRange"),
        range_max=_optional_amount(limits, "max", f"{path}.validRange"),
        range_step=_optional_amount(limits, "step", f"{path}.validRange"),
        has_range=obj.get("validRange") is not None,
    )


def _optional_amount(obj: Json, key: str, path: str) -> Quantity | None:
    value = obj.get(key)
    return None if value is None else amount(value, f"{path}.{key}")


def _taint(obj: Json, path: str) -> Taint:
    return Taint(need(obj, "key", path), get(obj, "value", str, path, ""), get(obj, "effect", str, path, ""))


def _counter_use(obj: Json, path: str) -> CounterUse:
    counters = tuple(sorted(_counters(obj, path).items()))
    return CounterUse(intern(need(obj, "counterSet", path)), counters, strings(obj, "compatibilityGroups", path))


def _counter_set(obj: Json, path: str) -> CounterSet:
    return CounterSet(intern(need(obj, "name", path)), _counters(obj, path))


def _counters(obj: Json, path: str) -> dict[str, int]:
    items = get(obj, "counters", dict, path, {})
    wrapped = {}
    for name, item in items.items():
        if type(item) is not dict:
            raise wrong(f"{path}.counters[{name}]", dict, item)
        wrapped[name] = item.get("value")
    return {intern(n): q.nanos for n, q in amounts({"counters": wrapped}, "counters", path).items()}
