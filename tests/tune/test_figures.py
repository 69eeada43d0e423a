"""The pure part of tuning: figures, intervals and candidates."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from extender.policy import Policy, Weights
from extender.replay import Job, Outcome, fleet_of, placer_of, run_replay
from extender.sandbox import parse_nodes
from extender.tune import AIMS, MAX_DRAWS, Tuning, interval
from extender.tune.aims import Figures, figures_of
from extender.tune.tuning import (
    Trial,
    changed,
    chosen,
    combinations,
    halved,
    resampled,
    single_changes,
    weights_that_matter,
)

GBPS = AIMS["bandwidth"]


@pytest.mark.parametrize("count", [2, 5, 10, MAX_DRAWS])
def test_an_interval_has_the_next_draw_in_19_of_20_cases(count: int) -> None:
    rng = random.Random(count)
    times, inside = 4000, 0
    for _ in range(times):
        *values, following = (rng.gauss(3, 2) for _ in range(count + 1))
        found = interval(values)
        inside += found.low <= following <= found.high
    assert inside / times == pytest.approx(0.95, abs=0.012)


def test_draws_without_a_value_do_not_count() -> None:
    assert interval([math.nan, 2.0, 2.0]) == (2.0, 2.0, 2.0, 2)
    assert interval([math.nan, 2.0]) == (2.0, -math.inf, math.inf, 1)
    assert interval([math.nan]).draws == 0


def _outcome(jobs: list[Job]) -> Outcome:
    return run_replay(fleet_of(parse_nodes("1xt4-4")), jobs, placer_of("berth"))


def test_a_large_job_that_never_starts_has_waited_to_the_end() -> None:
    # Four GPUs: the first job holds them for 100 s, the second one needs eight.
    jobs = [Job("holds", 0, 100, gpus=4), Job("late", 40, 100, pods=2, gpus=2), Job("never", 50, 100, pods=2, gpus=4)]
    found = figures_of(jobs, _outcome(jobs))
    assert found["large-jobs"] == 100  # of `never` alone: no other has more than 4 GPUs; it could end at 150
    assert math.isnan(figures_of(jobs[:2], _outcome(jobs[:2]))["large-jobs"])


def test_a_draw_has_as_many_jobs_in_order_with_names_of_their_own() -> None:
    jobs = [Job(f"job-{number}", number * 10.0, gpus=number % 3 + 1) for number in range(30)]
    drawn = resampled(jobs, random.Random(1))
    assert len({job.name for job in drawn}) == len(jobs)
    assert [job.arrival for job in drawn] == sorted(job.arrival for job in drawn)
    by_name = {job.name: job for job in jobs}
    assert all(replace(job, name="") == replace(by_name[job.name.partition("-")[2]], name="") for job in drawn)
    assert len({job.name.partition("-")[2] for job in drawn}) < len(jobs)  # some are drawn twice
    assert drawn == resampled(jobs, random.Random(1))
    assert drawn != resampled(jobs, random.Random(2))


@pytest.mark.parametrize(
    ("job", "more"),
    [
        (Job("one", 0, gpus=1), set()),
        (Job("two", 0, gpus=2), {"link"}),
        (Job("nic", 0, gpus=1, nics=1), {"affinity"}),
        (Job("memory", 0, gpus=1, memory=1 << 30), {"headroom"}),
        (Job("gang", 0, pods=2, gpus=1), {"clique"}),
        (Job("claim", 0, claim={"devices": {}}), {"affinity", "headroom"}),
    ],
    ids=lambda value: value.name if isinstance(value, Job) else "",
)
def test_only_weights_that_apply_to_the_jobs_are_tried(job: Job, more: set[str]) -> None:
    assert set(weights_that_matter([job])) == {"value", "fragmentation", "packing"} | more


NOT_TRIED = {"health", "preference"}  # the docstring of weights_that_matter says why


def test_every_other_weight_matters_to_some_jobs() -> None:
    jobs = [Job("gang", 0, pods=2, gpus=2), Job("claim", 0, claim={"devices": {}})]
    expected = [name for name in Weights.model_fields if name not in NOT_TRIED]
    assert weights_that_matter(jobs) == expected, "add the weight to weights_that_matter, or to NOT_TRIED with a reason"


def test_a_weight_is_tried_at_multiples_within_the_schema() -> None:
    assert single_changes(Weights(), ["link"]) == [(("link", 4.0),), (("link", 100.0),), (("link", 0.0),)]
    assert single_changes(Weights(packing=0), ["packing"]) == [
        (("packing", value),) for value in (0.08, 0.016, 0.4, 2.0)
    ]
    for changes in single_changes(Weights(), list(Weights.model_fields)):
        Policy.model_validate(changed(Policy(), changes).model_dump())


def _trial(changes: tuple[tuple[str, float], ...], *values: float) -> Trial:
    return Trial(changes, [_figures(value) for value in values])


def _figures(value: float) -> Figures:
    return {"bandwidth": value, "utilisation": 0.0, "large-jobs": math.nan}


BEFORE = [_figures(100), _figures(100)]
LINK, VALUE, PACKING = ("link", 100.0), ("value", 0.0), ("packing", 2.0)


def test_the_best_changes_of_different_weights_are_tried_together() -> None:
    trials = [_trial((PACKING,), 101, 101), _trial((LINK,), 103, 103), _trial((("link", 4.0),), 102, 102)]
    trials += [_trial((VALUE,), 90, 90), _trial((("affinity", 50.0),), 100, 100)]
    assert list(combinations(GBPS, BEFORE, trials)) == [(LINK, PACKING)]
    trials[3] = _trial((VALUE,), 110, 110)
    assert list(combinations(GBPS, BEFORE, trials)) == [
        (LINK, VALUE), (VALUE, PACKING), (LINK, PACKING), (LINK, VALUE, PACKING),
    ]  # fmt: skip


def test_the_better_half_and_the_best_for_each_other_aim_are_tried_further() -> None:
    trials = [_trial((("link", float(number)),), value) for number, value in enumerate((103, 101, 90, 100, 100, 102))]
    best_use = {**_figures(80), "utilisation": 1.0}
    trials.append(Trial((PACKING,), [best_use]))
    kept, dropped = halved(GBPS, _figures(100), trials)
    assert kept == [trials[0], trials[1], trials[3], trials[5], trials[6]]
    assert dropped == [trials[4], trials[2]]
    assert halved(GBPS, _figures(100), []) == ([], [])


def test_a_further_change_must_earn_its_place() -> None:
    one, two = _trial((LINK,), 109, 111), _trial((LINK, VALUE), 108, 113)  # a standard error of 2.5 around 110.5
    assert chosen(GBPS, BEFORE, [two, one]) is one
    assert chosen(GBPS, BEFORE, [_trial((LINK, VALUE), 119, 121), one]) != one
    assert chosen(GBPS, BEFORE, [_trial((LINK,), 100, 100), _trial((VALUE,), 99, 99)]) is None


@pytest.mark.parametrize(
    ("judged", "is_better"),
    [((104, 105, 103, 106, 104), True), ((104, 97, 103, 98, 106), False), ((90, 91, 89, 90, 92), False)],
    ids=["beyond noise", "noise", "worse"],
)
def test_only_the_draws_that_did_not_choose_a_candidate_judge_it(judged: tuple[float, ...], is_better: bool) -> None:
    lucky = _trial((LINK,), 120, 121)
    found = Tuning(GBPS, Policy(), BEFORE, [lucky], lucky, [_figures(100)] * 5, [_figures(one) for one in judged])
    assert found.is_better == is_better
    assert found.best_policy.weights.link == (100 if is_better else 20)
    assert found.as_json()["judged"]["changes"] == {"link": 100}


def test_of_a_wait_less_is_better() -> None:
    waits = [{**_figures(0), "large-jobs": wait} for wait in (50.0, 60.0, 40.0)]
    shorter = [{**_figures(0), "large-jobs": wait - 9.0} for wait in (50.0, 60.0, 40.0)]
    trial = Trial((LINK,), shorter)
    assert chosen(AIMS["large-jobs"], waits, [trial]) is trial
    assert chosen(AIMS["large-jobs"], shorter, [Trial((LINK,), waits)]) is None
    assert Tuning(AIMS["large-jobs"], Policy(), waits, [trial], trial, waits, shorter).is_better
    assert not Tuning(AIMS["large-jobs"], Policy(), shorter, [trial], trial, shorter, waits).is_better
