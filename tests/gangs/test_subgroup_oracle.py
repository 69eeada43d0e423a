"""Gangs with slices and sub-groups against brute force, on random small clusters with bound members and lost labels."""

from __future__ import annotations

import random

import pytest

from tests.worlds.subgroup_oracle import compare, has_equal_sub_groups, placements, random_world


@pytest.mark.parametrize("block", range(4))
def test_the_planner_agrees_with_brute_force(block: int) -> None:
    """A plan exists where brute force finds one; equal slices are in the fewest domains."""
    differences = [compare(block * 1_000 + number) for number in range(50)]
    assert [one for one in differences if one] == []


def test_the_random_clusters_have_every_kind_of_answer() -> None:
    worlds = [random_world(random.Random(seed)) for seed in range(200)]
    fits = [any(True for _ in placements(world)) for world in worlds]
    assert 50 < sum(fits) < 150
    assert sum(has_equal_sub_groups(world) for world, fit in zip(worlds, fits, strict=True) if fit) >= 15
    assert sum(bool(world.bound) for world in worlds) >= 30
