"""Tunes the weights of a policy by replays: tries candidates on some draws of the jobs, and judges one on others.

The first draw is the user's file as it is. Each other one has as many jobs, drawn from it with replacement (a
bootstrap); each keeps its arrival and its duration. They stand for other weeks with such jobs. The first
draw drops the worse half of the candidates (successive halving). The best of many candidates is partly the luckiest, so
other draws, which did not choose it, judge it against the present policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from extender.api.fields import Json
from extender.base.berth_errors import WireError
from extender.policy import Policy
from extender.replay import Fleet, Job, Outcome, Task, measured_side_by_side, placer_of
from extender.tune.aims import AIMS, Aim, Figures, Interval, change, decisions_of, figures_of, has_waits, interval
from extender.tune.candidates import (
    Changes,
    Trial,
    changed,
    chosen,
    combinations,
    half_of,
    halved,
    mean_gain,
    single_changes,
    weights_that_matter,
    words_of,
)

SEARCH_DRAWS = 4  # the first one is the user's jobs
_MAX_COMBINATIONS = 4  # of three changes
Progress = Callable[[int, int], None]
"""Is told how many more jobs have arrived in replays, and how many replays there will be at most."""


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
