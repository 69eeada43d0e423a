"""Tunes the weights of a policy by replays: tries candidates on some draws of the jobs, and judges one on others.

A draw has as many jobs as the user's file, drawn from it with replacement (a bootstrap); each keeps its arrival and
its duration. The draws stand for other weeks with such jobs. Whoever takes the best of many candidates takes the
luckiest, too, so the candidate is judged against the present policy on draws that did not choose it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from extender.api.fields import Json
from extender.base.berth_errors import WireError
from extender.policy import Policy
from extender.replay import Fleet, Job, Outcome, Task, measured_side_by_side, placement_of
from extender.tune.aims import AIMS, Aim, Figures, Interval, change, decisions_of, figures_of, has_waits, interval
from extender.tune.candidates import (
    Changes,
    Trial,
    changed,
    chosen,
    combinations,
    mean_gain,
    single_changes,
    weights_that_matter,
    words_of,
)

T = TypeVar("T")
SEARCH_DRAWS = 4
_MAX_COMBINATIONS = 4  # of three changes
Progress = Callable[[int, int], None]
"""Is told how many more jobs have arrived in replays, and how many replays there will be at most."""


@dataclass(frozen=True)
class Tuning:
    """What tuning found. Figures by draw: `before` and `trials` of the first draws, the judged ones of the others."""

    aim: Aim
    policy: Policy  # the present one
    before: Sequence[Figures]
    trials: Sequence[Trial]
    candidate: Trial | None
    judged_before: Sequence[Figures]
    judged: Sequence[Figures]

    @property
    def is_better(self) -> bool:
        """Whether the candidate is better for the aim beyond noise."""
        found = self.judged_change(self.aim)
        return found.is_above_zero if self.aim.sign > 0 else found.is_below_zero

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
    if not any(map(aim.needs, jobs)):
        raise WireError(f"--aim {aim.name}", aim.lacks)
    singles = single_changes(policy.weights, weights_that_matter(jobs))
    runner = _Runner(fleet, policy, seed, progress)
    runner.expect(1 + len(singles) + (1 + len(singles) + _MAX_COMBINATIONS) * SEARCH_DRAWS + 2 * draws)
    now, waits = runner.present(jobs)
    if aim.of_waits and not waits:
        raise WireError(f"--aim {aim.name}", "no job waits on this fleet, so other weights cannot start one earlier")
    singles = runner.that_decide_otherwise(singles, jobs, now)
    generators = [random.Random(f"{seed}/{one}") for one in range(SEARCH_DRAWS + draws)]  # noqa: S311 - no secrets
    drawn = [resampled(jobs, one) for one in generators]
    first, others = drawn[:SEARCH_DRAWS], drawn[SEARCH_DRAWS:]
    runner.expect((1 + len(singles) + _MAX_COMBINATIONS) * SEARCH_DRAWS + 2 * draws)
    before, *found = runner.figures([(), *singles], first)
    if all(math.isnan(one[aim.name]) for one in before):
        raise WireError(f"--aim {aim.name}", aim.unknown)
    trials = [Trial(*one) for one in zip(singles, found, strict=True)]
    together = list(combinations(aim, before, trials))
    trials += [Trial(*one) for one in zip(together, runner.figures(together, first), strict=True)]
    candidate = chosen(aim, before, trials)
    if candidate is None:
        return Tuning(aim, policy, before, trials, None, (), ())
    judged_before, judged = runner.figures([(), candidate.changes], others, 1 + len(first))
    return Tuning(aim, policy, before, trials, candidate, judged_before, judged)


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

    def present(self, jobs: Sequence[Job]) -> tuple[str, bool]:
        """What the present policy decides for the jobs of the user, see decisions_of, and whether a job waits."""
        (found,) = self._measured([()], [jobs], 0, _present)
        return found

    def that_decide_otherwise(self, singles: Sequence[Changes], jobs: Sequence[Job], now: str) -> list[Changes]:
        """The changes with which a job of the user gets other devices, or gets them at another time.

        `now` are the decisions of the present policy. Of values of one weight that decide alike, the nearest to the
        present one is left.
        """
        found = self._measured(singles, [jobs], 0, _decisions)
        known = {(name, now) for ((name, _),) in singles}
        left = list[Changes]()
        for changes, decisions in zip(singles, found, strict=True):
            key = changes[0][0], decisions
            if key not in known:
                known.add(key)
                left.append(changes)
        return left

    def figures(
        self, candidates: Sequence[Changes], draws: Sequence[Sequence[Job]], first: int = 1
    ) -> list[list[Figures]]:
        """The figures of each candidate on each draw. Each draw breaks ties in its own way; `first` is its number."""
        found = self._measured(candidates, draws, first, _figures)
        return [found[at : at + len(draws)] for at in range(0, len(found), len(draws))]

    def _measured(
        self,
        candidates: Sequence[Changes],
        draws: Sequence[Sequence[Job]],
        first: int,
        measure: Callable[[Task, Outcome], T],
    ) -> list[T]:
        tasks = [
            Task(
                self._fleet,
                jobs,
                placement_of("berth", changed(self._policy, one), words_of(self._policy, one)),
                self._seed + number,
            )
            for one in candidates
            for number, jobs in enumerate(draws, first)
        ]
        found = measured_side_by_side(tasks, measure, lambda more: self._progress(more, self._replays))
        self._done += len(tasks)
        return found


def _figures(task: Task, outcome: Outcome) -> Figures:
    return figures_of(task.jobs, outcome)


def _present(_: Task, outcome: Outcome) -> tuple[str, bool]:
    return decisions_of(outcome), has_waits(outcome)


def _decisions(_: Task, outcome: Outcome) -> str:
    return decisions_of(outcome)
