"""A search pays for long looks at a device in steps, so no claim makes one node take long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from extender.allocation import CauseRecorder, Problem, Search
from extender.allocation.counters import Counters, report_short
from extender.api.quantity import format_nanos
from extender.base.berth_errors import OutOfSteps
from tests.worlds.search_worlds import Json, exactly, problem

POLICY = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi", "max": "80Gi"}}
TAINTS = [{"key": f"k{i}", "effect": "NoSchedule"} for i in range(8)]
TOLERATIONS = [{"key": f"k{i}", "operator": "Exists"} for i in range(8)]


def counter_set(counters: int) -> dict[str, dict[str, str]]:
    """One counter set with so many counters."""
    return {"s": {f"c{i}": "1k" for i in range(counters)}} if counters else {}


def device(position: int, capacities: int = 0, policy: Json | None = None, **fields: Any) -> Json:
    values = {f"x{i}": {"value": "80Gi", **({"requestPolicy": policy} if policy else {})} for i in range(capacities)}
    return {"name": f"d{position}", "capacity": values, **fields}


def either(name: str) -> Json:
    options = [{"name": f"s{i}", "deviceClassName": "any"} for i in range(2)]
    return {"name": name, "firstAvailable": options}


def all_or_one(alternatives: int) -> Json:
    """A request for all devices, as often as this, or for one."""
    wanted = [{"allocationMode": "All"}] * alternatives + [{"count": 1}]
    return {
        "name": "r",
        "firstAvailable": [{"name": f"s{i}", "deviceClassName": "any", **one} for i, one in enumerate(wanted)],
    }


def steps_of(problem: Problem) -> int:
    search = Search(problem)
    assert search.run() is not None
    return search.steps


def test_requests_for_all_devices_cost_steps_for_each_device_and_capacity() -> None:
    """512 alternatives on 128 devices took 256 ms with one capacity, and 5 s with 31."""
    shared: Json = {"allowMultipleAllocations": True}
    plain = problem([device(i, **shared) for i in range(40)], [all_or_one(7)])
    costly = problem([device(i, 4, POLICY, **shared) for i in range(40)], [all_or_one(7)])
    assert steps_of(plain) >= 7 * 40
    assert steps_of(costly) >= 7 * 40 * 5
    with pytest.raises(OutOfSteps):
        Search(costly, max_steps=1000).run()


@pytest.mark.parametrize(
    ("costly", "request_fields", "counters"),
    [
        (device(0, 4, POLICY), {}, 0),
        (device(0, 31), {}, 0),
        (device(0, taints=TAINTS), {"tolerations": TOLERATIONS}, 0),
        (
            device(0, consumesCounters=[{"counterSet": "s", "counters": {f"c{i}": {"value": "1"} for i in range(32)}}]),
            {},
            32,
        ),
    ],
    ids=["capacities with policies", "capacities", "taints and tolerations", "counters"],
)
def test_a_long_look_at_a_device_costs_more_steps(costly: Json, request_fields: Json, counters: int) -> None:
    """20,000 steps took 95 ms for plain devices, and 480 ms (taints) to 1.8 s (31 capacities) for such ones."""
    usual = steps_of(problem([device(0)], [exactly("r")]))
    assert steps_of(problem([costly], [exactly("r", **request_fields)], counters=counter_set(counters))) > usual


def test_devices_of_real_drivers_cost_no_more_steps() -> None:
    """A partition of a GPU has seven capacities; a shared device has few, with a policy for its memory."""
    usual = steps_of(problem([device(0)], [exactly("r")]))
    assert steps_of(problem([device(0, 7)], [exactly("r", tolerations=TOLERATIONS[:2])])) == usual


class Counted(Counters):
    """Counters that count how often a device is tried."""

    looks = 0

    def take(self, bit: int) -> tuple[str, str] | None:
        self.looks += 1
        return super().take(bit)


def consuming(count: int) -> list[Json]:
    return [device(i, consumesCounters=[{"counterSet": "s", "counters": {"c0": {"value": "1"}}}]) for i in range(count)]


def test_a_report_of_short_counters_looks_at_a_limited_number_of_devices() -> None:
    """The devices of 64 requests were taken one after the other: 100 ms."""
    world = problem(consuming(100), [exactly("r")], counters=counter_set(1))
    counters, recorder = Counted(world.inventory, world.allocated_state), CauseRecorder()
    everything = (1 << 100) - 1
    report_short([[(f"r{i}", 1, everything)] for i in range(64)], counters, recorder)
    assert counters.looks <= 1000


def shared_devices(count: int) -> list[Json]:
    return [device(i, 1, allowMultipleAllocations=True) for i in range(count)]


def test_amounts_of_rejected_devices_are_written_as_text_once() -> None:
    """Three amounts in the text of each rejected device took longer than the rest of a search."""
    too_many = [exactly(f"r{i}", count=4, capacity={"requests": {"x0": "80Gi"}}) for i in range(2)]
    world, recorder, before = problem(shared_devices(6), [*too_many]), CauseRecorder(), format_nanos.cache_info().misses
    assert Search(world, recorder=recorder).run() is None
    assert "capacity" in {cause for cause, _ in recorder.causes.values()}
    assert format_nanos.cache_info().misses - before <= 3


def test_a_rejection_names_one_absent_capacity() -> None:
    """31 names for each of 20,000 rejections took 40 MB."""
    absent = {"requests": {"x0": "1Gi", "y1": "1Gi", "y2": "1Gi"}}
    recorder = CauseRecorder()
    assert Search(problem(shared_devices(1), [exactly("r", capacity=absent)]), recorder=recorder).run() is None
    assert recorder.causes == {("r", 0): ("undefined-capacity", "a device has no capacity y1, but x0")}


def claims_of(claims: int, *requests: Json) -> Problem:
    """So many equal claims on a node with one device that all of them can share."""
    one = problem([device(0, allowMultipleAllocations=True)], [*requests])
    return replace(one, names=tuple(f"c{i}" for i in range(claims)), specs=one.specs * claims)


def below(frames: int, work: Callable[[], object]) -> object:
    """The result of the work with so many frames of callers on the stack."""
    return below(frames - 1, work) if frames else work()


@pytest.mark.parametrize("requests", [1, 8, 32])
@pytest.mark.parametrize("form", [exactly, either], ids=["exactly", "firstAvailable"])
def test_a_search_gives_up_before_it_uses_up_the_stack(form: Callable[[str], Json], requests: int) -> None:
    """A pod with 300 requests that shared devices can serve ended in a RecursionError, which no caller expects."""
    asked = [form(f"r{i}") for i in range(requests)]
    found = 0
    for claims in range(1, 200):
        try:
            assert below(100, Search(claims_of(claims, *asked)).run) is not None
        except OutOfSteps:
            break
        found = claims
    assert found * requests >= 100
    assert found < 199
