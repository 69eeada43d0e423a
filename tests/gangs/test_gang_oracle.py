"""The gang planner against brute force, on random small clusters with all features mixed, limits of nodes too."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.worlds.gang_oracle import compare, nearest, random_cluster


@pytest.mark.parametrize("block", range(4))
def test_the_planner_agrees_with_brute_force(block: int) -> None:
    """The nearest level at which the gang fits; `make oracle` takes twenty thousand."""
    for number in range(40):
        assert compare(block * 1_000_000 + number) == ""


def test_the_random_clusters_include_every_kind_of_answer() -> None:
    """The answer is each level, and a shortage, in at least five clusters; limits of nodes change five answers."""
    answers, limits = Counter[str | None](), 0
    for seed in range(200):
        cluster = random_cluster(random.Random(seed))
        answer = nearest(cluster)
        answers[answer] += 1
        cluster.limits.clear()
        limits += nearest(cluster) != answer
    assert min(answers[level] for level in ("node", "clique", "rack", "", None)) >= 5, answers
    assert limits >= 5
