"""The reason why a node is unschedulable: one reason, chosen from the causes that the search recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches

from extender.allocation import (
    CauseRecorder,
    NodeInfo,
    Problem,
    Selection,
    attribute_values,
    blocking_taint,
    refusal,
)
from extender.api.claim_specs import ClaimSpec, DeviceRequest
from extender.api.quantity import NANO, readable
from extender.api.reasons import FREEABLE_CODES, Code, Reason
from extender.api.resource_slices import Device, own_name
from extender.base.bits import lowest, members, union
from extender.base.deadline import NO_DEADLINE, Deadline

# Causes by priority. If devices fail for several causes, the first one here is the reason: users can fix it best.
_CODES = (
    ("counters", Code.COUNTERS),
    ("compatibility-groups", Code.COMPATIBILITY_GROUPS),
    ("capacity", Code.CAPACITY),
    ("undefined-capacity", Code.CAPACITY),
    ("tainted", Code.TAINTED),
)


def unschedulable_reason(
    node_info: NodeInfo,
    problem: Problem,
    recorder: CauseRecorder,
    expected_bytes: int,
    deadline: Deadline = NO_DEADLINE,
) -> Reason:
    """The reason why no solution exists: the cause of the first request that fails on its own, else a shared cause.

    Raises DeadlineExceeded.
    """
    inventory = node_info.inventory
    invalid_pool = next((pool for pool in inventory.pools if pool.trouble), None)
    if invalid_pool is not None:
        return Reason(Code.POOL_INVALID, (invalid_pool.trouble,))
    if not inventory.devices:
        updating = any(pool.incomplete for pool in inventory.pools)
        return Reason(Code.POOL_UPDATING if updating else Code.NO_DEVICES)
    # Counted once: five hundred requests may have twenty thousand causes.
    excluded = Counter((name, cause) for (name, _), (cause, _) in recorder.causes.items())
    passing: Reason | None = None
    together: dict[int, tuple[int, str]] = {}  # devices to their number that requests need, and the last request
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            deadline.check()
            selections = [problem.select(name, one) for one in request.alternatives]
            reason = _nearest(
                _too_small(node_info, selection, expected_bytes)
                or _alternative(node_info, problem, spec, one, selection, excluded)
                for one, selection in zip(request.alternatives, selections, strict=True)
            )
            if reason is not None and reason.code not in FREEABLE_CODES:
                return reason
            passing = passing or reason
            form = request.alternatives[0]
            if len(request.alternatives) == 1 and form.mode == "ExactCount" and not form.admin_access:
                match = selections[0].match
                together[match] = together.get(match, (0, ""))[0] + form.count, form.name
    return passing or _too_many_together(node_info, together) or _by_cause(recorder)


def _too_many_together(node_info: NodeInfo, together: dict[int, tuple[int, str]]) -> Reason | None:
    """The reason if requests for the same devices need more of them than there are, or than are free."""
    for match, (needed, request) in together.items():
        if match & ~node_info.inventory.simple:  # requests may share a device
            continue
        if match.bit_count() < needed:
            return Reason(Code.TOO_FEW_TOGETHER, (request,))
        if (match & ~node_info.busy).bit_count() < needed:
            only_held = (match & ~(node_info.busy & ~node_info.held)).bit_count() >= needed
            return Reason(Code.HELD) if only_held else Reason(Code.IN_USE, (request,))
    return None


def _too_small(node_info: NodeInfo, selection: Selection, expected_bytes: int) -> Reason | None:
    """The reason if the selectors match only GPUs, or parts of GPUs, with less memory than the pod expects."""
    if not selection.small or selection.match or selection.drifting:
        return None
    most = max(node_info.inventory.devices[bit].memory_bytes for bit in members(selection.small))
    return Reason(Code.TOO_SMALL, (f"{readable(expected_bytes * NANO)} of memory", readable(most * NANO)))


def _nearest(reasons: Iterable[Reason | None]) -> Reason | None:
    """The reason of a request by those of its alternatives: None if one has none, else the last that can pass."""
    found: Reason | None = None
    for reason in reasons:
        if reason is None:
            return None
        if found is None or reason.code in FREEABLE_CODES or found.code not in FREEABLE_CODES:
            found = reason
    return found


def _alternative(
    node_info: NodeInfo,
    problem: Problem,
    spec: ClaimSpec,
    request: DeviceRequest,
    selection: Selection,
    excluded: Counter[tuple[str, str]],
) -> Reason | None:
    matching, is_all = selection.match, request.mode == "All"
    needed = 1 if is_all else request.count
    left_out = _left_out(node_info, selection, request, needed)
    if left_out is not None:
        return left_out
    if matching.bit_count() < needed <= (matching | selection.drifting).bit_count():
        return Reason(Code.DRIFT, (request.name,))
    if not matching:
        return Reason(Code.NO_MATCH, (request.name,))
    if matching.bit_count() < needed:
        return Reason(Code.TOO_FEW, (request.name,))
    impossible = _impossible(problem, spec, request, matching, needed)
    if impossible is not None:
        return impossible
    if is_all:  # every device with room for the request
        matching = _union(bit for bit in members(matching) if problem.has_room(bit, request))
        needed = matching.bit_count()
        if not needed:
            return Reason(Code.CAPACITY, (request.name,))
    tolerated, idle = matching & ~_tainted(problem, matching, request), matching & ~node_info.busy
    if request.admin_access:
        return Reason(Code.TAINTED, (request.name,)) if tolerated.bit_count() < needed else None
    free = tolerated & idle
    if free.bit_count() < needed and (tolerated.bit_count() < needed or needed <= idle.bit_count()):
        return Reason(Code.TAINTED, (request.name,))
    if free.bit_count() < needed:
        only_held = (tolerated & ~(node_info.busy & ~node_info.held)).bit_count() >= needed
        return Reason(Code.HELD) if only_held else Reason(Code.IN_USE, (request.name,))
    return _by_own_cause(request, excluded, free.bit_count() - needed)


def _tainted(problem: Problem, devices: int, request: DeviceRequest) -> int:
    """Those of these devices that have a taint that the request does not tolerate."""
    found, rest = problem.inventory.devices, devices & ~problem.inventory.simple  # simple ones have no taint
    if not rest or not problem.features.taints:
        return 0
    return _union(bit for bit in members(rest) if blocking_taint(found[bit].device, request.tolerations) is not None)


def _union(bits: Iterable[int]) -> int:
    return union([1 << bit for bit in bits])


def _left_out(node_info: NodeInfo, selection: Selection, request: DeviceRequest, needed: int) -> Reason | None:
    """The reason if the request fails because Berth does not support a feature of matching devices."""
    most = (selection.match | selection.unsupported).bit_count()
    short = request.mode == "All" or not selection.match or selection.match.bit_count() < needed <= most
    if not selection.unsupported or not short:
        return None
    field = node_info.inventory.devices[lowest(selection.unsupported)].device.node_allocatable
    return Reason(Code.NODE_ALLOCATABLE, (request.name, field))


def _impossible(problem: Problem, spec: ClaimSpec, request: DeviceRequest, matching: int, needed: int) -> Reason | None:
    """The reason if too few of the matching devices could serve the request even when all are free."""
    if not request.capacity and not spec.constraints:
        return None
    devices = [problem.inventory.devices[bit] for bit in members(matching)]
    features = problem.features
    if request.capacity and features.consumable_capacity:
        # Devices of one model share their capacities.
        kinds = Counter((one.driver, one.device.capacity) for one in devices)
        pays = features.pays(request)
        for name, asked in sorted(request.capacity.items()) if pays else ():
            known = (have[own] for driver, have in kinds if (own := own_name(name, driver)) in have)
            most = max((one.value.nanos for one in known), default=0)
            if 0 < most < asked.nanos:
                return Reason(Code.TOO_SMALL, (f"{readable(asked.nanos)} of {name}", readable(most)))
        refusals = {
            (driver, have): refusal(have, driver, request.capacity, features, pays=pays) for driver, have in kinds
        }
        able = sum(count for kind, count in kinds.items() if not refusals[kind])
        if able < needed:
            why = min(filter(None, refusals.values()))
            return Reason(Code.REFUSED_AMOUNT, (_how_few(able), request.name, why))
    for constraint in spec.constraints:
        if not constraint.attribute or not constraint.covers(request.name):
            continue
        if constraint.attribute in dict(request.derived):  # computed, also where the devices lack it
            continue
        attribute, lists = constraint.attribute, features.list_attributes
        able = sum(attribute_values(one.device, attribute, one.driver, lists=lists) is not None for one in devices)
        if able < needed:
            hint = attributes_like(attribute, (one.device for one in devices))
            hint = f" ({able} of {len(devices)} devices {'has' if able == 1 else 'have'} it)" if able else hint
            return Reason(Code.NO_ATTRIBUTE, (_how_few(able), request.name, f"{attribute}{hint}"))
    return None


def attributes_like(name: str, devices: Iterable[Device]) -> str:
    """A hint about an attribute that devices lack: those with a similar name, as ' (they have DOMAIN/ID)'; or ''."""
    similar = similar_names(name, {full for one in {one.attributes.schema for one in devices} for full in one.names})
    hints = [] if "/" in name else ["the API server rejects a name without a domain"]
    hints += [f"they have {', '.join(similar)}"] if similar else []
    return f" ({'; '.join(hints)})" if hints else ""


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Those of the known names, each DOMAIN/ID, whose ID is most like that of another name, in any case."""
    by_id: dict[str, set[str]] = {}
    for full in known:
        by_id.setdefault(full.rpartition("/")[2].casefold(), set()).add(full)
    close = get_close_matches(name.rpartition("/")[2].casefold(), by_id, 1)
    return sorted(by_id[close[0]]) if close else []


def _how_few(devices: int) -> str:
    return "too few devices" if devices else "no device"


def _by_own_cause(request: DeviceRequest, excluded: Counter[tuple[str, str]], spare: int) -> Reason | None:
    """The first cause that excludes more free devices than the request can spare."""
    found = (code for cause, code in _CODES if excluded[request.name, cause] > spare)
    code = next(found, None)
    return Reason(code, (request.name,)) if code is not None else None


def _by_cause(recorder: CauseRecorder) -> Reason:
    attribute = max((detail for cause, detail in recorder.causes.values() if cause == "constraint"), default=None)
    if attribute is not None:
        return Reason(Code.CONSTRAINT, (attribute,))
    requests: dict[str, str] = {}  # cause to the last request by name
    for (name, _), (cause, _) in recorder.causes.items():
        requests[cause] = max(name, requests.get(cause, ""))
    for cause, code in _CODES:
        if cause in requests:
            return Reason(code, (requests[cause],))
    return Reason(Code.COMBINATION)
