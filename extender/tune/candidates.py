"""The policies that tuning tries: one weight changed at a time, and then the best of these changes together.

Pure. A search over all weights at once finds more, but users cannot follow why it chose a weight.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from extender.policy import Policy, Weights
from extender.replay import Job
from extender.tune.aims import AIMS, Aim, Figures, gains

_FACTORS = (0.2, 5.0, 0.0, 25.0)  # of the present weight, the nearest first
_MAX_WEIGHT = 100.0  # the largest weight of the schema
_MAX_TOGETHER = 3  # changes that are tried together
Changes = tuple[tuple[str, float], ...]
"""(weight, its new value), in the order of the schema; () leaves the policy as it is."""


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
