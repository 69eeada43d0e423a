"""Why pods wait: the explainer's reason for those with claims, the room of nodes for GPUs of a device plugin.

kube-scheduler asks Berth only about nodes with enough CPU and memory. So a pod fits if Berth finds devices on these.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from extender.allocation import Features, Snapshot
from extender.api.fields import inner
from extender.api.nodes import resource_units
from extender.api.pod_amounts import NO_LIMIT, Amounts, requests_of
from extender.api.pods import Pod
from extender.assess.cluster_reading import ClusterReading, unread_group
from extender.assess.fleet_state import extended_requests, plugin_requests
from extender.assess.known_texts import key_of_others, other_reason
from extender.assess.movable_pods import ClusterFacts, facts_of
from extender.assess.wanted_pods import wanted_pod
from extender.base.berth_errors import WireError
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.base.text_limits import counted, error_line, first_few
from extender.console import Brief, Explainer, WhatIf
from extender.defrag import Cluster
from extender.explain.excluded_nodes import counted_obstacles, excluded_nodes, kept_from
from extender.explain.fleet_rows import takes_no_pods
from extender.explain.scenario import Scenario
from extender.gangs.gang import gang_minimum
from extender.policy import Policy
from extender.replay import several
from extender.scheduling import Evaluator, PodRequirements, may_run, requirements_of
from extender.scheduling.requirements import Skip, class_of_resource, unprovided_resource
from extender.topology.link_knowledge import NOT_KNOWN
from extender.vendors.node_labels import PLUGIN_RESOURCES, WHOLE_PLUGIN

NOT_LOOKED_AT = "pod affinity, spread constraints, host ports, volumes and quotas"
_MAX_EXPLAINED = 32  # kinds of waiting pods
_MAX_SECONDS = 2.0  # of work for each
_MAX_NAMED = 3  # nodes of a gang
_AMOUNTS = "CPU, memory, room for pods or devices of a plugin"
_LITTLE = f"have too little {_AMOUNTS} left"


@dataclass(slots=True)
class WaitingPods:
    """Pods that need the same and wait for the same reason. `reason` is Berth's, `scheduler` kube-scheduler's."""

    first: str  # the name of one of them
    pods: int
    reason: str
    scheduler: str = ""
    nearest: str = ""  # the cheapest change that would help
    fits: bool | None = None  # now, alone or with its gang; None: not known
    other_reason: str = ""  # of their scheduler: something that is not looked at here
    fits_alone: bool = False  # it is not known whether their whole group fits


def waiting_pods(reading: ClusterReading, snapshot: Snapshot, policy: Policy, *, knows_free: bool) -> list[WaitingPods]:
    """The waiting pods that need GPUs or other devices, those of which most wait first.

    `knows_free`: whether it is known which devices are free.
    """
    kinds: dict[Hashable, list[Pod]] = {}
    for pod in sorted(reading.pods, key=lambda pod: pod.key):
        if pod.is_waiting:
            kinds.setdefault(_kind(pod, reading, snapshot, policy), []).append(pod)
    reasons, found = _Reasons(reading, snapshot, policy, knows_free=knows_free) if kinds else None, []
    for pods in sorted(kinds.values(), key=len, reverse=True):
        assert reasons is not None
        told = error_line(_told(pods[0]))
        one = WaitingPods(str(pods[0].key), len(pods), "", told, other_reason=error_line(other_reason(_told(pods[0]))))
        reasons.add_to(one, pods[0])
        if one.fits and reasons.is_of_unplanned_group(pods[0]):
            one.fits, one.fits_alone = None, True
            one.reason = f"{one.reason}; this is for it alone: whether its whole group fits is not known"
        if one.fits and one.other_reason:
            one.reason = f"its scheduler says: {told.rstrip('.')}; by its devices, {one.reason}"
        elif told not in one.reason:  # '' is in every text
            one.reason += f"; its scheduler says: {told}"
        found.append(one)
    return found


def _kind(pod: Pod, reading: ClusterReading, snapshot: Snapshot, policy: Policy) -> Hashable:
    """Pods of one kind have one reason: they need the same, and may go to the same nodes.

    Those of other namespaces are other ones: a row has the name of one of its pods.
    """
    found = requirements_of(pod, snapshot, policy)
    needs: Hashable = found.key if isinstance(found, PodRequirements) else str(found)
    asked = amounts_of(pod, reading), *(one.requests for one in pod.containers)
    group = pod.membership.key if pod.membership is not None else pod.uid in reading.foreign_gangs
    others = key_of_others(_told(pod))
    return needs, asked, pod.key.namespace, group, pod.node_selectors, pod.tolerations, pod.scheduler, others


def _told(pod: Pod) -> str:
    """What its scheduler says of a pod; '' if it has not tried it."""
    return pod.unschedulable or pod.scheduler_error


class _Reasons:
    """Why the pods of a reading wait."""

    def __init__(self, reading: ClusterReading, snapshot: Snapshot, policy: Policy, *, knows_free: bool) -> None:
        self._reading = reading
        self._snapshot = snapshot
        self._policy = policy
        self._knows_free = knows_free
        self._evaluator = Evaluator(Features())
        self._explainer = Explainer(reading.cache, self._evaluator, policy)
        self._room = RoomLeft(reading, snapshot)
        self._provided = snapshot.extended_resources.keys()  # by DeviceClasses, not by device plugins
        self._explained = 0
        self._planned = set[str]()  # UIDs of pods whose gang was placed as a whole
        self._running = Counter(
            pod.membership.key
            for pod in reading.pods
            if pod.membership is not None and pod.node_name and not pod.deleting
        )

    def is_of_unplanned_group(self, pod: Pod) -> bool:
        """Whether a pod needs others of its group, which were not placed with it: of a device plugin, or of KAI."""
        if pod.uid in self._planned:
            return False
        of = pod.membership
        if of is not None and (minimum := gang_minimum(of, self._snapshot)):
            return minimum - self._running[of.key] > 1
        return pod.uid in self._reading.foreign_gangs

    def add_to(self, one: WaitingPods, pod: Pod) -> None:
        """Set the reason, and whether the pod fits."""
        if unread := self._unread(pod):
            one.reason = f"not explained, {unread}"
        elif plugin_requests(pod) and not pod.claims and self._provided.isdisjoint(extended_requests(pod)):
            one.fits, one.reason = self._room.reason(pod)
        elif others := self._of_plugins(pod):
            says = f"its scheduler says: {one.scheduler}" if one.scheduler else "where that is free is not known"
            one.reason = f"it asks a device plugin for {', '.join(others)}: {says}"
        elif not self._knows_free:
            one.reason = "not explained, which devices are free is not known"
        elif self._explained == _MAX_EXPLAINED:
            one.reason = "not explained, too many kinds of pods wait"
        else:
            self._explained += 1
            self._explain(one, pod)

    def _unread(self, pod: Pod) -> str:
        """What was not read, without which no reason is known; '' if all was."""
        if kind := unread_group(pod, self._reading):
            return f"the {kind} of its group was not read"
        needed = ("Node", "DeviceClass", "ResourceSlice") if pod.claims else ("Node", "DeviceClass")
        return next((f"no {several(kind)} were read" for kind in needed if kind in self._reading.unread), "")

    def _of_plugins(self, pod: Pod) -> list[str]:
        """The extended resources of a pod that needs nothing else; none if no node offers one (see the explainer)."""
        is_skipped = isinstance(requirements_of(pod, self._snapshot, self._policy), Skip)
        return sorted(extended_requests(pod)) if is_skipped and not unprovided_resource(pod, self._snapshot) else []

    def _explain(self, one: WaitingPods, pod: Pod) -> None:
        """The explainer's reason. If it finds room, nodes that have too little of what is no device are left out."""
        brief = self._explainer.brief(pod.uid, _MAX_SECONDS)
        if brief is None:
            return
        short, nodes = self._room.short(pod), len(self._snapshot.node_infos)
        one.reason, one.nearest, one.fits = brief.sentence, brief.nearest, _fits(brief)
        if not one.fits:
            return
        if brief.group is not None:
            self._planned.add(pod.uid)
            one.fits, one.reason = self._gang_fits(pod, brief.sentence)
        elif len(short) == nodes:
            one.fits, one.reason = False, self._room.lacking(pod) or f"no node has enough {_AMOUNTS} left"
        elif short and (brief := self._explainer.brief(pod.uid, _MAX_SECONDS, WhatIf(Scenario(without_nodes=short)))):
            one.reason, one.nearest, one.fits = self._without(short, pod, brief.sentence), brief.nearest, _fits(brief)

    def _without(self, short: frozenset[str], pod: Pod, sentence: str) -> str:
        """The explainer's sentence on the other nodes, with what is true of those that have too little.

        They come first if no other fits: they have the devices.
        """
        usable, beginning = self._room.usable(pod, short), f"pod {pod.key} fits nowhere: "
        lacking = self._room.lacking(pod, usable) if usable and sentence.startswith(beginning) else ""
        if not lacking:
            return f"{sentence}; {len(short):,} of {counted(len(self._snapshot.node_infos), 'node')} {_LITTLE}"
        nodes = counted(len(usable), "node that it may use has", "nodes that it may use have")
        return f"{beginning}{nodes} too little left: {lacking}; on the others, {sentence.removeprefix(beginning)}"

    def _gang_fits(self, pod: Pod, sentence: str) -> tuple[bool | None, str]:
        """(whether the gang of a pod fits, why), if devices are free for it."""
        try:
            asked = wanted_pod(self._room.facts, self._snapshot, pod.key).asked
            context = self._evaluator.evaluation_context(self._snapshot, Deadline(_MAX_SECONDS, time.monotonic))
            short = [self._room.short(one) for one in asked.pods]
            cluster = Cluster.of(self._snapshot, self._room.left, self._policy, context)
            placed = cluster.place(asked, frozenset.intersection(*short))
        except (DeadlineExceeded, WireError):
            return None, f"{sentence}; whether CPU and memory are free there is not known"
        if placed is None:
            return False, f"devices are free for its group, but not on nodes with enough {_AMOUNTS}"
        nodes = sorted(set(placed.nodes.values()))
        if full := [node for node in nodes if min(placed.cluster.left.get(node, NO_LIMIT)) < 0]:
            return None, f"{sentence}; whether {full[0]} has enough CPU and memory for its pods together is not known"
        return True, sentence + (f"; by CPU and memory, too, on {first_few(nodes, _MAX_NAMED)}" if any(short) else "")


