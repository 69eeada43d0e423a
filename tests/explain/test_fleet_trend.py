"""The trend of the fleet is bounded, and has the whole time since the start for as long as it can."""

from __future__ import annotations

from itertools import pairwise

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.console.fleet_overview import FleetSampler, FleetTrend, TrendPoint
from extender.runtime.informers import CacheRefresh


def test_a_full_trend_keeps_every_second_point_and_then_loses_the_oldest() -> None:
    trend, times = FleetTrend(), range(0, 60_000, 5)
    for at in times:
        trend.add(TrendPoint(float(at), at, 0))
        found = [point.at for point in trend.after(-1)]
        assert len(found) <= 240
        assert found[0] == 0 or at > 240 * 160 - 5, "the whole time since the start, as long as it can"
    assert {after - before for before, after in pairwise(found)} == {160}
    assert found[-1] > 59_800
    assert [point.at for point in trend.after(found[-2])] == found[-1:]


def test_a_sample_adds_a_point_also_if_nothing_changed() -> None:
    now, cache = 0.0, ClusterCache(Features())
    sampler = FleetSampler(cache, CacheRefresh(cache).wait, lambda: now)
    sampler.sample()
    now = 5.0
    sampler.sample()
    assert sampler.trend.after(-1) == [TrendPoint(0.0, 0, 0), TrendPoint(5.0, 0, 0)]
