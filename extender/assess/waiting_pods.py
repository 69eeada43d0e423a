"""Why pods wait: the explainer's reason for those with claims, the room of nodes for those of a device plugin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from extender.allocation import Features, Snapshot
from extender.api.pods import Pod
from extender.assess.cluster_reading import ClusterReading
from extender.assess.fleet_state import plugin_requests
from extender.base.text_limits import error_line
from extender.console import Explainer
from extender.policy import Policy
from extender.scheduling import Evaluator, PodRequirements, requirements_of

_MAX_EXPLAINED = 20  # kinds of waiting pods
_SECONDS = 2.0  # of work for each


@dataclass(slots=True)
class WaitingPods:
    """Pods that need the same and wait for the same reason. `reason` is Berth's, `scheduler` kube-scheduler's."""

    first: str  # the name of one of them
    pods: int
    reason: str
    scheduler: str = ""
    nearest: str = ""  # the cheapest change that would help


def waiting_pods(reading: ClusterReading, snapshot: Snapshot, policy: Policy, *, knows_free: bool) -> list[WaitingPods]:
    """The waiting pods that need GPUs or other devices, those of which most wait first.

    `knows_free`: whether it is known which devices are free.
    """
    kinds: dict[Hashable, list[Pod]] = {}
    for pod in sorted(reading.pods, key=lambda pod: pod.key):
        if pod.is_waiting:
            kinds.setdefault(_kind(pod, snapshot, policy), []).append(pod)
    explainer = Explainer(reading.cache, Evaluator(Features()), policy)
    room = _room(reading) if reading.offered else {}
    why = "too many kinds of pods wait" if knows_free else "which devices are free is not known"
    most = _MAX_EXPLAINED if knows_free else 0
    found = []
    for number, pods in enumerate(sorted(kinds.values(), key=len, reverse=True)):
        told = error_line(pods[0].unschedulable or pods[0].scheduler_error)
        unexplained = f"not explained, {why}{': ' * bool(told)}{told}"
        one = WaitingPods(str(pods[0].key), len(pods), unexplained, told)
        asked = plugin_requests(pods[0])
        if asked and asked.keys().isdisjoint(snapshot.extended_resources):
            one.reason = _plugin_reason(asked, room)
        elif number < most and (brief := explainer.brief(pods[0].uid, _SECONDS)) is not None:
            one.reason, one.nearest = brief.sentence, brief.nearest
        found.append(one)
    return found


def _kind(pod: Pod, snapshot: Snapshot, policy: Policy) -> Hashable:
    """Pods of one kind have one reason: they need the same, and may go to the same nodes."""
    found = requirements_of(pod, snapshot, policy)
    needs = found.key if isinstance(found, PodRequirements) else (str(found), *plugin_requests(pod).items())
    group = pod.membership.key if pod.membership is not None else None
    return needs, group, pod.node_selectors, pod.tolerations, pod.scheduler


def _room(reading: ClusterReading) -> Mapping[str, list[tuple[int, str]]]:
    """GPUs of a device plugin that no pod requests, by resource: (GPUs, node), the most first."""
    asked = Counter[tuple[str, str]]()
    for pod in reading.pods:
        for name, amount in plugin_requests(pod).items() if pod.node_name else ():
            asked[pod.node_name, name] += amount
    found: dict[str, list[tuple[int, str]]] = {}
    for node, offered in reading.offered.items():
        for name, amount in offered.items():
            found.setdefault(name, []).append((amount - asked[node, name], node))
    return {name: sorted(nodes, reverse=True) for name, nodes in found.items()}


def _plugin_reason(asked: Mapping[str, int], room: Mapping[str, Iterable[tuple[int, str]]]) -> str:
    parts = []
    for name, amount in asked.items():
        left = list(room.get(name, ()))
        if not left:
            parts.append(f"no node offers {name}")
        elif left[0][0] < amount:
            most, node = left[0]
            total = sum(max(free, 0) for free, _ in left)
            parts.append(f"it requests {amount} {name}; {node} has the most left, {max(most, 0)}, all nodes {total}")
    return "; ".join(parts) or "a node has enough GPUs left: CPU, memory, taints or selectors stop the pod"
