"""Which devices a request can have: those that its selectors and the class's match, as far as the constraints allow.

The selectors of the class apply first. The search adds devices to the matchAttribute and distinctAttribute constraints,
and removes devices. Exactly one `remove` undoes a successful `add`, in reverse order. A failed `add` changes nothing.
More devices never repair a violated constraint. Unlike the reference, distinctAttribute compares each pair of devices,
also within one request (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from extender.allocation.device_rules import Features
from extender.allocation.nodes import Inventory, PoolDevice
from extender.api.claim_specs import Constraint, DeviceRequest
from extender.api.device_classes import DeviceClass
from extender.api.resource_slices import LIST_TYPES, Device
from extender.api.semver import Semver
from extender.base.berth_errors import InvalidClaim
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.base.text_limits import cut
from extender.cel import CelError, CompileError
from extender.cel.dra import COST_LIMIT, Masks, compile_value, evaluated

Classes = Callable[[str], DeviceClass | None]  # by name
TypedSet = tuple[str, frozenset[object]]
_SCALAR_OF = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_KINDS: dict[type, str] = {int: "int", bool: "bool", str: "string", Semver: "version"}
UNREADABLE: TypedSet = ("unknown", frozenset())


def attribute_values(device: Device, name: str, driver: str, *, lists: bool) -> TypedSet | None:
    """(scalar type, set of values) of an attribute; None if it is absent.

    UNREADABLE if its type is unknown, or if it is a list while `lists` is False.
    """
    found = device.attributes.typed(name)
    if found is None and "/" not in name:
        found = device.attributes.typed(f"{driver}/{name}")
    if found is None:
        return None
    value_type, value = found
    if value_type == "unknown":
        return UNREADABLE
    if value_type in LIST_TYPES:
        if not lists:
            return UNREADABLE
        return _SCALAR_OF[value_type], frozenset(map(_plain, value))  # type: ignore[arg-type] # the type of a tuple
    return value_type, frozenset((_plain(value),))


def values_of(value: object) -> TypedSet:
    """The result of an expression as (scalar type, set of values). UNREADABLE for other types, and for a mixed list."""
    items = value if isinstance(value, list | tuple) else (value,)
    kinds = {_KINDS.get(type(item), "unknown") for item in items} or {"string"}
    return UNREADABLE if len(kinds) > 1 or "unknown" in kinds else (kinds.pop(), frozenset(map(_plain, items)))


def _plain(value: object) -> object:
    # As in the reference, versions are compared as strings. Callers also compare the type, so True does not equal 1.
    return value.text if isinstance(value, Semver) else value


class AttributeConstraint:
    """A constraint on the values of one attribute. One `remove` undoes the last `add` that returned True.

    matchAttribute: all covered devices have the same value; of lists, at least one value in common. distinctAttribute:
    no two have the same value; lists are disjoint.
    """

    def __init__(self, claim: str, position: int, constraint: Constraint, *, lists: bool) -> None:
        """Raises InvalidClaim for a kind that is not supported."""
        if constraint.kind not in ("match", "distinct"):
            two, none = "has two attributes: the API server accepts one", "is empty (unsupported constraint type?)"
            why = two if constraint.kind else none
            raise InvalidClaim(f"claim {claim}: spec.devices.constraints[{position}] {why}")
        self._constraint = constraint
        self._lists = lists
        self._added: list[TypedSet] = []  # of a matchAttribute, what the devices so far have in common

    def add(self, request: DeviceRequest, device: Device, driver: str, derive: Callable[[str], TypedSet]) -> bool:
        """Whether the constraint allows one more device; if so, the device counts from now on.

        `derive` gives the value of an expression on the device: an attribute that the request derives hides one that
        the driver publishes. Raises InvalidClaim for a device whose value has a type that Berth does not know.
        """
        if not self._constraint.covers(request.name):
            return True
        attribute = self._constraint.attribute
        expression = dict(request.derived).get(attribute)
        if expression is not None:
            values: TypedSet | None = derive(expression)
        else:
            values = attribute_values(device, attribute, driver, lists=self._lists)
        if values == UNREADABLE:
            raise InvalidClaim(
                f"request {request.name}: device {device.name} of driver {driver}: attribute {attribute}, which a "
                "constraint compares: unsupported attribute value"
            )
        entry = self._entry(*values) if values is not None else None
        if entry is None:
            return False
        self._added.append(entry)
        return True

    def remove(self, request: str) -> None:
        """Undo the last `add`, which was for this request."""
        if self._constraint.covers(request):
            self._added.pop()

    def _entry(self, kind: str, values: frozenset[object]) -> TypedSet | None:
        """What to keep for a device with these values; None if the constraint forbids the device."""
        if self._constraint.kind == "distinct":
            overlaps = any(other == kind and not values.isdisjoint(theirs) for other, theirs in self._added)
            return None if overlaps else (kind, values)
        if self._added:
            known, shared = self._added[-1]
            values = shared & values if kind == known else frozenset()
        return (kind, values) if values else None


# -- selectors ---------------------------------------------------------------------------------------------------------

# Of an evaluation of a derived attribute, 1.6 ms. The reference estimates all expressions of a claim together, and has
# the limit of one selector for them.
_DERIVED_UNITS = COST_LIMIT // 32
_ERROR_BYTES = 256  # of a CEL error, which can quote user input


class Selection(NamedTuple):
    """Masks of devices: `match` may serve the request; a selector failed on `error`."""

    match: int
    error: int
    explain: Callable[[int], str]  # bit of `error` to the text of the failure
    unsupported: int = 0  # devices that match but have unsupported fields (Inventory.unsupported)
    drifting: int = 0  # devices that match but are left out, because their memory is in use without a claim
    small: int = 0  # devices that match but are left out, because they have less memory than the pod expects
    least_memory: int = 0  # bytes of memory that the selectors demand of each device; 0 for nothing


def _find_class(claim: str, request: DeviceRequest, classes: Classes) -> DeviceClass:
    """The class of a request. Raises InvalidClaim if the request names none, or if it is missing or not readable."""
    if not request.class_name:
        raise InvalidClaim(
            f"claim {claim}, request {request.name}: deviceClassName is empty (unsupported request type?)"
        )
    found = classes(request.class_name)
    if found is None:
        raise InvalidClaim(f"claim {claim}, request {request.name}: device class {request.class_name} does not exist")
    if found.problem:
        raise InvalidClaim(f"device class {found.name}: {found.problem}")
    return found


def select(
    claim: str,
    request: DeviceRequest,
    classes: Classes,
    inventory: Inventory,
    masks: Masks,
    features: Features,
    deadline: Deadline = NO_DEADLINE,
) -> Selection:
    """Evaluate the selectors of a request. Each one sees only the devices that match all selectors before it.

    Raises InvalidClaim if the class does not exist, and DeadlineExceeded.
    """
    class_ = _find_class(claim, request, classes)
    deadline.check()
    sources = [(f"class {class_.name}: selector #{i}", text) for i, text in enumerate(class_.selectors)]
    sources += [
        (f"claim {claim}: request {request.name}: selector #{i}", text) for i, text in enumerate(request.selectors)
    ]
    alive = error = least_memory = 0
    for slice_, offset in inventory.offsets:
        part = (1 << len(slice_.devices)) - 1
        if not features.binding_conditions:
            part &= ~_with_binding_conditions(slice_.devices)
        failed = 0
        for _, expression in sources:
            if not part:
                break
            mask = masks.of(expression, slice_, deadline)
            failed |= part & mask.error
            part &= mask.match
            least_memory = max(least_memory, mask.least_memory)
        alive |= part << offset
        error |= failed << offset
    matching = alive & inventory.reachable
    left_out = 0
    for _, devices in inventory.unsupported:
        left_out |= matching & devices
    explain = partial(_explained, sources, inventory, masks, deadline)
    return Selection(matching & ~left_out, error, explain, left_out, least_memory=least_memory)


def derived_value(masks: Masks, deadline: Deadline, expression: str, pool_device: PoolDevice) -> TypedSet:
    """The value on a device of an attribute that a request derives. Raises InvalidClaim and DeadlineExceeded."""
    compiled, driver = masks.compiled(compile_value, expression, deadline), pool_device.driver
    if isinstance(compiled, CompileError):
        raise InvalidClaim(
            f"derived attribute {cut(expression)!r}: CEL compile error: {cut(str(compiled), _ERROR_BYTES)}"
        )
    try:
        return values_of(evaluated(compiled.value, pool_device.device, driver, deadline, _DERIVED_UNITS))
    except CelError as error:
        where = f"derived attribute {cut(expression)!r} on device {pool_device.device.name} of driver {driver}"
        raise InvalidClaim(f"{where}: CEL runtime error: {cut(str(error), _ERROR_BYTES)}") from None


def _with_binding_conditions(devices: tuple[Device, ...]) -> int:
    """Mask of the devices that no request may have while the feature is off."""
    return sum(1 << position for position, device in enumerate(devices) if device.binding_conditions)


def _explained(sources: list[tuple[str, str]], inventory: Inventory, masks: Masks, deadline: Deadline, bit: int) -> str:
    """The text of the first selector that failed on a device. Raises DeadlineExceeded."""
    pool_device = inventory.devices[bit]
    slice_, offset = next((s, o) for s, o in reversed(inventory.offsets) if o <= bit)
    where, expression = next(one for one in sources if masks.of(one[1], slice_, deadline).error >> (bit - offset) & 1)
    text = masks.error(expression, pool_device.device, pool_device.driver, deadline)
    return f"{where}: {cut(text, _ERROR_BYTES)}"
