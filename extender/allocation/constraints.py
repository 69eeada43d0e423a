"""The matchAttribute and distinctAttribute constraints. The search adds devices to them and removes devices.

Exactly one `remove` undoes a successful `add`, in reverse order. A failed `add` changes nothing. More devices never
repair a violated constraint. Unlike the reference, distinctAttribute compares each pair of devices, also within one
request (docs/decisions/0010).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from extender.api.claim_specs import ClaimSpec, Constraint, DeviceRequest
from extender.api.resource_slices import LIST_TYPES, Device
from extender.api.semver import Semver
from extender.base.berth_errors import InvalidClaim

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


class _AttributeConstraint(ABC):
    """A constraint on the values of one attribute. One `remove` undoes the last `add` that returned True."""

    def __init__(self, constraint: Constraint, *, lists: bool) -> None:
        self._constraint = constraint
        self._lists = lists
        self._added: list[TypedSet] = []

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
        entry = self._entry(values) if values is not None else None
        if entry is None:
            return False
        self._added.append(entry)
        return True

    def remove(self, request: str) -> None:
        """Undo the last `add`, which was for this request."""
        if self._constraint.covers(request):
            self._added.pop()

    @abstractmethod
    def _entry(self, values: TypedSet) -> TypedSet | None:
        """The state to keep for a device with these values; None if the constraint forbids the device."""


class MatchAttribute(_AttributeConstraint):
    """All covered devices have the same value. Lists must have at least one value in common."""

    def _entry(self, values: TypedSet) -> TypedSet | None:
        value_type, common = values
        if self._added:
            known, shared = self._added[-1]
            if value_type != known:
                return None
            common = shared & common
        return (value_type, common) if common else None


class DistinctAttribute(_AttributeConstraint):
    """No two covered devices have the same value. Lists must be disjoint."""

    def _entry(self, values: TypedSet) -> TypedSet | None:
        value_type, mine = values
        overlaps = any(other == value_type and not mine.isdisjoint(theirs) for other, theirs in self._added)
        return None if overlaps else values


def build_constraints(
    names: Iterable[str], specs: Iterable[ClaimSpec], *, lists: bool
) -> list[list[MatchAttribute | DistinctAttribute]]:
    """The objects for the constraints of each claim. Raises InvalidClaim for a kind that is not supported."""
    return [
        [_build(name, position, constraint, lists=lists) for position, constraint in enumerate(spec.constraints)]
        for name, spec in zip(names, specs, strict=True)
    ]


def _build(claim: str, position: int, constraint: Constraint, *, lists: bool) -> MatchAttribute | DistinctAttribute:
    if constraint.kind == "match":
        return MatchAttribute(constraint, lists=lists)
    if constraint.kind == "distinct":
        return DistinctAttribute(constraint, lists=lists)
    problem = (
        "has two attributes: the API server accepts one"
        if constraint.kind
        else "is empty (unsupported constraint type?)"
    )
    raise InvalidClaim(f"claim {claim}: spec.devices.constraints[{position}] {problem}")
