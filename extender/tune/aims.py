"""What a policy may be tuned for, the figures of a replay for each aim, and how far they differ beyond noise.

Pure: no replay runs here. A *draw* is a list of jobs drawn from those of the user. Policies are compared draw by draw,
so that what the draws differ in does not count.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from extender.replay import Job, Outcome

LARGE_GPUS = 4  # a job with more is large
# 97.5 % quantiles of Student's t by degrees of freedom, from 1 on.
_T = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13),
    *(2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05),
)
MAX_DRAWS = len(_T) + 1


class Aim(NamedTuple):
    """A figure of replays. `sign` is 1 if more is better, else -1. `lacks` says that no job has what it `needs`,
    `unknown` why no draw has a value. `of_waits`: weights cannot change it where no job waits.

    People read it times `scale`, in `unit`; a change of it in `change_unit`.
    """

    name: str
    title: str
    sign: int
    scale: float
    unit: str
    change_unit: str
    lacks: str
    unknown: str
    needs: Callable[[Job], bool]
    of_waits: bool
    of: Callable[[Sequence[Job], Outcome], float]


def large_wait(jobs: Sequence[Job], outcome: Outcome) -> float:
    """Mean wait of the large jobs in seconds; NaN without any.

    A job that never started has waited until the longest job would have ended after the last arrival. No job counts
    with more, so that a policy gains nothing by leaving a job out.
    """
    durations = [job.duration for job in jobs if job.duration < math.inf]
    end = jobs[-1].arrival + max(durations, default=0.0)
    waits = []
    for job in jobs:
        if is_large(job):
            most, started = end - job.arrival, outcome.started_jobs.get(job.name)
            waits.append(min(started.wait, most) if started is not None else most)
    return statistics.fmean(waits) if waits else math.nan


def is_large(job: Job) -> bool:
    """Whether the pods of a job have more than LARGE_GPUS together."""
    return job.all_gpus > LARGE_GPUS


AIMS = {
    one.name: one
    for one in (
        Aim(
            name="bandwidth",
            title="ring bandwidth in the mean",
            sign=1,
            scale=1,
            unit=" GB/s",
            change_unit=" GB/s",
            lacks="no pod of the jobs has several GPUs",
            unknown="no pod with several GPUs got a node whose links are known",
            needs=lambda job: any(one.pod_gpus > 1 for one in job.templates),
            of_waits=False,
            of=lambda _, outcome: outcome.ring_gbps or math.nan,
        ),
        Aim(
            name="utilisation",
            title="GPUs allocated until the last arrival",
            sign=1,
            scale=100,
            unit="%",
            change_unit=" points",
            lacks="no job has GPUs",
            unknown="the fleet has no GPUs",
            needs=lambda job: job.all_gpus > 0,
            of_waits=True,
            of=lambda _, outcome: outcome.allocated,
        ),
        Aim(
            name="large-jobs",
            title=f"mean wait of jobs with more than {LARGE_GPUS} GPUs",
            sign=-1,
            scale=1 / 60,
            unit=" min",
            change_unit=" min",
            lacks=f"no job has more than {LARGE_GPUS} GPUs",
            unknown=f"too few jobs have more than {LARGE_GPUS} GPUs: no draw has one",
            needs=is_large,
            of_waits=True,
            of=large_wait,
        ),
    )
}

Figures = Mapping[str, float]
"""The figure of one replay for each aim, by its name; NaN where there was nothing to measure."""


def figures_of(jobs: Sequence[Job], outcome: Outcome) -> Figures:
    """Measure a replay."""
    return {name: aim.of(jobs, outcome) for name, aim in AIMS.items()}


def has_waits(outcome: Outcome) -> bool:
    """Whether a job did not start at once. Times are sums of fractions."""
    return outcome.started < outcome.jobs or any(one.wait > 1 for one in outcome.started_jobs.values())


def decisions_of(outcome: Outcome) -> str:
    """A digest of the times, nodes and devices of all jobs. Equal replays have equal digests."""
    digest = hashlib.sha256()
    for name, job in sorted(outcome.started_jobs.items()):
        digest.update(repr((name, job.at, [(pod.node, pod.devices) for pod in job.pods])).encode())
    return digest.hexdigest()


class Interval(NamedTuple):
    """A mean over `draws`, and the range in which the value of another draw is in 19 of 20 cases."""

    mean: float
    low: float
    high: float
    draws: int

    @property
    def sign(self) -> int:
        """1 if all of it is above 0, -1 if all of it is below, else 0."""
        return (self.low > 0) - (self.high < 0)


def interval(values: Sequence[float]) -> Interval:
    """The prediction interval of the values of at most MAX_DRAWS draws. Draws without a value (NaN) do not count.

    Jobs are drawn from the user's, so their spread is how much the figures of other such jobs may differ. More draws
    tell this spread better, and do not make it smaller: the interval is that of one more draw, not that of the mean.
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Interval(math.nan, -math.inf, math.inf, 0)
    mean, count = statistics.fmean(known), len(known)
    if count == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = _T[count - 2] * statistics.stdev(known) * math.sqrt(1 + 1 / count)
    return Interval(mean, mean - half, mean + half, count)


def change(name: str, before: Sequence[Figures], after: Sequence[Figures]) -> Interval:
    """How much a figure is higher in `after` than in `before`, which have the same draws."""
    return interval([b[name] - a[name] for a, b in zip(before, after, strict=True)])


def gains(aim: Aim, before: Sequence[Figures], after: Sequence[Figures]) -> list[float]:
    """How much better `after` is, by draw, in the unit of the figure. Draws without a value are left out."""
    found = [aim.sign * (b[aim.name] - a[aim.name]) for a, b in zip(before, after, strict=True)]
    return [gain for gain in found if not math.isnan(gain)]


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """The positions of the points that no other point beats: none is as good in both values, and better in one.

    More is better. They come in the order of the first value; of equal points, the first one counts.
    """
    found = list[int]()
    best = -math.inf
    for position in sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1], i)):
        if points[position][1] > best:
            found.append(position)
            best = points[position][1]
    return found[::-1]
