"""Tunes the weights of a policy by replays: tries candidates on some draws of the jobs, and judges one on others.

It tries one weight changed at a time, and then the best of these changes together: a search over all weights at once
finds more, but users cannot follow why it chose a weight.

The first draw is the user's file as it is. Each other one has as many jobs, drawn from it with replacement (a
bootstrap); each keeps its arrival and its duration. They stand for other weeks with such jobs. The first
draw drops the worse half of the candidates (successive halving). The best of many candidates is partly the luckiest, so
other draws, which did not choose it, judge it against the present policy.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from extender.api.fields import Json
from extender.base.berth_errors import WireError
from extender.policy import Policy, Weights
from extender.replay import Fleet, Job, Outcome, Task, measured_side_by_side, placer_of
from extender.tune.aims import (
    AIMS,
    Aim,
    Figures,
    Interval,
    change,
    decisions_of,
    figures_of,
    gains,
    has_waits,
    interval,
)

SEARCH_DRAWS = 4  # the first one is the user's jobs
_MAX_COMBINATIONS = 4  # of three changes
_FACTORS = (0.2, 5.0, 0.0, 25.0)  # of the present weight, the nearest first
_MAX_WEIGHT = 100.0  # the largest weight of the schema
_MAX_TOGETHER = 3  # changes that are tried together
Changes = tuple[tuple[str, float], ...]
"""(weight, its new value), in the order of the schema; () leaves the policy as it is."""
Progress = Callable[[int, int], None]
"""Is told how many more jobs have arrived in replays, and how many replays there will be at most."""


def weights_that_matter(jobs: Sequence[Job]) -> list[str]:
    """The weights whose parts of the score apply to some of these jobs.

    `health` and `preference` are not among them: a replay has no faults, and first alternatives are better by intent.
    """
    templates = [one for job in jobs for one in job.templates]
    applies = {
        "link": any(one.pod_gpus > 1 for one in templates),
        "affinity": any(one.nics or one.claim is not None for one in templates),
        "value": True,
        "headroom": any(one.memory or one.claim is not None for one in templates),
        "fragmentation": True,
        "packing": True,
        "clique": any(job.is_gang for job in jobs),
    }
    return [name for name, does in applies.items() if does]


def single_changes(weights: Weights, names: Sequence[str]) -> list[Changes]:
    """One weight at a time, at multiples of its present value. A weight of 0 gets multiples of its default."""
    found = list[Changes]()
    for name in names:
        now = getattr(weights, name)
        basis = now or getattr(Weights(), name)
        values = (float(f"{min(basis * factor, _MAX_WEIGHT):.3g}") for factor in (*(() if now else (1.0,)), *_FACTORS))
        found += [((name, value),) for value in dict.fromkeys(values) if value != now]
    return found


def changed(policy: Policy, changes: Changes) -> Policy:
    """The policy with these weights."""
    return policy.model_copy(update={"weights": policy.weights.model_copy(update=dict(changes))})


def words_of(policy: Policy, changes: Changes) -> str:
    """The changes in words, such as 'link 20 → 100'."""
    return ", ".join(f"{name} {getattr(policy.weights, name):g} → {value:g}" for name, value in changes) or "no change"


@dataclass(frozen=True)
class Trial:
    """A candidate, and its figures on the first draws."""

    changes: Changes
    figures: Sequence[Figures]


def halved(aim: Aim, before: Figures, trials: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
    """(the candidates to try on further draws, the others). The first draw of `trials` decides.

    The better half stays, and the best for each other aim: the frontier ends there.
    """
    gained = {other.name: [mean_gain(other, [before], one) for one in trials] for other in AIMS.values()}
    order = sorted(range(len(trials)), key=lambda at: -gained[aim.name][at])
    stay = {*order[: half_of(len(trials))], *(values.index(max(values)) for values in gained.values() if values)}
    return [trials[at] for at in sorted(stay)], [trials[at] for at in order if at not in stay]


def half_of(candidates: int) -> int:
    """How many of so many candidates are its better half."""
    return (candidates + 1) // 2


def combinations(aim: Aim, before: Sequence[Figures], trials: Sequence[Trial]) -> Iterator[Changes]:
    """Two and more of the best changes of different weights, of those that are better in the mean."""
    best = dict[str, Trial]()
    for trial in sorted(trials, key=lambda one: -mean_gain(aim, before, one)):
        if mean_gain(aim, before, trial) > 0:
            best.setdefault(trial.changes[0][0], trial)
    order = list(Weights.model_fields)
    together = [trial.changes[0] for trial in best.values()][:_MAX_TOGETHER]
    for size in range(2, len(together) + 1):
        for some in itertools.combinations(together, size):
            yield tuple(sorted(some, key=lambda one: order.index(one[0])))


def chosen(aim: Aim, before: Sequence[Figures], trials: Sequence[Trial]) -> Trial | None:
    """The candidate to judge on other draws; None if none is better in the mean.

    It is that with the fewest changes among those within one standard error of the best, as in the pruning of trees
    (Breiman and others, 1984): a further change must earn its place.
    """
    better = [trial for trial in trials if mean_gain(aim, before, trial) > 0]
    if not better:
        return None
    best = max(better, key=lambda one: mean_gain(aim, before, one))
    values = gains(aim, before, best.figures)
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    near = [trial for trial in better if mean_gain(aim, before, trial) >= mean_gain(aim, before, best) - error]
    return min(near, key=lambda one: (len(one.changes), -mean_gain(aim, before, one)))


def mean_gain(aim: Aim, before: Sequence[Figures], trial: Trial) -> float:
    """How much better a candidate is in the mean; 0 if no draw has a value."""
    values = gains(aim, before, trial.figures)
    return statistics.fmean(values) if values else 0.0


@dataclass(frozen=True)
class Tuning:
    """What tuning found. Figures by draw: `before` and `trials` of the first draws, the judged ones of the others.

    `dropped` are candidates that were tried on the first draw alone.
    """

    aim: Aim
    policy: Policy  # the present one
    before: Sequence[Figures]
    trials: Sequence[Trial]
    candidate: Trial | None
    judged_before: Sequence[Figures]
    judged: Sequence[Figures]
    dropped: Sequence[Trial] = ()

    @property
    def is_better(self) -> bool:
        """Whether the candidate is better for the aim beyond noise."""
        return self.judged_change(self.aim).sign == self.aim.sign

    @property
    def best_policy(self) -> Policy:
        """The policy with the weights of the candidate if it is better, and the present one otherwise."""
        return changed(self.policy, self.candidate.changes) if self.candidate and self.is_better else self.policy

    def judged_change(self, aim: Aim) -> Interval:
        """How the candidate changes a figure."""
        return change(aim.name, self.judged_before, self.judged)

    def trial_change(self, aim: Aim, trial: Trial) -> Interval:
        """How a candidate changed a figure on the first draws."""
        return change(aim.name, self.before, trial.figures)

    @property
    def best_trials(self) -> list[Trial]:
        """The candidates, the best on the first draws first; of equal ones, that with the fewest changes."""
        return sorted(self.trials, key=lambda one: (-mean_gain(self.aim, self.before, one), len(one.changes)))

    def words(self, trial: Trial) -> str:
        """The changes of a candidate in words."""
        return words_of(self.policy, trial.changes)

    def as_json(self) -> Json:
        """All figures; null in place of what is not known."""
        found: Json = {
            "aim": self.aim.name,
            "is_better": self.is_better,
            "weights": self.best_policy.weights.model_dump(),
            "before": {name: _json(interval([one[name] for one in self.before])) for name in AIMS},
            "candidates": [
                {
                    "changes": dict(trial.changes),
                    "change": {name: _json(self.trial_change(aim, trial)) for name, aim in AIMS.items()},
                }
                for trial in self.trials
            ],
            "dropped": [dict(trial.changes) for trial in self.dropped],
            "judged": None,
        }
        if self.candidate is not None:
            found["judged"] = {
                "changes": dict(self.candidate.changes),
                "before": {name: _json(interval([one[name] for one in self.judged_before])) for name in AIMS},
                "change": {name: _json(self.judged_change(aim)) for name, aim in AIMS.items()},
            }
        return found


def _json(found: Interval) -> Json:
    known = found.draws > 1
    return {
        "mean": found.mean if found.draws else None,
        "low": found.low if known else None,
        "high": found.high if known else None,
        "draws": found.draws,
    }


def resampled(jobs: Sequence[Job], rng: random.Random) -> list[Job]:
    """As many jobs, drawn with replacement, by arrival. Their names say which job they are, and are unique."""
    drawn = sorted(rng.choices(jobs, k=len(jobs)), key=lambda job: job.arrival)
    return [replace(job, name=f"d{number}-{job.name}") for number, job in enumerate(drawn)]


def tune(
    fleet: Fleet,
    jobs: Sequence[Job],
    policy: Policy,
    aim: Aim,
    seed: int,
    draws: int,
    progress: Progress = lambda _more, _replays: None,
) -> Tuning:
    """Tune the weights of `policy` for an aim, and judge the candidate on `draws` draws. Equal seeds, equal results.

    Raises WireError if there is nothing that the aim measures.
    """
    jobs = fleet.counted(jobs)
    if not any(map(aim.needs, jobs)):
        raise WireError(f"--aim {aim.name}", aim.lacks)
    singles = single_changes(policy.weights, weights_that_matter(jobs))
    runner = _Runner(fleet, policy, seed, progress)
    later = _MAX_COMBINATIONS * SEARCH_DRAWS + 2 * draws
    most_kept = half_of(len(singles)) + len(AIMS) - 1
    runner.expect(1 + len(singles) + (1 + most_kept) * (SEARCH_DRAWS - 1) + later)
    now = runner.present(jobs)
    if aim.of_waits and not now.has_waits:
        raise WireError(f"--aim {aim.name}", "no job waits on this fleet, so other weights cannot start one earlier")
    kept, dropped = halved(aim, now.figures, runner.that_decide_otherwise(singles, jobs, now.decisions))
    generators = [random.Random(f"{seed}/{one}") for one in range(1, SEARCH_DRAWS + draws)]  # noqa: S311 - no secrets
    drawn = [list(jobs), *(resampled(jobs, one) for one in generators)]
    first, others = drawn[:SEARCH_DRAWS], drawn[SEARCH_DRAWS:]
    runner.expect((1 + len(kept)) * (SEARCH_DRAWS - 1) + later)
    before, *found = runner.figures([(), *(trial.changes for trial in kept)], first[1:], 1)
    if all(math.isnan(one[aim.name]) for one in before):
        raise WireError(f"--aim {aim.name}", aim.unknown)
    before = [now.figures, *before]
    trials = [Trial(one.changes, [*one.figures, *more]) for one, more in zip(kept, found, strict=True)]
    together = list(combinations(aim, before, trials))
    trials += [Trial(*one) for one in zip(together, runner.figures(together, first, 0), strict=True)]
    candidate = chosen(aim, before, trials)
    if candidate is None:
        return Tuning(aim, policy, before, trials, None, (), (), dropped)
    judged_before, judged = runner.figures([(), candidate.changes], others, len(first))
    return Tuning(aim, policy, before, trials, candidate, judged_before, judged, dropped)


class _Found(NamedTuple):
    """What a replay found, see decisions_of."""

    decisions: str
    has_waits: bool
    figures: Figures


class _Runner:
    """Replays candidates side by side."""

    def __init__(self, fleet: Fleet, policy: Policy, seed: int, progress: Progress) -> None:
        self._fleet = fleet
        self._policy = policy
        self._seed = seed
        self._progress = progress
        self._done = self._replays = 0

    def expect(self, more: int) -> None:
        """At most so many replays are still to come."""
        self._replays = self._done + more

    def present(self, jobs: Sequence[Job]) -> _Found:
        """What the present policy does with the jobs of the user."""
        (found,) = self._measured([()], [jobs], 0)
        return found

    def that_decide_otherwise(self, singles: Sequence[Changes], jobs: Sequence[Job], now: str) -> list[Trial]:
        """The changes with which a job of the user gets other devices, or gets them at another time.

        `now` are the decisions of the present policy. Of values of one weight that decide alike, the nearest to the
        present one is left.
        """
        found = self._measured(singles, [jobs], 0)
        known = {(name, now) for ((name, _),) in singles}
        left = list[Trial]()
        for changes, one in zip(singles, found, strict=True):
            key = changes[0][0], one.decisions
            if key not in known:
                known.add(key)
                left.append(Trial(changes, [one.figures]))
        return left

    def figures(self, candidates: Sequence[Changes], draws: Sequence[Sequence[Job]], first: int) -> list[list[Figures]]:
        """The figures of each candidate on each draw. Each draw breaks ties in its own way; `first` is its number."""
        found = [one.figures for one in self._measured(candidates, draws, first)]
        return [found[at : at + len(draws)] for at in range(0, len(found), len(draws))]

    def _measured(self, candidates: Sequence[Changes], draws: Sequence[Sequence[Job]], first: int) -> list[_Found]:
        tasks = [
            Task(
                self._fleet,
                jobs,
                placer_of("berth", changed(self._policy, one), words_of(self._policy, one)),
                self._seed + number,
            )
            for one in candidates
            for number, jobs in enumerate(draws, first)
        ]
        found = measured_side_by_side(tasks, _found, lambda more: self._progress(more, self._replays))
        self._done += len(tasks)
        return found


def _found(task: Task, outcome: Outcome) -> _Found:
    return _Found(decisions_of(outcome), has_waits(outcome), figures_of(task.jobs, outcome))
