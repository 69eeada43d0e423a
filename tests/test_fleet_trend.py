"""The trend of the fleet is bounded, and has the whole time since the start for as long as it can."""

from __future__ import annotations

from itertools import pairwise

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.console.fleet_overview import FleetSampler, FleetTrend, TrendPoint
from extender.runtime import Rebuilds


def filled(seconds: int, limit: int, longest: float) -> list[TrendPoint]:
    trend = FleetTrend(limit, longest)
    for at in range(0, seconds, 5):
        trend.add(TrendPoint(float(at), at, 0))
        assert len(trend.after(-1)) <= limit
    return trend.after(-1)


def test_a_full_trend_keeps_every_second_point() -> None:
    points = filled(seconds=5 * 8, limit=8, longest=40)
    assert [point.at for point in points] == [0, 5, 10, 15, 20, 25, 30, 35]
    points = filled(seconds=5 * 9, limit=8, longest=40)
    assert [point.at for point in points] == [0, 10, 20, 30, 40]


def test_points_are_at_most_so_far_apart_and_then_the_oldest_goes() -> None:
    points = filled(seconds=10_000, limit=8, longest=40)
    assert {after.at - before.at for before, after in pairwise(points)} == {40}
    assert len(points) == 8
    assert points[-1].at > 9_900


def test_a_reader_gets_the_points_after_its_last_one() -> None:
    trend = FleetTrend()
    for at in (0.0, 5.0, 10.0):
        trend.add(TrendPoint(at, 1, 1))
    assert [point.at for point in trend.after(5.0)] == [10.0]


def test_a_sample_adds_a_point_also_if_nothing_changed() -> None:
    now, cache = 0.0, ClusterCache(Features())
    sampler = FleetSampler(cache, Rebuilds(cache).done, lambda: now)
    sampler.sample()
    now = 5.0
    sampler.sample()
    assert sampler.trend.after(-1) == [TrendPoint(0.0, 0, 0), TrendPoint(5.0, 0, 0)]
