"""What Berth would do on a cluster that it does not schedule: figures and replays from objects that were only read.

Two modules are faces of their own: `wanted_pods` (the pods that defrag makes room for) and `texts` (the texts of the
command and the page).
"""

from extender.assess.anonymise import anonymised, anonymous_levels
from extender.assess.assessment import Assessment, assess
from extender.assess.cluster_reading import BUDGET, ClusterReading, clock_faults, newest_time, reading_of, unread_of
from extender.assess.html_page import html_page
from extender.assess.movable_pods import CLAIM, ClusterFacts, Terms, facts_of, movable_pods
from extender.assess.pod_jobs import job_lines
from extender.assess.restart_advice import ConsoleAdvisor, Move, RestartAdvice, advice_for, advise_restarts

__all__ = [
    "BUDGET",
    "CLAIM",
    "Assessment",
    "ClusterFacts",
    "ClusterReading",
    "ConsoleAdvisor",
    "Move",
    "RestartAdvice",
    "Terms",
    "advice_for",
    "advise_restarts",
    "anonymised",
    "anonymous_levels",
    "assess",
    "clock_faults",
    "facts_of",
    "html_page",
    "job_lines",
    "movable_pods",
    "newest_time",
    "reading_of",
    "unread_of",
]
