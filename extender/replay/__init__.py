"""Replays jobs on a virtual cluster in virtual time, with the decisions of serve or with those of other placements.

`run_replay` is the engine: a fleet, jobs by time, and a placement make an Outcome.
"""

from extender.replay.fleets import Fleet, cel_text, emptied, fleet_of, version_problem
from extender.replay.job_files import MAX_JOBS, read_jobs
from extender.replay.job_player import JobPlayer
from extender.replay.jobs import SPEC_FIELDS, Job
from extender.replay.large_shapes import LargeShape, large_shape
from extender.replay.node_room import NodeRoom
from extender.replay.outcome import NO_GPU, SIZES, Outcome
from extender.replay.parallel import Task, measured_side_by_side, run_side_by_side
from extender.replay.picture import picture
from extender.replay.placements import Placement, placement_of
from extender.replay.published_traces import TRACES, plain_name, read_nodes
from extender.replay.replay import run_replay
from extender.replay.restart_proof import Proof, prove
from extender.replay.svg import line, svg, text

__all__ = [
    "MAX_JOBS",
    "NO_GPU",
    "SIZES",
    "SPEC_FIELDS",
    "TRACES",
    "Fleet",
    "Job",
    "JobPlayer",
    "LargeShape",
    "NodeRoom",
    "Outcome",
    "Placement",
    "Proof",
    "Task",
    "cel_text",
    "emptied",
    "fleet_of",
    "large_shape",
    "line",
    "measured_side_by_side",
    "picture",
    "placement_of",
    "plain_name",
    "prove",
    "read_jobs",
    "read_nodes",
    "run_replay",
    "run_side_by_side",
    "svg",
    "text",
    "version_problem",
]
