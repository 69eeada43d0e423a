"""`berth console` without HTTP: it explains decisions, audits the cluster and counts the fleet.

HTTP, and code that serve needs, do not belong here.
"""

from extender.console.console_service import Console, ConsoleCluster
from extender.console.decision_history import DecisionHistory
from extender.console.explainer import Explainer, UnknownGroup, UnknownPod, WhatIf, to_json
from extender.console.forked_call import ForkedCallFailed
from extender.console.questions import Questions, TooManyQuestions, Turns

__all__ = [
    "Console",
    "ConsoleCluster",
    "DecisionHistory",
    "Explainer",
    "ForkedCallFailed",
    "Questions",
    "TooManyQuestions",
    "Turns",
    "UnknownGroup",
    "UnknownPod",
    "WhatIf",
    "to_json",
]
