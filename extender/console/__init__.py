"""`berth console` without HTTP: it explains decisions, audits the cluster and counts the fleet.

HTTP, and code that serve needs, do not belong here.
"""

from extender.console.active_policy import ActivePolicy
from extender.console.console_service import Console, ConsoleCluster
from extender.console.decision_history import DecisionHistory
from extender.console.explainer import Explainer, UnknownPod, to_json
from extender.console.fleet_overview import MOST_WATCHERS
from extender.console.forked_call import ForkedCallFailed
from extender.console.group_explainer import UnknownGroup
from extender.console.questions import TooManyQuestions

__all__ = [
    "MOST_WATCHERS",
    "ActivePolicy",
    "Console",
    "ConsoleCluster",
    "DecisionHistory",
    "Explainer",
    "ForkedCallFailed",
    "TooManyQuestions",
    "UnknownGroup",
    "UnknownPod",
    "to_json",
]
