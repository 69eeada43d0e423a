"""Counters with too little capacity: the bound is never too low, and it proves a shortage before the search would give
up.
"""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.allocation import CauseRecorder, Features, Problem, Search
from extender.allocation.counters import Counters, most_together
from tests.worlds.search_worlds import Json, exactly, problem

amounts = st.dictionaries(st.sampled_from(["a", "b", "slice-0"]), st.integers(0, 4), min_size=1, max_size=3)
devices = st.lists(st.tuples(st.sampled_from(["s", "t", ""]), amounts), min_size=1, max_size=7)
budgets = st.fixed_dictionaries(
    {name: st.fixed_dictionaries({c: st.integers(0, 6) for c in ("a", "b", "slice-0")}) for name in "st"}
)


def world_of(
    found: list[tuple[str, dict[str, int]]],
    sets: dict[str, dict[str, int]],
    counts: list[int],
    taken: int = 0,
    shared: frozenset[int] = frozenset(),
    features: Features | None = None,
) -> Problem:
    """Devices that consume from counter sets ('': from none), and one claim with a request per count. `shared` are the
    indices of devices that allow several allocations."""
    devices = []
    for i, (counter_set, uses) in enumerate(found):
        device: Json = {"name": f"dev-{i}"}
        if counter_set:
            amounts = {name: {"value": str(amount)} for name, amount in uses.items()}
            device["consumesCounters"] = [{"counterSet": counter_set, "counters": amounts}]
        if i in shared:
            device["allowMultipleAllocations"] = True
        devices.append(device)
    return problem(
        devices, [exactly(f"r{i}", count=count) for i, count in enumerate(counts)], sets, (), taken, features
    )


def tried(world: Problem, bits: list[int]) -> int:
    """How many can be taken together, by trying every combination."""
    for size in range(len(bits), 0, -1):
        for chosen in combinations(bits, size):
            counters = Counters(world.inventory, world.allocated_state)
            if all(not counters.take(bit) for bit in chosen):
                return size
    return 0


@given(devices, budgets, st.integers(0, 2))
@settings(max_examples=3 * settings().max_examples)
def test_the_bound_is_never_too_low(
    found: list[tuple[str, dict[str, int]]], sets: dict[str, dict[str, int]], taken: int
) -> None:
    world = world_of(found, sets, [1], taken)
    free = list(range(min(taken, len(found)), len(found)))
    bound = most_together(
        sum(1 << bit for bit in free), world.inventory, Counters(world.inventory, world.allocated_state)
    )
    assert tried(world, free) <= bound <= len(free)


@given(
    devices,
    budgets,
    st.lists(st.integers(1, 4), min_size=1, max_size=2),
    st.frozensets(st.integers(0, 6)),
    st.sampled_from([Features(), Features(partitionable=False)]),
)
@settings(max_examples=3 * settings().max_examples)
def test_asking_early_changes_no_answer(
    found: list[tuple[str, dict[str, int]]],
    sets: dict[str, dict[str, int]],
    counts: list[int],
    shared: frozenset[int],
    features: Features,
) -> None:
    """Requests may have one shared device together; without the feature gate no counter set is known."""
    world = world_of(found, sets, counts, 0, shared, features)
    early = Search(world)
    early.easy_steps = 1
    assert early.run() == Search(world).run()


def partitions(gpus: int) -> tuple[list[tuple[str, dict[str, int]]], dict[str, dict[str, int]]]:
    """GPUs of seven slices each, and seven partitions of one slice on each."""
    found = [(f"gpu-{g}", {f"slice-{i}": 1}) for g in range(gpus) for i in range(7)]
    return found, {f"gpu-{g}": {f"slice-{i}": 1 for i in range(7)} for g in range(gpus)}


def test_a_shortage_of_partitions_is_found_before_the_search_gives_up() -> None:
    """Whole GPUs hold all but two; of the fourteen partitions left sixteen are wanted."""
    found, sets = partitions(8)
    whole = [(f"gpu-{g}", {f"slice-{i}": 1 for i in range(7)}) for g in range(8)]
    recorder = CauseRecorder()
    search = Search(world_of(whole + found, sets, [16], 6), recorder=recorder)
    assert search.run() is None
    assert search.steps <= search.easy_steps
    assert {cause for cause, _ in recorder.causes.values()} == {"counters"}
    assert len(recorder.causes) >= 8 * 7 - 14
    assert Search(world_of(whole + found, sets, [14], 6)).run() is not None


def test_a_device_that_several_requests_share_is_counted_for_each() -> None:
    """Six devices are wanted of four, two of which are shared: the search once ended with "no" after 200 steps."""
    world = world_of([("", {"a": 1})] * 4, {"s": {"a": 1}}, [3, 3], 0, frozenset({1, 3}))
    early = Search(world)
    early.easy_steps = 1
    assert early.run() is not None
