"""No claim makes the evaluation of one node take long: a search pays for long looks at a device in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from extender.allocation import Allowed, CauseRecorder, Problem, Search, choose
from extender.base.berth_errors import OutOfSteps
from extender.cache import ClusterCache
from extender.scheduling import evaluate
from tests.worlds.counted_work import lines_of
from tests.worlds.filled_caches import CLASS, NODE, asked, claim_for, device_slice, put
from tests.worlds.search_worlds import Json, exactly, problem

MOST = 3_000_000  # lines of Python, some 100 ms; 20,000 steps with plain devices take 2,100,000
POLICY = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi", "max": "80Gi"}}
ALIKE = {"attributes": {"a": {"string": "x"}}}
CAPACITIES = {f"x{i}": {"value": "80Gi", "requestPolicy": POLICY} for i in range(31)}
SHARED: Json = {"allowMultipleAllocations": True, "capacity": CAPACITIES}
COUNTERS = {f"c{i}": {"value": "1"} for i in range(32)}
TAINTS = [{"key": f"k{i}", "effect": "NoSchedule"} for i in range(16)]
TOLERATIONS = [{"key": f"k{i}", "operator": "Exists"} for i in range(16)]
APART = {"distinctAttribute": "d/a"}  # no two devices are, so that a search tries all sets


class Costly(NamedTuple):
    """A pod with `claims` equal claims, on a node with 128 equal devices. Each claim has requests with alternatives."""

    device: Json
    claims: int
    requests: int
    alternatives: int = 1
    request: Json = {}  # noqa: RUF012 - no test changes it
    constraints: tuple[Json, ...] = ()


COSTLY = {
    "capacities with policies": Costly({**ALIKE, "capacity": CAPACITIES}, 4, 16, constraints=(APART,)),
    "taints and tolerations": Costly(
        {**ALIKE, "taints": TAINTS}, 4, 16, request={"tolerations": TOLERATIONS}, constraints=(APART,)
    ),
    "constraints": Costly(ALIKE, 4, 16, constraints=(*[{"matchAttribute": "d/a"}] * 31, APART)),
    "attributes that no device has": Costly(
        ALIKE, 16, 8, constraints=tuple({"matchAttribute": f"d/b{i}"} for i in range(32))
    ),
    "shared devices": Costly(
        {"allowMultipleAllocations": True, "capacity": CAPACITIES},
        4,
        8,
        request={"capacity": {"requests": {"x0": "80Gi"}}},
    ),
    # 512 alternatives took 5 s.
    "all devices, with capacities": Costly(SHARED, 2, 32, 8, {"allocationMode": "All"}),
    "counters": Costly({"consumesCounters": [{"counterSet": "s", "counters": COUNTERS}]}, 2, 32, 8),
    # The reason looked at each device for each request.
    "amounts that no device has": Costly(
        {"capacity": CAPACITIES}, 4, 32, request={"capacity": {"requests": dict.fromkeys([*CAPACITIES][:9], "81Gi")}}
    ),
}


@pytest.mark.parametrize("name", COSTLY)
def test_the_evaluation_of_one_node_ends_soon(name: str) -> None:
    """Attack: stall scheduling with claims whose search takes long."""
    costly, slices = COSTLY[name], 1 + (name == "counters")
    pool = {"name": "n", "generation": 1, "resourceSliceCount": slices}
    devices = [{"name": f"d{i}", **costly.device} for i in range(128)]
    cache = put(ClusterCache(), CLASS, NODE, device_slice("n", "d", devices, pool=pool))
    if slices > 1:
        amounts = {name: {"value": "40"} for name in COUNTERS}
        counted = {"driver": "d", "nodeName": "n", "pool": pool, "sharedCounters": [{"name": "s", "counters": amounts}]}
        put(cache, {"kind": "ResourceSlice", "metadata": {"name": "counters"}, "spec": counted})
    forms = [{"name": f"s{i}", "deviceClassName": "any", **costly.request} for i in range(costly.alternatives)]
    requests = [
        {"name": f"r{i}", "firstAvailable": forms} if len(forms) > 1 else exactly(f"r{i}", **costly.request)
        for i in range(costly.requests)
    ]
    claims = [claim_for(*requests, name=f"c{i}", constraints=[*costly.constraints]) for i in range(costly.claims)]
    requirements, context = asked(cache, *claims)
    node_info = cache.snapshot().node_infos["n"]
    assert lines_of(lambda: evaluate(node_info, requirements, context), MOST) <= MOST


def device(position: int, capacities: int = 0, **fields: Any) -> Json:
    values = {f"x{i}": {"value": "80Gi"} for i in range(capacities)}
    return {"name": f"d{position}", "capacity": values, **fields}


def either(name: str) -> Json:
    options = [{"name": f"s{i}", "deviceClassName": "any"} for i in range(2)]
    return {"name": name, "firstAvailable": options}


def steps_of(problem: Problem) -> int:
    search = Search(problem)
    assert search.run() is not None
    return search.steps


def test_devices_of_real_drivers_cost_no_more_steps() -> None:
    """A partition of a GPU has seven capacities; a shared device has few, with a policy for its memory."""
    usual = steps_of(problem([device(0)], [exactly("r")]))
    assert steps_of(problem([device(0, 7)], [exactly("r", tolerations=TOLERATIONS[:2])])) == usual


def test_few_preferred_sets_are_tried_if_each_search_must_make_many_constraints() -> None:
    tried = list[int]()

    def none(*_: object) -> Iterator[Allowed]:
        for number in range(1_000):
            tried.append(number)
            yield Allowed(0)

    asked = problem([{"name": "d0", **ALIKE}], [exactly("r")], constraints=[{"matchAttribute": "d.example.com/a"}] * 32)
    assert choose(asked, none, max_steps=2_000) is not None
    assert len(tried) < 100


def test_a_rejection_names_one_absent_capacity() -> None:
    """31 names for each of 20,000 rejections took 40 MB."""
    absent = {"requests": {"x0": "1Gi", "y1": "1Gi", "y2": "1Gi"}}
    recorder = CauseRecorder()
    assert (
        Search(
            problem([device(0, 1, allowMultipleAllocations=True)], [exactly("r", capacity=absent)]), recorder=recorder
        ).run()
        is None
    )
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
