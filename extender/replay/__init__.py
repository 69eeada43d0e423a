"""Replays jobs on a virtual cluster in virtual time, with the decisions of serve or with those of other placements.

`run_replay` is the engine: a fleet, jobs by time, and a placement make an Outcome.
"""

from extender.replay.fleets import Fleet, fleet_of
from extender.replay.job_files import MAX_JOBS, read_jobs
from extender.replay.jobs import Job
from extender.replay.outcome import Outcome
from extender.replay.placements import Placement, placement_of
from extender.replay.published_traces import TRACES
from extender.replay.replay import run_replay

__all__ = [
    "MAX_JOBS",
    "TRACES",
    "Fleet",
    "Job",
    "Outcome",
    "Placement",
    "fleet_of",
    "placement_of",
    "read_jobs",
    "run_replay",
]
