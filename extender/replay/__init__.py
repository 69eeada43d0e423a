"""Replays jobs on a virtual cluster in virtual time, with the decisions of serve or with those of other placements.

`run_replay` is the engine: a fleet, jobs by time, and a placer make an Outcome. Three modules are faces of their
own: `published_traces`, `emptied_nodes` (whose GPUs a device plugin offers) and `picture`.
"""

from extender.replay.fleets import Fleet, cel_text, fleet_of, several, version_problem
from extender.replay.job_files import JobFile, job_problem, read_jobs
from extender.replay.job_player import JobPlayer
from extender.replay.jobs import SPEC_FIELDS, Job
from extender.replay.outcome import NO_GPU, SIZES, LargeShape, Outcome, large_shape
from extender.replay.placers import Placer, placer_of
from extender.replay.replay import Task, measured_side_by_side, run_replay, run_side_by_side
from extender.replay.restart_proof import Proof, prove
from extender.replay.virtual_scheduler import NodeRoom

__all__ = [
    "NO_GPU",
    "SIZES",
    "SPEC_FIELDS",
    "Fleet",
    "Job",
    "JobFile",
    "JobPlayer",
    "LargeShape",
    "NodeRoom",
    "Outcome",
    "Placer",
    "Proof",
    "Task",
    "cel_text",
    "fleet_of",
    "job_problem",
    "large_shape",
    "measured_side_by_side",
    "placer_of",
    "prove",
    "read_jobs",
    "run_replay",
    "run_side_by_side",
    "several",
    "version_problem",
]
