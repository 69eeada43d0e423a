"""`berth console`: answers people. It keeps what serve's records say, explains, audits, and counts the fleet. What does
not belong here: HTTP, and anything that serve needs."""

from extender.console.active_policy import ActivePolicy
from extender.console.authentication import TokenReviewer, Verdict
from extender.console.console_service import ClusterPicture, Console
from extender.console.decision_history import DecisionHistory
from extender.console.explainer import Explainer, UnknownPod, to_json
from extender.console.fleet_overview import MOST_WATCHERS
from extender.console.ingest import StaleEpoch

__all__ = [
    "MOST_WATCHERS",
    "ActivePolicy",
    "ClusterPicture",
    "Console",
    "DecisionHistory",
    "Explainer",
    "StaleEpoch",
    "TokenReviewer",
    "UnknownPod",
    "Verdict",
    "to_json",
]
