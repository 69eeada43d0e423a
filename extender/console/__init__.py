"""`berth console` without HTTP: it explains decisions, audits the cluster and counts the fleet.

HTTP, and code that serve needs, do not belong here.
"""

from extender.console.auditor import CHECKS, Finding, check_consistency
from extender.console.console_service import Console, ConsoleCluster
from extender.console.decision_history import ComparedSets, DecisionHistory, first_fit_devices
from extender.console.explainer import Brief, Explainer, UnknownGroup, UnknownPod, WhatIf, to_json
from extender.console.forked_call import ForkedCallFailed
from extender.console.questions import (
    BUDGETS_PATH,
    NO_BUDGETS,
    PacedLock,
    Questions,
    RestartAdvisor,
    TooManyQuestions,
)

__all__ = [
    "BUDGETS_PATH",
    "CHECKS",
    "NO_BUDGETS",
    "Brief",
    "ComparedSets",
    "Console",
    "ConsoleCluster",
    "DecisionHistory",
    "Explainer",
    "Finding",
    "ForkedCallFailed",
    "PacedLock",
    "Questions",
    "RestartAdvisor",
    "TooManyQuestions",
    "UnknownGroup",
    "UnknownPod",
    "WhatIf",
    "check_consistency",
    "first_fit_devices",
    "to_json",
]
