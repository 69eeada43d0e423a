"""The statistics of selectors use the compiled selectors of all evaluations, and end with their deadline."""

from __future__ import annotations

from collections import Counter

import pytest

from extender.allocation import Features, Snapshot
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.explain.selector_stats import TermStats, selector_stats
from extender.policy import Policy
from extender.scheduling import Evaluator, PodRequirements, requirements_of
from tests.worlds.evaluation_worlds import GPU, Fleet, steps


def world(*selectors: str) -> tuple[PodRequirements, Snapshot]:
    fleet = Fleet(nodes=3)
    pod = fleet.pod("team-a", *selectors)
    requirements = requirements_of(pod, fleet.cache.snapshot(), Policy())
    assert isinstance(requirements, PodRequirements)
    return requirements, fleet.cache.snapshot()


def test_no_term_is_evaluated_after_one_that_no_device_passes() -> None:
    """Twelve selectors of 10 KiB behind such a term once blocked the console for 21 s."""
    requirements, snapshot = world('"a" != "" && device.driver == "none" && "b" != ""', '"c" != ""')
    evaluator = Evaluator(Features())
    found = selector_stats(requirements, snapshot, None, evaluator.evaluation_context(snapshot))
    assert [one.term for one in found] == ['"a" != ""', 'device.driver == "none"', '"b" != ""']
    assert [(one.asked, one.passed) for one in found] == [(20, 20), (20, 0), (0, 0)]
    assert found[1].instead == {"'gpu.nvidia.com'": 20}
    assert evaluator.remembered()["selectors"] == 4, "the first selector, two of its terms, and a left side"


def test_values_with_equal_counts_are_told_in_one_order() -> None:
    """The order of nodes in a set once decided which products a sentence named: a restart told others."""
    told = {
        TermStats("request gpu", "x", 4, 0, 0, Counter(dict.fromkeys(order, 1))).sentence()
        for order in (("b", "d", "a", "c"), ("d", "c", "b", "a"))
    }
    assert len(told) == 1


def test_a_spent_budget_ends_the_statistics_before_the_next_compilation() -> None:
    requirements, snapshot = world(*[f'"{number}" != ""' for number in range(8)])
    evaluator, deadline = Evaluator(Features()), steps(3)
    with pytest.raises(DeadlineExceeded):
        selector_stats(requirements, snapshot, None, evaluator.evaluation_context(snapshot, deadline))
    assert 0 < evaluator.remembered()["selectors"] <= 3


def test_a_spent_budget_ends_the_statistics_also_where_all_selectors_are_compiled() -> None:
    requirements, snapshot = world(f'{GPU}.uuid != ""')
    evaluator = Evaluator(Features())
    selector_stats(requirements, snapshot, None, evaluator.evaluation_context(snapshot))
    with pytest.raises(DeadlineExceeded):
        selector_stats(requirements, snapshot, None, evaluator.evaluation_context(snapshot, steps(3)))


def test_an_evaluation_takes_no_more_than_the_rest_of_the_question() -> None:
    numbers = f"[{','.join('1' * 230)}]"
    requirements, snapshot = world(f"{numbers}.all(a, {numbers}.all(b, a <= b))")
    evaluator, deadline = Evaluator(Features()), Deadline(0.01, float)
    selector_stats(requirements, snapshot, None, evaluator.evaluation_context(snapshot))
    with pytest.raises(DeadlineExceeded):
        selector_stats(requirements, snapshot, None, evaluator.evaluation_context(snapshot, deadline))


def test_the_compile_error_of_a_selector_is_its_problem() -> None:
    requirements, snapshot = world("true", "device.")
    context = Evaluator(Features()).evaluation_context(snapshot)
    found = selector_stats(requirements, snapshot, None, context)
    assert [bool(one.problem) for one in found] == [False, True]
