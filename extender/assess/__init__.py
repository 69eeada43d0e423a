"""What Berth would do on a cluster that it does not schedule: figures and replays from objects that were only read."""

from extender.assess.anonymise import anonymised
from extender.assess.assessment import Assessment, assess
from extender.assess.cluster_reading import BUDGET, ClusterReading, reading_of
from extender.assess.console_advice import ConsoleAdvisor
from extender.assess.html_page import html_page
from extender.assess.movable_pods import CLAIM, Movable, Terms, movable_pods
from extender.assess.pod_facts import ClusterFacts, facts_of, newest_time
from extender.assess.pod_jobs import job_lines
from extender.assess.restart_advice import Move, RestartAdvice, advice_for, advise_restarts
from extender.assess.texts import HEADS, gang_cells, headline, product_cells, replay_cells, set_cells
from extender.assess.unread import unread_of
from extender.assess.wanted_pods import (
    Shape,
    Wanted,
    largest_shapes,
    wanted_group,
    wanted_objects,
    wanted_pod,
)

__all__ = [
    "BUDGET",
    "CLAIM",
    "HEADS",
    "Assessment",
    "ClusterFacts",
    "ClusterReading",
    "ConsoleAdvisor",
    "Movable",
    "Move",
    "RestartAdvice",
    "Shape",
    "Terms",
    "Wanted",
    "advice_for",
    "advise_restarts",
    "anonymised",
    "assess",
    "facts_of",
    "gang_cells",
    "headline",
    "html_page",
    "job_lines",
    "largest_shapes",
    "movable_pods",
    "newest_time",
    "product_cells",
    "reading_of",
    "replay_cells",
    "set_cells",
    "unread_of",
    "wanted_group",
    "wanted_objects",
    "wanted_pod",
]
