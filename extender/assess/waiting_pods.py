"""Why pods wait: the explainer's reason for those with claims, the room of nodes for GPUs of a device plugin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from extender.allocation import Features, Snapshot
from extender.api.pod_amounts import NO_LIMIT, Amounts, requests_of
from extender.api.pods import Pod
from extender.assess.cluster_reading import ClusterReading
from extender.assess.fleet_state import plugin_requests
from extender.assess.pod_facts import facts_of
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted, error_line
from extender.console import Explainer
from extender.policy import Policy
from extender.replay.emptied_nodes import WHOLE_PLUGIN
from extender.scheduling import Evaluator, PodRequirements, may_run, requirements_of
from extender.scheduling.requirements import Skip, unprovided_resource
from extender.topology.link_knowledge import NOT_KNOWN

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
    fits: bool | None = None  # now, alone or with its gang; None: not known


def waiting_pods(reading: ClusterReading, snapshot: Snapshot, policy: Policy, *, knows_free: bool) -> list[WaitingPods]:
    """The waiting pods that need GPUs or other devices, those of which most wait first.

    `knows_free`: whether it is known which devices are free.
    """
    kinds: dict[Hashable, list[Pod]] = {}
    for pod in sorted(reading.pods, key=lambda pod: pod.key):
        if pod.is_waiting:
            kinds.setdefault(_kind(pod, reading, snapshot, policy), []).append(pod)
    explainer = Explainer(reading.cache, Evaluator(Features()), policy)
    room: _PluginRoom | None = None
    why = "too many kinds of pods wait" if knows_free else "which devices are free is not known"
    most = _MAX_EXPLAINED if knows_free else 0
    found = []
    for number, pods in enumerate(sorted(kinds.values(), key=len, reverse=True)):
        told = error_line(pods[0].unschedulable or pods[0].scheduler_error)
        unexplained = f"not explained, {why}{': ' * bool(told)}{told}"
        one = WaitingPods(str(pods[0].key), len(pods), unexplained, told)
        asked = plugin_requests(pods[0])
        if asked and asked.keys().isdisjoint(snapshot.extended_resources):
            room = room or _PluginRoom(reading, snapshot)
            one.fits, one.reason = room.reason(pods[0], asked, told)
        elif others := _of_plugins(pods[0], snapshot, policy):
            says = f"its scheduler says: {told}" if told else "where that is free is not known"
            one.reason = f"it asks a device plugin for {', '.join(others)}: {says}"
        elif number < most and (brief := explainer.brief(pods[0].uid, _SECONDS)) is not None:
            one.reason, one.nearest, one.fits = brief.sentence, brief.nearest, _fits(brief.outcome, brief.sentence)
        found.append(one)
    return found


def _fits(outcome: str, sentence: str) -> bool | None:
    if outcome in ("fits", "planned"):
        return True
    is_known = outcome in ("refused", "blocked", "waiting") and NOT_KNOWN not in sentence
    return False if is_known else None


def _kind(pod: Pod, reading: ClusterReading, snapshot: Snapshot, policy: Policy) -> Hashable:
    """Pods of one kind have one reason: they need the same, and may go to the same nodes.

    Those of other namespaces are other ones: a row has the name of one of its pods.
    """
    found = requirements_of(pod, snapshot, policy)
    if isinstance(found, PodRequirements):
        needs: Hashable = found.key
    else:
        needs = str(found), *(one.requests for one in pod.containers), _amounts(pod, reading)
    group = pod.membership.key if pod.membership is not None else None
    return needs, pod.key.namespace, group, pod.node_selectors, pod.tolerations, pod.scheduler


def _of_plugins(pod: Pod, snapshot: Snapshot, policy: Policy) -> list[str]:
    """The extended resources of a pod that needs nothing else; none if no node offers one: the explainer says so."""
    if not isinstance(requirements_of(pod, snapshot, policy), Skip) or unprovided_resource(pod, snapshot):
        return []
    return sorted({name for one in pod.containers for name, amount in one.requests if "/" in name and amount})


def _amounts(pod: Pod, reading: ClusterReading) -> Amounts:
    """What a pod requests of CPU and memory; nothing if that cannot be read."""
    try:
        return requests_of(reading.requests[pod.uid])
    except WireError:
        return Amounts()


class _PluginRoom:
    """What the nodes with GPUs of a device plugin have left."""

    def __init__(self, reading: ClusterReading, snapshot: Snapshot) -> None:
        self._reading = reading
        self._infos = snapshot.node_infos
        self._gpus = {node: Counter(offered) for node, offered in reading.offered.items()}
        for pod in reading.pods:
            if pod.node_name in self._gpus:
                self._gpus[pod.node_name].subtract(plugin_requests(pod))
        try:
            self._left: Mapping[str, Amounts] = facts_of(reading).left()
        except WireError:  # the replay says which amount cannot be read
            self._left = {}

    def reason(self, pod: Pod, asked: Mapping[str, int], told: str) -> tuple[bool, str]:
        """(whether it fits, why a pod waits), as far as the nodes show it. `told` is what kube-scheduler says."""
        names = [node for node, left in self._gpus.items() if all(left[one] >= asked[one] for one in asked)]
        if not names:
            return False, "; ".join(self._lacking(asked)) or "no node offers all that it requests"
        enough = f"{counted(len(names), 'node has', 'nodes have')} enough GPUs left"
        usable = [one for one in names if one in self._infos and may_run(pod, self._infos[one].node)]
        if not usable:
            return False, f"{enough}: its node selector or affinity, taints or cordons keep it from there"
        wants = _amounts(pod, self._reading)
        free = [one for one in usable if self._left.get(one, NO_LIMIT).has(wants)]
        if not free:
            return False, f"{enough}, but those that it may use have too little CPU, memory or room for pods left"
        says = f"; its scheduler says: {told}" if told else ""
        return True, f"by GPUs, CPU, memory, selectors and taints it fits on {free[0]}{says}"

    def _lacking(self, asked: Mapping[str, int]) -> list[str]:
        parts = []
        for name, amount in asked.items():
            left = [(gpus[name], node) for node, gpus in self._gpus.items() if name in self._reading.offered[node]]
            most, node = max(left, default=(0, ""))
            if not left:
                whole = " of whole GPUs" if name == WHOLE_PLUGIN and self._reading.shared_on else ""
                parts.append(f"no node offers {name}{whole}")
            elif most < amount:
                total = sum(max(free, 0) for free, _ in left)
                parts.append(
                    f"it requests {amount} {name}; {node} has the most left, {max(most, 0)}, all nodes {total}"
                )
        return parts
