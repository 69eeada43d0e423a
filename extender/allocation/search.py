"""Depth-first search over claims, requests, alternatives and devices.

Order and pruning are those of Kubernetes' structured allocator, which this package calls the reference. First the
devices that match each request are found, and the claims are checked (MatchingDevices). The first full solution wins.
The devices of a request are combinations, not permutations. A claim that would exceed 32 results goes back to the
nearest alternative. `Search.among` limits the search to a set of devices, so that a caller can try preferred sets one
after the other (choose.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import NamedTuple

from extender.allocation.counters import Counters, ShortOfCounters, is_short, report_short
from extender.allocation.device_rules import NOTHING, blocking_taint, consumption, fits, refusal, short_of
from extender.allocation.nodes import SHARES, FabricPartitions
from extender.allocation.problem import (
    EVERY_DEVICE,
    Allowed,
    CauseRecorder,
    Pick,
    Problem,
    Solution,
    config_entries,
)
from extender.allocation.selection import AttributeConstraint, Selection, TypedSet
from extender.api.claim_specs import DeviceRequest
from extender.api.quantity import Quantity
from extender.api.resource_claims import MAX_CONFIG, MAX_RESULTS
from extender.api.resource_slices import Device
from extender.base.berth_errors import InvalidClaim, OutOfSteps
from extender.base.bits import lowest, members, union
from extender.base.deadline import NO_DEADLINE, Deadline

MAX_STEPS = 20_000  # steps per node; about 50 ms, far above the need of real claims (docs/allocation.md)
# What one step covers, some 3 us, so that no claim makes a step take long; devices of real drivers need one step.
_USUAL_CONSTRAINTS = 4  # of a claim; each further one costs a step per device
_DERIVED_STEPS = 20  # of an attribute that a request derives, once per device
_TOLERATED_PER_STEP = 32  # pairs of a taint and a toleration
_COUNTERS_PER_STEP = 8
_CHECK_STEPS = 32  # steps between two checks of the deadline

MAX_DEPTH = 700  # frames of Python's stack, which has 1,000, also for the callers


class _Partitions(NamedTuple):
    """The partitions that a claim can get if no other claim of the pod has a device."""

    fitting: tuple[int, ...]
    end: int  # position of the first request after all those that can have a GPU


class MatchingDevices:
    """The devices that match each request. All searches of one problem share this object."""

    def __init__(self, problem: Problem, recorder: CauseRecorder | None) -> None:
        self._problem = problem
        self._recorder = recorder
        self.selections: dict[tuple[int, str], Selection] = {}  # by claim and request name; empty until `find`
        self.mode_all: dict[tuple[int, str], list[int]] = {}  # the devices of the requests of mode All
        self.partitions: list[_Partitions] = []  # by claim; empty if a claim can have any set of GPUs

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
        if (partitions := self._problem.fabric_partitions) is not None:
            self.partitions = [self._partitions(claim, partitions) for claim in range(len(self._problem.specs))]

    def _partitions(self, claim: int, partitions: FabricPartitions) -> _Partitions:
        """Without it, a search for 8 of 16 GPUs tries thousands of sets, and each set with all sets of NICs."""
        obtainable = least = most = end = 0
        for position, request in enumerate(self._problem.specs[claim].requests):
            found = [self._gpus(claim, option, partitions.gpus) for option in request.alternatives]
            least += min(fewest for _, fewest, _ in found)
            most += max(count for _, _, count in found)
            obtainable |= union([gpus for gpus, _, _ in found])
            if any(count for _, _, count in found):
                end = position + 1
        return _Partitions(partitions.within(obtainable, least, most), end)

    def _gpus(self, claim: int, request: DeviceRequest, gpus: int) -> tuple[int, int, int]:
        """(the GPUs that the request could have, the fewest that it takes, the most)."""
        match, devices = self.selections[claim, request.name].match, self._problem.inventory.devices
        matching = match & gpus
        wanted = self.mode_all.get((claim, request.name))
        count = (request.count if wanted is None else len(wanted)) if matching else 0
        # Several picks may be shares of one GPU.
        is_sure = matching == match and not any(devices[bit].device.allow_multiple for bit in members(match))
        return (
            matching if request.admin_access else matching & ~self._problem.taken,
            count if is_sure else 0,
            count,
        )

    def _count(self, claim: int, request: DeviceRequest, spend: Callable[[int], None]) -> int:
        """The number of devices that the request needs on this node. Raises InvalidClaim."""
        where = f"claim {self._problem.names[claim]}, request {request.name}"
        self._problem.features.check(request, where)
        selection = self.selections[claim, request.name] = self._problem.select(self._problem.names[claim], request)
        if self._recorder is not None:
            self._report_unsupported(request, selection, self._recorder)
        if request.mode == "ExactCount":
            return request.count
        if request.mode != "All":
            raise InvalidClaim(f"{where}: allocationMode {request.mode!r:.80} is not supported")
        found = self._all_devices(where, request, selection, spend)
        self.mode_all[claim, request.name] = found
        return len(found)

    def _report_unsupported(self, request: DeviceRequest, selection: Selection, recorder: CauseRecorder) -> None:
        """The request matches these devices, but Berth does not support a field of them, and never allocates them."""
        for cause, mask in self._problem.inventory.unsupported:
            for bit in members(selection.unsupported & mask):
                field = self._problem.inventory.devices[bit].device.node_allocatable
                recorder.rejected(request.name, bit, cause, field)

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
        found = []
        for bit in members(selection.match) if not selection.unsupported else ():
            spend(1 + self._problem.inventory.devices[bit].device.capacity.steps)
            if self._problem.has_room(bit, request):
                found.append(bit)
        return found


class Outcome(Enum):
    """How a branch of the search ended."""

    DONE = 0
    NO = 1
    TOO_MANY = 2  # the claim would exceed 32 results; only an alternative with fewer devices helps


class Search:
    """One search; each run needs a new object. `steps` counts its work.

    After `max_steps` the search fails for good. After DeadlineExceeded, a later attempt can repeat the search.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        max_steps: int = MAX_STEPS,
        recorder: CauseRecorder | None = None,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:
        self._problem = problem
        self._max_steps = max_steps
        self._deadline = deadline
        self._recorder = recorder
        self._allowed = EVERY_DEVICE
        self._fixed: tuple[tuple[int, ...], ...] | None = None
        self.steps = 0
        self.easy_steps = 200  # after them, the search checks once if the shared counters can suffice
        self._in_use = problem.taken
        self._chosen = 0
        self._chosen_by_claim = [0] * len(problem.specs)
        self._counters = Counters(problem.inventory, problem.allocated_state)
        self._consumed_here: dict[int, dict[str, int]] = {}
        self._picks: list[list[Pick]] = [[] for _ in problem.specs]
        self._alternatives: list[list[int]] = [[0] * len(spec.requests) for spec in problem.specs]
        self._matching = MatchingDevices(problem, recorder)
        self._selections, self._mode_all = self._matching.selections, self._matching.mode_all
        lists = problem.features.list_attributes
        self._constraints = [
            [AttributeConstraint(name, position, one, lists=lists) for position, one in enumerate(spec.constraints)]
            for name, spec in zip(problem.names, problem.specs, strict=True)
        ]
        self._derived_values: dict[tuple[str, int], TypedSet] = {}  # by expression and bit
        self._config_excess = ""  # why the API server would refuse the config of an allocation that was tried
        self._steps_per_try = [1 + max(len(found) - _USUAL_CONSTRAINTS, 0) for found in self._constraints]

    def among(self, allowed: Allowed, alternatives: tuple[tuple[int, ...], ...], max_steps: int) -> Search:
        """A search of the same problem, limited to the devices `allowed` and these alternatives. Call `run` first."""
        found = Search(self._problem, max_steps=max_steps, deadline=self._deadline)
        found._allowed, found._fixed = allowed, alternatives
        found._matching, found._selections, found._mode_all = self._matching, self._selections, self._mode_all
        found._derived_values = self._derived_values
        return found

    def run(self) -> Solution | None:
        """The first solution, or None. Raises InvalidClaim, OutOfSteps or DeadlineExceeded."""
        if not self._selections:
            self._matching.find(self._spend)
        try:
            if self._is_hopeless() or self._request(0, 0) is not Outcome.DONE:
                if self._config_excess:
                    raise InvalidClaim(self._config_excess)
                return None
        except ShortOfCounters:
            return None
        return Solution(tuple(map(tuple, self._picks)), tuple(map(tuple, self._alternatives)))

    # -- fast rejection --------------------------------------------------------------------------------------

    def _is_hopeless(self) -> bool:
        """Whether some request has too few free devices, alone or with those that match the same devices.

        Then no solution exists. False if the search can end in an error, because the reference reports the error.
        """
        if self._matching.can_fail:
            return False
        together: dict[int, int] = {}  # devices that are taken once to their number that requests need
        for claim, spec in enumerate(self._problem.specs):
            for request in spec.requests:
                if all(self._free(claim, form).bit_count() < form.count for form in request.alternatives):
                    return True
                form = request.alternatives[0]
                free, simple = self._free(claim, form), self._problem.inventory.simple
                if len(request.alternatives) == 1 and not form.admin_access and not free & ~simple:
                    together[free] = together.get(free, 0) + form.count
        return any(count > free.bit_count() for free, count in together.items())

    def _check_counters(self) -> None:
        """Raises ShortOfCounters if the sums of counters prove that there is no solution."""
        forms = [
            [(form.name, form.count, self._free(claim, form)) for form in request.alternatives]
            for claim, spec in enumerate(self._problem.specs)
            for request in spec.requests
        ]
        inventory, allocated_state = self._problem.inventory, self._problem.allocated_state
        wanted = union([bits for alternatives in forms for _, _, bits in alternatives])
        counters = Counters(inventory, allocated_state)
        if not self._counter_sums_apply(wanted) or not is_short(forms, inventory, counters, self._deadline):
            return
        if self._recorder is not None:
            report_short(forms, Counters(inventory, allocated_state), self._recorder)
        raise ShortOfCounters

    def _counter_sums_apply(self, wanted: int) -> bool:
        """Whether counters count, each wanted device is taken at most once, and the search cannot end in an error."""
        if self._matching.can_fail or not self._problem.features.partitionable:
            return False
        requests = (form for spec in self._problem.specs for request in spec.requests for form in request.alternatives)
        devices = self._problem.inventory.devices
        return not any(form.admin_access for form in requests) and not any(
            devices[bit].device.allow_multiple for bit in members(wanted)
        )

    def _mask(self, claim: int, request: DeviceRequest) -> int:
        """The devices that the search may use for a request."""
        return self._allowed.devices & self._allowed.of_request.get((claim, request.name), -1)

    def _free(self, claim: int, request: DeviceRequest) -> int:
        """The devices that the search may choose for a request before it has chosen any."""
        match = self._selections[claim, request.name].match & self._mask(claim, request)
        return match if request.admin_access else match & ~self._in_use

    # -- the search ------------------------------------------------------------------------------------------

    def _request(self, claim: int, position: int) -> Outcome:
        """Solve the requests of a claim from this position on, and the claims after it."""
        if claim >= len(self._problem.specs):
            return Outcome.DONE
        requests = self._problem.specs[claim].requests
        if self._matching.partitions and not self._is_partition(claim, position):
            return Outcome.NO
        if position >= len(requests):
            if self._has_too_much_config(claim):
                return Outcome.NO
            outcome = self._request(claim + 1, 0)
            # A different solution of this claim may leave room for a later claim that is too large.
            return Outcome.NO if outcome is Outcome.TOO_MANY else outcome
        if not requests[position].prioritized:
            return self._slot(claim, position, requests[position].alternatives[0], 0, 0)
        return self._alternative(claim, position)

    def _has_too_much_config(self, claim: int) -> bool:
        """Whether the API server would refuse the allocation for its config: each class adds up to 32 entries."""
        spec, problem = self._problem.specs[claim], self._problem
        if len(spec.requests) == 1:  # at most 32 entries of its class, and 32 of the claim
            return False
        forms = list(dict.fromkeys(pick.request for pick in self._picks[claim]))
        count = sum(1 for _ in config_entries(spec, forms, problem.classes, problem.features))
        if count > MAX_CONFIG:
            self._config_excess = (
                f"claim {problem.names[claim]}: its allocation would have {count} config entries, of the claim and of "
                f"its device classes; the API server stores {MAX_CONFIG} at most"
            )
        return count > MAX_CONFIG

    def _alternative(self, claim: int, position: int) -> Outcome:
        failed = Outcome.TOO_MANY
        for index, request in enumerate(self._problem.specs[claim].requests[position].alternatives):
            if self._fixed is not None and self._fixed[claim][position] != index:
                continue
            outcome = self._slot(claim, position, request, 0, 0)
            if outcome is Outcome.DONE:
                self._alternatives[claim][position] = index
                return outcome
            if outcome is Outcome.NO:
                failed = outcome
        return failed

    def _slot(self, claim: int, position: int, request: DeviceRequest, slot: int, start: int) -> Outcome:
        """Choose device number `slot` of a request: the first from bit `start` on that leads to a solution."""
        self._step()
        wanted = self._mode_all.get((claim, request.name))
        total = request.count if wanted is None else len(wanted)
        if wanted is not None and not wanted:
            return Outcome.NO
        if slot >= total:
            return self._request(claim, position + 1)
        if len(self._picks[claim]) + total - slot > MAX_RESULTS:
            return Outcome.TOO_MANY
        if wanted is not None:
            return self._try(claim, position, request, slot, wanted[slot], must=True)
        selection = self._selections[claim, request.name]
        blocked = self._chosen_by_claim[claim] if request.admin_access else self._in_use | self._chosen
        bits = (selection.match | selection.error) & self._mask(claim, request) & ~blocked
        for bit in members(bits >> start << start):
            if selection.error >> bit & 1:
                raise InvalidClaim(selection.explain(bit))
            outcome = self._try(claim, position, request, slot, bit, must=False)
            if outcome is not Outcome.NO:
                return outcome
        return Outcome.NO

    def _try(self, claim: int, position: int, request: DeviceRequest, slot: int, bit: int, *, must: bool) -> Outcome:
        device = self._problem.inventory.devices[bit].device
        self._step(self._steps_per_try[claim] + _more_steps(device, request))
        if not self._take(claim, request, bit, must=must):
            return Outcome.NO
        outcome = self._slot(claim, position, request, slot + 1, bit + 1)
        if outcome is not Outcome.DONE:
            self._give_back(claim, request, bit)
        return outcome

    def _step(self, steps: int = 1) -> None:
        before = self.steps
        self._spend(steps)
        if before < self.easy_steps <= self.steps:
            self._check_counters()

    def _spend(self, steps: int) -> None:
        before = self.steps
        self.steps += steps
        if self.steps // _CHECK_STEPS > before // _CHECK_STEPS:
            self._deadline.check()
        if self.steps > self._max_steps:
            raise OutOfSteps

    # -- one device ------------------------------------------------------------------------------------------

    def _take(self, claim: int, request: DeviceRequest, bit: int, *, must: bool) -> bool:
        """Choose a device if all rules allow it. Returns False and changes nothing if a rule forbids it."""
        pool_device = self._problem.inventory.devices[bit]
        device, features = pool_device.device, self._problem.features
        shared = device.allow_multiple and features.consumable_capacity
        if not self._is_free(claim, request, bit, shared=shared):
            return False
        if self._matching.partitions and not self._fits_partition(claim, request, bit):
            return False
        taken = self._consumption(request, bit)
        if taken is None:
            return False
        if features.taints and (taint := blocking_taint(device, request.tolerations)) is not None:
            return self._reject(request, bit, "tainted", taint.key)
        if device.consumes and not features.partitionable:
            return self._reject(request, bit, "counters", "partitionable devices are disabled")
        pays = self._pays_counters(request, bit, shared=shared)
        if pays and (cause := self._counters.take(bit)) is not None:
            return self._reject(request, bit, *cause)
        if not self._add_to_constraints(claim, request, bit, must=must):
            if pays:
                self._counters.give_back(bit)
            return False
        pick = Pick(bit, request, taken if shared else None)
        self._mark(claim, pick)
        self._picks[claim].append(pick)
        return True

    def _is_free(self, claim: int, request: DeviceRequest, bit: int, *, shared: bool) -> bool:
        if request.admin_access:
            already_chosen = not shared and self._chosen_by_claim[claim] >> bit & 1
        elif self._in_use >> bit & 1:
            return self._reject(request, bit, "in-use", "")
        else:
            already_chosen = self._chosen >> bit & 1
        return not already_chosen or self._reject(request, bit, "taken-here", "")

    def _fits_partition(self, claim: int, request: DeviceRequest, bit: int) -> bool:
        """Whether some partition has the device and the GPUs that the claim has so far."""
        gpus = self._gpus_of(claim, 1 << bit)
        if not gpus >> bit & 1 or any(not gpus & ~one for one in self._matching.partitions[claim].fitting):
            return True
        return self._reject(request, bit, "partition", "")

    def _is_partition(self, claim: int, position: int) -> bool:
        """Whether the claim has no GPUs or a whole partition, once it has all its GPUs."""
        partitions = self._matching.partitions[claim]
        gpus = self._gpus_of(claim) if position == partitions.end else 0
        return not gpus or gpus in partitions.fitting

    def _gpus_of(self, claim: int, more: int = 0) -> int:
        """The whole GPUs among the devices that a claim has so far, and among those of the mask `more`."""
        assert self._problem.fabric_partitions is not None
        for pick in self._picks[claim]:
            more |= 1 << pick.bit
        return more & self._problem.fabric_partitions.gpus

    def _consumption(self, request: DeviceRequest, bit: int) -> Mapping[str, Quantity] | None:
        """The capacities that the request consumes of a device. None after a report if the device cannot serve it."""
        features = self._problem.features
        if not features.consumable_capacity:
            return {}
        pool_device = self._problem.inventory.devices[bit]
        device, driver = pool_device.device, pool_device.driver
        used, using = self._problem.shares(bit) or NOTHING, self._consumed_here.get(bit, NOTHING)
        taken = consumption(device, driver, request.capacity, features)
        pays = features.pays(request)
        if taken is None or (pays and not fits(device, taken, NOTHING, NOTHING)):
            why = refusal(device.capacity, driver, request.capacity, features, pays=pays)
            self._reject(request, bit, "undefined-capacity", why)
            return None
        if pays and not fits(device, taken, used, using):
            self._reject(request, bit, "capacity", short_of(device, taken, used, using))
            return None
        return taken

    def _derived(self, bit: int, expression: str) -> TypedSet:
        """The value of an expression on a device, computed once."""
        found = self._derived_values.get((expression, bit))
        if found is None:
            self._step(_DERIVED_STEPS)
            found = self._derived_values[expression, bit] = self._problem.derive(
                expression, self._problem.inventory.devices[bit]
            )
        return found

    def _add_to_constraints(self, claim: int, request: DeviceRequest, bit: int, *, must: bool) -> bool:
        pool_device = self._problem.inventory.devices[bit]
        derive = partial(self._derived, bit)
        added = []
        for position, constraint in enumerate(self._constraints[claim]):
            if constraint.add(request, pool_device.device, pool_device.driver, derive):
                added.append(constraint)
                continue
            for earlier in reversed(added):
                earlier.remove(request.name)
            if must:
                raise InvalidClaim(
                    f"claim {self._problem.names[claim]}, request {request.name}: cannot add device {pool_device.id} "
                    "because a claim constraint would not be satisfied"
                )
            attribute = self._problem.specs[claim].constraints[position].attribute
            return self._reject(request, bit, "constraint", attribute)
        return True

    def _mark(self, claim: int, pick: Pick) -> None:
        if pick.consumed is None:
            self._chosen |= 1 << pick.bit
            self._chosen_by_claim[claim] |= 1 << pick.bit
        elif self._problem.features.pays(pick.request):
            using = self._consumed_here.setdefault(pick.bit, {SHARES: 0})
            using[SHARES] += 1  # of this search; the first one consumes the counters
            for name, amount in pick.consumed.items():
                using[name] = using.get(name, 0) + amount.nanos

    def _give_back(self, claim: int, request: DeviceRequest, bit: int) -> None:
        """Undo a successful _take."""
        pick = self._picks[claim].pop()
        for constraint in reversed(self._constraints[claim]):
            constraint.remove(request.name)
        if pick.consumed is None:
            # An admin-access claim and another claim may both have the device: it stays chosen for the other.
            self._chosen_by_claim[claim] &= ~(1 << bit)
            self._chosen = union(self._chosen_by_claim)
        elif self._problem.features.pays(request):
            using = self._consumed_here[bit]
            using[SHARES] -= 1
            for name, amount in pick.consumed.items():
                using[name] -= amount.nanos
            if not using[SHARES]:
                del self._consumed_here[bit]
        if self._pays_counters(request, bit, shared=pick.consumed is not None):
            self._counters.give_back(bit)

    def _pays_counters(self, request: DeviceRequest, bit: int, *, shared: bool) -> bool:
        """Whether this pick takes counters: all shares of a device take them once, and admin access none."""
        if not (self._problem.inventory.devices[bit].device.consumes and self._problem.features.pays(request)):
            return False
        return not shared or (bit not in self._consumed_here and self._problem.shares(bit) is None)

    def _reject(self, request: DeviceRequest, bit: int, cause: str, detail: str) -> bool:
        if self._recorder is not None:
            self._recorder.rejected(request.name, bit, cause, detail)
        return False


def _more_steps(device: Device, request: DeviceRequest) -> int:
    """The steps that a look at a device costs beside the first one."""
    found = device.capacity.steps
    if device.taints:
        found += len(device.taints) * len(request.tolerations) // _TOLERATED_PER_STEP
    if device.consumes:
        found += sum(len(use.counters) for use in device.consumes) // _COUNTERS_PER_STEP
    return found
