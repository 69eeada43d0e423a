"""Timers and rates do what their simplest form would do."""

from __future__ import annotations

from functools import partial
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from extender.base.fair_lru import FairLRU
from extender.base.timers import Timers, TokenBuckets

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("at"), st.integers(0, 3), st.sampled_from([-inf, *map(float, range(9))])),
        st.tuples(st.just("cancel"), st.integers(0, 3), st.just(0.0)),
        st.tuples(st.just("due"), st.just(0), st.sampled_from([*map(float, range(9)), inf])),
    ),
    max_size=30,
)


@given(STEPS)
def test_each_timer_is_due_once_at_its_last_time(steps: list[tuple[str, int, float]]) -> None:
    told, known = list[str](), dict[str, float]()
    timers = Timers[str]()
    timers.wakes_at, timers.on_earlier = 4.0, partial(told.append, "earlier")
    for what, number, time in steps:
        timer, heard = str(number), len(told)
        match what:
            case "at":
                timers.at(timer, time)
                known[timer] = time
                assert told[heard:] == ["earlier"] * (time < timers.wakes_at)
            case "cancel":
                timers.cancel(timer)
                known.pop(timer, None)
            case _:
                times = [known.pop(one) for one in timers.due(time)]
                assert times == sorted(times)
                assert all(at <= time for at in times)
                assert all(at > time for at in known.values())
        assert timers.next == min(known.values(), default=inf)


def test_a_timer_that_is_set_again_and_again_takes_no_memory() -> None:
    timers = Timers[str]()
    for number in range(10_000):
        timers.at("n1", float(number))
    assert timers.entries < 100
    assert timers.next == 9_999.0


def test_a_bucket_has_its_burst_and_then_one_token_at_a_time() -> None:
    rates = TokenBuckets[str](3, 10.0, remembered=8)
    assert [rates.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert rates.take("b", 0.0), "each key has its own"
    assert rates.wait("a", 4.0) == 6.0
    assert not rates.take("a", 9.9)
    assert rates.take("a", 10.1)
    assert [rates.take("a", 1000.0) for _ in range(4)] == [True, True, True, False], "never more than the burst"
    assert rates.wait("b", 1000.0) == 0.0


def test_a_value_that_grows_has_the_oldest_ones_of_the_largest_namespace_dropped() -> None:
    sizes = {"a1": 2, "a2": 2, "b1": 2}
    cache = FairLRU[str, str](10, sizes.__getitem__)
    for name in sizes:
        cache.put(name[0], name, name)
    sizes |= {"a2": 9, "b1": 7}
    assert cache.measure("b1") == [("b1", "b1")], "now b has the most"
    assert cache.measure("b1") == [], "it is gone"
    assert cache.measure("a2") == [("a1", "a1")]
    assert (len(cache), cache.size) == (1, 9)
