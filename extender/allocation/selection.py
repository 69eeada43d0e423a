"""The devices that match a request: the selectors of the class apply first, then the selectors of the request."""

from __future__ import annotations

from functools import partial

from extender.allocation.constraints import TypedSet, values_of
from extender.allocation.device_rules import Features
from extender.allocation.nodes import Inventory, PoolDevice
from extender.allocation.problem import Classes, Selection
from extender.api.claim_specs import DeviceRequest
from extender.api.device_classes import DeviceClass
from extender.api.resource_slices import Device
from extender.base.berth_errors import InvalidClaim
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.base.text_limits import cut
from extender.cel import CelError, CompileError
from extender.cel.dra import COST_LIMIT, Masks, compile_value, evaluated

# Of an evaluation of a derived attribute, 1.6 ms. The reference estimates all expressions of a claim together, and has
# the limit of one selector for them.
_DERIVED_UNITS = COST_LIMIT // 32
_ERROR_BYTES = 256  # of a CEL error, which can quote user input


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
    for where, expression in sources:
        if not masks.of(expression, slice_, deadline).error >> (bit - offset) & 1:
            continue
        text = masks.error(expression, pool_device.device, pool_device.driver, deadline)
        if text:
            return f"{where}: {cut(text, _ERROR_BYTES)}"
    return "selector failed"
