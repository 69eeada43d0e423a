"""What Berth would do on a cluster that it does not schedule: figures and replays from objects that were only read."""

from extender.assess.anonymise import anonymised
from extender.assess.assessment import Assessment, assess
from extender.assess.cluster_reading import BUDGET, ClusterReading, reading_of
from extender.assess.html_page import html_page
from extender.assess.movable_pods import Movable, Terms, movable_pods
from extender.assess.pod_facts import ClusterFacts, facts_of, newest_time
from extender.assess.pod_jobs import job_lines
from extender.assess.restart_advice import Move, RestartAdvice, advise_restarts
from extender.assess.wanted_pods import (
    Shape,
    Wanted,
    check_wanted,
    largest_shapes,
    wanted_group,
    wanted_objects,
    wanted_pod,
)

__all__ = [
    "BUDGET",
    "Assessment",
    "ClusterFacts",
    "ClusterReading",
    "Movable",
    "Move",
    "RestartAdvice",
    "Shape",
    "Terms",
    "Wanted",
    "advise_restarts",
    "anonymised",
    "assess",
    "check_wanted",
    "facts_of",
    "html_page",
    "job_lines",
    "largest_shapes",
    "movable_pods",
    "newest_time",
    "reading_of",
    "wanted_group",
    "wanted_objects",
    "wanted_pod",
]
