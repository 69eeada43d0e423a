"""The reason why a node is unschedulable: one reason, chosen from the causes that the search recorded."""

from __future__ import annotations

from collections import Counter

from extender.allocation import CauseRecorder, NodeInfo, Problem, Selection, field_of
from extender.model import NANO, NO_DEADLINE, Code, Deadline, DeviceRequest, Reason, lowest, members, own_name, readable
from extender.scoring import memory_bytes

# Causes by priority. If devices fail for several causes, the first one here is the reason: users can fix it best.
_CODES = (
    ("constraint", Code.CONSTRAINT),
    ("counters", Code.COUNTERS),
    ("capacity", Code.CAPACITY),
    ("undefined-capacity", Code.CAPACITY),
    ("tainted", Code.TAINTED),
)
_LEFT_OUT = {"compatibility-groups": Code.COMPATIBILITY_GROUPS, "node-allocatable": Code.NODE_ALLOCATABLE}


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
    most = (
        max((memory_bytes(node_info, bit) for bit in node_info.gpu_bits if bit >= 0), default=0)
        if expected_bytes
        else 0
    )
    if 0 < most < expected_bytes:
        return Reason(Code.TOO_SMALL, (f"{readable(expected_bytes * NANO)} of memory", readable(most * NANO)))
    # Counted once: five hundred requests may have twenty thousand causes.
    excluded = Counter((name, cause) for (name, _), (cause, _) in recorder.causes.items())
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            deadline.check()
            reason = _request(node_info, problem, name, request.alternatives[-1], excluded)
            if reason is not None:
                return reason
    return _by_cause(recorder)


def _request(
    node_info: NodeInfo, problem: Problem, claim: str, request: DeviceRequest, excluded: Counter[tuple[str, str]]
) -> Reason | None:
    selection = problem.select(claim, request)
    needed = request.count if request.mode == "ExactCount" else 1
    matching = selection.match
    left_out = _left_out(node_info, selection, request, needed)
    if left_out is not None:
        return left_out
    if not matching:
        return Reason(Code.NO_MATCH, (request.name,))
    if matching.bit_count() < needed:
        return Reason(Code.TOO_FEW, (request.name,))
    if request.admin_access:
        return None
    too_small = _too_small(node_info, matching, request)
    if too_small is not None:
        return too_small
    if (matching & ~node_info.busy).bit_count() < needed:
        only_held = (matching & ~(node_info.busy & ~node_info.held)).bit_count() >= needed
        return Reason(Code.HELD) if only_held else Reason(Code.IN_USE, (request.name,))
    return _by_own_cause(request, excluded, (matching & ~node_info.busy).bit_count() - needed)


def _left_out(node_info: NodeInfo, selection: Selection, request: DeviceRequest, needed: int) -> Reason | None:
    """The reason if the request fails because Berth does not support a feature of matching devices."""
    free, more = selection.match & ~node_info.busy, selection.unsupported & ~node_info.busy
    short = request.mode == "All" or not selection.match or free.bit_count() < needed <= (free | more).bit_count()
    if not selection.unsupported or not short:
        return None
    bit = lowest(selection.unsupported)
    code = next(_LEFT_OUT[cause] for cause, mask in node_info.inventory.unsupported if mask >> bit & 1)
    return Reason(code, (request.name, field_of(node_info.inventory, bit)))


def _too_small(node_info: NodeInfo, matching: int, request: DeviceRequest) -> Reason | None:
    """The reason if a requested capacity exceeds the total of every matching device, so waiting does not help."""
    if not request.capacity:
        return None
    # Devices of one model share their capacities.
    devices = node_info.inventory.devices
    found = {(devices[bit].id.driver, devices[bit].device.capacity) for bit in members(matching)}
    for name, asked in sorted(request.capacity.items()):
        known = (have[own] for driver, have in found if (own := own_name(name, driver)) in have)
        most = max((one.value.nanos for one in known), default=0)
        if 0 < most < asked.nanos:
            return Reason(Code.TOO_SMALL, (f"{readable(asked.nanos)} of {name}", readable(most)))
    return None


def _by_own_cause(request: DeviceRequest, excluded: Counter[tuple[str, str]], spare: int) -> Reason | None:
    """The first cause that excludes more free devices than the request can spare."""
    found = (code for cause, code in _CODES[1:] if excluded[request.name, cause] > spare)
    code = next(found, None)
    return Reason(code, (request.name,)) if code is not None else None


def _by_cause(recorder: CauseRecorder) -> Reason:
    attribute = max((detail for cause, detail in recorder.causes.values() if cause == "constraint"), default=None)
    if attribute is not None:
        return Reason(Code.CONSTRAINT, (attribute,))
    requests: dict[str, str] = {}  # cause to the last request by name
    for (name, _), (cause, _) in recorder.causes.items():
        requests[cause] = max(name, requests.get(cause, ""))
    for cause, code in _CODES[1:]:
        if cause in requests:
            return Reason(code, (requests[cause],))
    return Reason(Code.COMBINATION)
