"""What the pods of each node leave of it besides DRA devices: CPU, memory, pods, and what device plugins offer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from extender.allocation import Snapshot
from extender.api.fields import inner
from extender.api.nodes import resource_units
from extender.api.pod_amounts import NO_LIMIT, Amounts, requests_of
from extender.api.pods import Pod
from extender.assess.cluster_reading import ClusterReading
from extender.assess.fleet_state import extended_requests
from extender.assess.pod_facts import ClusterFacts, facts_of
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted
from extender.explain.excluded_nodes import counted_obstacles, excluded_nodes, kept_from
from extender.explain.fleet_rows import takes_no_pods
from extender.scheduling import may_run
from extender.scheduling.requirements import class_of_resource
from extender.vendors.node_labels import PLUGIN_RESOURCES, WHOLE_PLUGIN

AMOUNTS = "CPU, memory, room for pods or devices of a plugin"


class RoomLeft:
    """The room of all nodes of a reading. An amount that cannot be read has no limit: the replay names it."""

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
        wants, left = amounts_of(pod, self._reading), [(self.left.get(name, NO_LIMIT), name) for name in names]
        parts = list[str]()
        for name, amount in extended_requests(pod).items():
            is_of_plugin = all(name in self._infos[node].node.allocatable for node in among) if among else False
            if is_of_plugin or not self._is_provided(name):
                may_use = " that it may use" if any(self._offers(node, name) for node in others) else ""
                parts += self._lacking(name, amount, names, "of them" if among else f"nodes{may_use}", may_use)
        for asked, unit, rows in (
            (wants.cpu / 1000, "CPUs", [(one.cpu / 1000, name) for one, name in left]),
            (wants.ram / 2**30, "GiB of memory", [(one.ram / 2**30, name) for one, name in left]),
        ):
            most, node = max(rows, default=(0.0, ""))
            if most < asked:
                parts.append(f"it requests {asked:.4g} {unit}; {node} has the most left, {max(most, 0):.4g}")
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
