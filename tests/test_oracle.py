"""The search against brute force, on random small worlds with all features mixed."""

from __future__ import annotations

import pytest

from tests.oracle import brute_force, compare, random_world
import random


@pytest.mark.parametrize("block", range(8))
def test_search_agrees_with_brute_force(block: int) -> None:
    """The same things are possible, in the reference's order and in a preferred one."""
    for number in range(250):
        assert compare(block * 1_000_000 + number) == ""


def test_worlds_are_worth_asking_about() -> None:
    """The random worlds hold possible and impossible questions in comparable numbers."""
    answers = [brute_force(random_world(random.Random(seed))) for seed in range(300)]
    assert 60 < sum(answers) < 240