def _fits(brief: Brief) -> bool | None:
    if brief.outcome in ("fits", "planned"):
        return True
    is_known = brief.outcome in ("refused", "blocked", "waiting") and NOT_KNOWN not in brief.sentence
    return False if is_known else None


# -- what nodes have left --------------------------------------------------------------------------------------------


class RoomLeft:
    """What pods leave of each node besides DRA devices: CPU, memory, pods, and what device plugins offer.

    An amount that cannot be read has no limit: the replay names it.
    """

    def __init__(self, reading: ClusterReading, snapshot: Snapshot) -> None:
        self._reading = reading
        self._snapshot = snapshot
        self._infos = snapshot.node_infos
        self._extended = {name: Counter[str]() for name in self._infos}
        for obj in reading.fleet:
            if obj["kind"] == "Node" and (own := self._extended.get(obj["metadata"]["name"])) is not None:
                offered = inner(inner(obj, "status", ""), "allocatable", "status")
                own.update({name: resource_units(name, offered[name]) for name in offered if "/" in name})
        for pod in reading.pods:
            if pod.node_name in self._extended:
                self._extended[pod.node_name].subtract(extended_requests(pod))
        self.facts = ClusterFacts(reading.cache)
        self.left: Mapping[str, Amounts] = {}
        with suppress(WireError):
            self.facts = facts_of(reading)
            self.left = self.facts.left()

    def short(self, pod: Pod) -> frozenset[str]:
        """The nodes that have too little for a pod."""
        wants, asked = amounts_of(pod, self._reading), extended_requests(pod)
        needed = {name for name in asked if not self._is_provided(name)}  # on all nodes; others where a node has them
        return frozenset(
            node
            for node, info in self._infos.items()
            if not self._has(node, wants)
            or any(self._extended[node][name] < asked[name] for name in needed | (asked.keys() & info.node.allocatable))
        )

    def usable(self, pod: Pod, names: Iterable[str]) -> list[str]:
        """Those of the nodes that a pod may use by node selector, affinity, taints and cordons."""
        return [name for name in sorted(names) if may_run(pod, self._infos[name].node)]

    def reason(self, pod: Pod) -> tuple[bool, str]:
        """(whether it fits, why it waits) for a pod of device plugins alone."""
        asked = extended_requests(pod)
        offering = [node for node in self._infos if all(self._offers(node, name) for name in asked)]
        names = [node for node in offering if all(self._extended[node][name] >= asked[name] for name in asked)]
        if not names:
            excluded = excluded_nodes(pod, self._infos)
            if len(excluded) == len(self._infos):
                return False, f"it may use no node: {counted_obstacles(excluded.values())}"
            return False, self.lacking(pod) or "no node has enough left of all that it requests"
        enough = f"{counted(len(names), 'node has', 'nodes have')} enough GPUs left"
        usable, wants = self.usable(pod, names), amounts_of(pod, self._reading)
        if not usable:
            best = [one for one in names if self._has(one, wants)] or names
            kept = f"{enough}: {kept_from(excluded_nodes(pod, {one: self._infos[one] for one in best}))}"
            lacking = self.lacking(pod) if self.usable(pod, offering) else ""
            return False, f"{lacking}; {kept}" if lacking else kept
        free = [one for one in usable if self._has(one, wants)]
        if not free:
            return False, f"{enough}, but those that it may use have too little CPU, memory or room for pods left"
        return True, f"by GPUs, CPU, memory, selectors and taints it fits on {free[0]}"

    def lacking(self, pod: Pod, among: Collection[str] = ()) -> str:
        """Of what no node that a pod may use has enough for it; '' if some node has enough of each thing.

        With `among`, only these nodes count.
        """
        opened = [name for name, info in self._infos.items() if not takes_no_pods(info.node)]
        names = list(among) or self.usable(pod, opened) or opened or list(self._infos)
        others = () if among else set(opened).difference(names)
        wants, parts = amounts_of(pod, self._reading), list[str]()
        for name, amount in extended_requests(pod).items():
            is_of_plugin = all(name in self._infos[node].node.allocatable for node in among) if among else False
            if is_of_plugin or not self._is_provided(name):
                may_use = " that it may use" if any(self._offers(node, name) for node in others) else ""
                parts += self._lacking(name, amount, names, "of them" if among else f"nodes{may_use}", may_use)
        for field, asked, unit in (("cpu", wants.cpu, 1000), ("ram", wants.ram, 2**30)):
            most, node = max(((getattr(self.left.get(name, NO_LIMIT), field), name) for name in names), default=(0, ""))
            if most < asked:
                what = f"{asked / unit:.4g} {'CPUs' if field == 'cpu' else 'GiB of memory'}"
                parts.append(f"it requests {what}; {node} has the most left, {max(most, 0) / unit:.4g}")
        return "; ".join(parts)

    def _lacking(self, resource: str, amount: int, names: Iterable[str], of: str, may_use: str) -> Iterator[str]:
        left = [(self._extended[node][resource], node) for node in names if self._offers(node, resource)]
        most, node = max(left, default=(0, ""))
        if not left:
            whole = " of whole GPUs" if resource == WHOLE_PLUGIN and self._reading.shared_on else ""
            yield f"no node{may_use} offers {resource}{whole}"
        elif most < amount:
            total = sum(max(free, 0) for free, _ in left)
            yield f"it requests {amount} {resource}; {node} has the most left, {max(most, 0)}, all {of} {total}"

    def _has(self, node: str, wants: Amounts) -> bool:
        return self.left.get(node, NO_LIMIT).has(wants)

    def _offers(self, node: str, resource: str) -> bool:
        """Whether a node offers a resource; of GPUs, whole ones."""
        whole = self._reading.offered.get(node, ())
        return resource in (whole if resource in PLUGIN_RESOURCES else self._infos[node].node.allocatable)

    def _is_provided(self, resource: str) -> bool:
        """Whether a DeviceClass provides the resource where no device plugin does."""
        return class_of_resource(resource, self._snapshot.classes, self._snapshot.extended_resources) is not None


def amounts_of(pod: Pod, reading: ClusterReading) -> Amounts:
    """What a pod requests of CPU and memory; nothing if that cannot be read."""
    with suppress(WireError):
        return requests_of(reading.requests[pod.uid])
    return Amounts()
