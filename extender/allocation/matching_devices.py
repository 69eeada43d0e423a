"""The devices that match each request of a problem, found before the search, and the checks of the claims."""

from __future__ import annotations

from collections.abc import Callable

from extender.allocation import capacity, unsupported_devices
from extender.allocation.problem import Problem, Selection
from extender.allocation.search_observer import Observer
from extender.model import MAX_RESULTS, DeviceRequest, InvalidClaim, OutOfSteps, lowest, members

MAX_DEPTH = 700  # frames of Python's stack, which has 1,000, also for the callers


class MatchingDevices:
    """The devices that match each request. All searches of one problem share this object."""

    def __init__(self, problem: Problem, observer: Observer) -> None:
        self._problem = problem
        self._observer = observer
        self.selections: dict[tuple[int, str], Selection] = {}  # by claim and request name; empty until `find`
        self.mode_all: dict[tuple[int, str], list[int]] = {}  # the devices of the requests of mode All

    @property
    def can_fail(self) -> bool:
        """Whether a search can end in an error, because the reference reports the error."""
        return bool(self.mode_all) or any(selection.error for selection in self.selections.values())

    def find(self, spend: Callable[[int], None]) -> None:
        """Find the devices. `spend` counts steps of the search. Raises InvalidClaim, OutOfSteps or DeadlineExceeded."""
        depth = 0
        for claim, spec in enumerate(self._problem.specs):
            least = most = 0
            for request in spec.requests:
                counts = [self._count(claim, alternative, spend) for alternative in request.alternatives]
                least += min(counts)
                most += max(counts)
            # A claim takes a frame, each of its requests three at most, and each result two.
            depth += 1 + 3 * len(spec.requests) + 2 * min(most, MAX_RESULTS)
            if least > MAX_RESULTS:
                raise InvalidClaim(
                    f"claim {self._problem.names[claim]}: number of requested devices {least} "
                    f"exceeds the claim limit of {MAX_RESULTS}"
                )
        if depth > MAX_DEPTH:
            raise OutOfSteps

    def _count(self, claim: int, request: DeviceRequest, spend: Callable[[int], None]) -> int:
        """The number of devices that the request needs on this node. Raises InvalidClaim."""
        where = f"claim {self._problem.names[claim]}, request {request.name}"
        self._problem.features.check(request, where)
        selection = self.selections[claim, request.name] = self._problem.select(self._problem.names[claim], request)
        unsupported_devices.report(self._problem.inventory, request.name, selection.unsupported, self._observer)
        if request.mode == "ExactCount":
            return request.count
        if request.mode != "All":
            raise InvalidClaim(f"{where}: allocationMode {request.mode!r:.80} is not supported")
        found = self._all_devices(where, request, selection, spend)
        self.mode_all[claim, request.name] = found
        return len(found)

    def _all_devices(
        self, where: str, request: DeviceRequest, selection: Selection, spend: Callable[[int], None]
    ) -> list[int]:
        for pool in self._problem.inventory.pools:
            if pool.incomplete:
                raise InvalidClaim(
                    f"{where}: asks for all devices, but resource pool {'/'.join(pool.key)} is currently being updated"
                )
            if pool.trouble:
                raise InvalidClaim(
                    f"{where}: asks for all devices, but resource pool {'/'.join(pool.key)} is invalid: {pool.trouble}"
                )
        if selection.error:
            raise InvalidClaim(selection.explain(lowest(selection.error)))
        return [
            bit
            for bit in members(selection.match)
            if not selection.unsupported and self._has_capacity(bit, request, spend)
        ]

    def _has_capacity(self, bit: int, request: DeviceRequest, spend: Callable[[int], None]) -> bool:
        pool_device = self._problem.inventory.devices[bit]
        device, driver, features = pool_device.device, pool_device.id.driver, self._problem.features
        spend(1 + device.capacity.steps)
        return capacity.has_room(device, driver, request, self._problem.shares(bit), features)
