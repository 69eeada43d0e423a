"""Replays jobs on a virtual cluster in virtual time, with the decisions of serve or with those of other placements.

`run_replay` is the engine: a fleet, jobs by time, and a placement make an Outcome.
"""

from extender.replay.fleets import Fleet, fleet_of
from extender.replay.job_files import MAX_JOBS, read_jobs
from extender.replay.jobs import Job
from extender.replay.outcome import NO_GPU, SIZES, Outcome
from extender.replay.parallel import Task, run_side_by_side
from extender.replay.picture import picture
from extender.replay.placements import Placement, placement_of
from extender.replay.published_traces import TRACES, read_nodes
from extender.replay.replay import run_replay
from extender.replay.restart_proof import Proof, prove

__all__ = [
    "MAX_JOBS",
    "NO_GPU",
    "SIZES",
    "TRACES",
    "Fleet",
    "Job",
    "Outcome",
    "Placement",
    "Proof",
    "Task",
    "fleet_of",
    "picture",
    "placement_of",
    "prove",
    "read_jobs",
    "read_nodes",
    "run_replay",
    "run_side_by_side",
]
