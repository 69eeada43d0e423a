"""The search against brute force, on random small worlds with all features mixed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation import Allowed, FastPath, Search
from tests.worlds.oracle import brute_force, compare, problem, random_world


@pytest.mark.parametrize("block", range(2, 10))
def test_search_agrees_with_brute_force(block: int) -> None:
    """The search and brute force agree, in the reference's order and in a preferred one."""
    for number in range(75):  # `make oracle` takes twenty thousand
        assert compare(block * 1_000_000 + number) == ""


def test_worlds_are_worth_asking_about() -> None:
    """The random worlds hold possible and impossible questions in comparable numbers."""
    answers = [brute_force(random_world(random.Random(seed))) for seed in range(300)]
    assert 60 < sum(answers) < 240


@given(st.integers(0, 1 << 32), st.lists(st.integers(0, 127), max_size=6))
def test_the_fast_path_answers_as_the_search_does(seed: int, some: list[int]) -> None:
    """One request for whole devices: the same solution, among all and among some; the moment one device is not plain,
    no answer."""
    rng = random.Random(seed)
    world = random_world(rng)
    wanted = {"kind": rng.choice(["a", ""]), "count": rng.randint(1, 4), "all": False, "memory": 0}
    devices = [{**device, "shared": False, "counters": 0, "tainted": False} for device in world.devices]
    world = replace(
        world,
        devices=devices,
        requests=[{"claim": 0, "options": [wanted], "tolerates": False}],
        constraints=[],
        used={},
    )
    asked = problem(world)
    path, search = FastPath.of(asked), Search(asked)
    first = search.run()
    assert path is not None
    assert path.among(asked, Allowed()) == first
    for allowed in some:
        if first is None:
            break
        assert path.among(asked, Allowed(allowed)) == search.among(Allowed(allowed), first.alternatives, 500).run()
    odd = rng.randrange(len(devices))
    devices[odd] |= rng.choice([{"shared": True}, {"counters": 1}, {"tainted": True}])
    assert (FastPath.of(problem(world)) is None) == (wanted["kind"] in ("", devices[odd]["kind"]))
