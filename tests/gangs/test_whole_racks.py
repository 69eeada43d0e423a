"""The trace of whole racks of `make bench-quality`, with few seeds."""

from __future__ import annotations

import pytest

from benchmarks import whole_racks


@pytest.mark.parametrize("load", whole_racks.LOADS, ids=lambda load: load.name)
def test_whole_racks_are_kept_whatever_the_names(load: whole_racks.Load) -> None:
    """As many whole-rack gangs start as by the rule, but for the noise: equal choices lead to other states."""
    started = dict.fromkeys(("fullest rack first", "Berth"), 0)
    for seed in range(3):
        jobs = whole_racks.jobs_of(load, seed)
        for name in started:
            scheduler = whole_racks.SCHEDULERS[name](whole_racks.Names.shuffled(seed))
            started[name] += whole_racks.simulate(jobs, scheduler).whole
    assert started["Berth"] >= 0.97 * started["fullest rack first"] > 0
