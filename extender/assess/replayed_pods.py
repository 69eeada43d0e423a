"""The same pods once more: a replay of the running pods with claims on the emptied nodes, by Berth and without it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.nodes import PoolDevice
from extender.api.fields import Json, inner
from extender.api.object_meta import ObjectKey
from extender.api.pod_annotations import TOPOLOGY_ANNOTATION
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.quantity import NANO, parse_quantity
from extender.api.resource_claims import Result
from extender.assess.cluster_reading import ClusterReading
from extender.assess.gang_spread import GangSpread
from extender.assess.pod_sets import PodSet
from extender.base.berth_errors import BerthError
from extender.replay import Job, Outcome, Task, fleet_of, placement_of, run_side_by_side
from extender.vendors import GPU, driver_of

_MAX_NODES = 256  # that are replayed: the work grows with the product of nodes and pods
_SEED = 1


@dataclass(frozen=True, slots=True)
class Figures:
    """What one placement gave. Bandwidths in GB/s; None where there is nothing to measure."""

    placement: str
    started: int  # of `jobs`
    joined: float | None  # share of the pods with several GPUs
    gbps: float | None  # mean of their rings
    share: float | None  # of the best of their nodes
    nics: float | None  # share of the pairs of GPU and NIC that are as near as the node allows
    domains: float | None  # of a gang, in the mean


@dataclass(slots=True)
class Replayed:
    """The replay. `rows` begin with what the cluster has today; `problem` says why there are none."""

    nodes: int = 0
    of_nodes: int = 0
    pods: int = 0
    jobs: int = 0
    left_out: int = 0  # pods on these nodes that cannot be replayed
    rows: list[Figures] = field(default_factory=list)
    problem: str = ""


def replayed_pods(
    reading: ClusterReading,
    snapshot: Snapshot,
    sets: Sequence[PodSet],
    gangs: Sequence[GangSpread],
    levels: Sequence[str],
    progress: Callable[[int], None] = lambda _: None,
) -> Replayed:
    """Replay the pods of the fleet, or of a part of it that has whole domains."""
    nodes = _sample(snapshot, levels)
    found = Replayed(len(nodes), len(snapshot.node_infos))
    choice = _Choice(reading, snapshot, nodes)
    try:
        jobs = choice.jobs()
        found.pods, found.jobs, found.left_out = len(choice.chosen), len(jobs), choice.left_out
        if not jobs:
            found.problem = "no pod with claims runs"
            return found
        fleet = fleet_of((), choice.fleet())
        tasks = [Task(fleet, jobs, placement_of(one), _SEED) for one in ("berth", "first fit", "emptiest node")]
        outcomes = run_side_by_side(tasks, progress)
    except (BerthError, RuntimeError, ValueError) as error:
        found.problem = str(error)
        return found
    chosen = choice.chosen
    today = [one for one in sets if one.uid in chosen and one.is_several]
    inside = [one for one in gangs if one.uids <= chosen]
    pairs = [(one.near, one.pairs) for one in sets if one.uid in chosen and one.pairs]
    nics = sum(near for near, _ in pairs) / sum(count for _, count in pairs) if pairs else None
    found.rows = [_today(today, inside, len(jobs), nics)]
    found.rows += (_figures(one, knows_nics=nics is not None) for one in outcomes)
    return found


def _today(sets: Sequence[PodSet], gangs: Sequence[GangSpread], jobs: int, nics: float | None) -> Figures:
    """Measured as a replay does it: GPUs whose links are not known count as not joined."""
    domains = sum(one.domains for one in gangs) / len(gangs) if gangs else None
    if not sets:
        return Figures("today", jobs, None, None, None, nics, domains)
    gbps, best = sum(one.gbps for one in sets), sum(one.best_gbps for one in sets)
    joined = sum(one.joined for one in sets) / len(sets)
    return Figures("today", jobs, joined, gbps / len(sets), gbps / best if best else None, nics, domains)


def _figures(outcome: Outcome, *, knows_nics: bool) -> Figures:
    nics = outcome.nic if knows_nics else math.nan
    values = (outcome.joined, outcome.ring_gbps, outcome.ring, nics, outcome.domains)
    return Figures(outcome.placement, outcome.started, *(None if math.isnan(one) else one for one in values))


def _sample(snapshot: Snapshot, levels: Sequence[str]) -> frozenset[str]:
    """At most _MAX_NODES nodes with GPUs: every so many-th domain, so that the mix of nodes stays."""
    domains: dict[tuple[str, str], list[str]] = {}
    for name, info in sorted(snapshot.node_infos.items()):
        if info.fabric is not None:
            labels = info.node.labels
            domain = next(((level, labels[level]) for level in reversed(levels) if level in labels), ("", name))
            domains.setdefault(domain, []).append(name)
    nodes = sum(map(len, domains.values()))
    every = max(math.ceil(nodes / _MAX_NODES), 1)
    found = list[str]()
    for names in list(domains.values())[::every]:
        if len(found) + len(names) <= _MAX_NODES or not found:
            found += names
    return frozenset(found)


class _Choice:
    """The pods with claims on some nodes, as jobs, and what else is on these nodes."""

    def __init__(self, reading: ClusterReading, snapshot: Snapshot, nodes: frozenset[str]) -> None:
        self._reading = reading
        self._snapshot = snapshot
        self._nodes = nodes
        self.left_out = 0
        self.chosen: set[str] = set()  # UIDs
        self._claims: set[ObjectKey] = set()  # of the chosen pods

    def jobs(self) -> list[Job]:
        """A job for each pod, or for each kind of pods of a group, by age."""
        parts: dict[tuple[GroupKey | str, str], list[tuple[Pod, Job]]] = {}
        groups_elsewhere = {
            pod.membership.key
            for pod in self._reading.pods
            if pod.membership is not None and pod.node_name and pod.node_name not in self._nodes
        }
        for pod in sorted(self._reading.pods, key=lambda pod: (pod.created, pod.key)):
            if pod.node_name not in self._nodes or pod.deleting:
                continue
            group = pod.membership.key if pod.membership is not None and pod.membership.key.name else None
            job = self._job(pod) if group is None or group not in groups_elsewhere else None
            if job is None:
                self.left_out += 1
                continue
            parts.setdefault((group or pod.uid, repr(job.claim)), []).append((pod, job))
        found = []
        for number, members in enumerate(parts.values()):
            self.chosen |= {pod.uid for pod, _ in members}
            found.append(replace(members[0][1], name=f"job-{number}", arrival=float(number), pods=len(members)))
        return found

    def _job(self, pod: Pod) -> Job | None:
        """One pod as a job; None without claims of its own, whose specs are known."""
        extended = {ObjectKey(pod.key.namespace, pod.extended_claim)} if pod.extended_claim else set()
        keys = sorted(pod.claim_keys | extended)
        claims = [self._snapshot.claims.get(key) for key in keys]
        own = [claim for claim in claims if claim is not None and [one.uid for one in claim.reserved_for] == [pod.uid]]
        specs = [inner(self._reading.claims[claim.key], "spec", "") for claim in own if claim.allocation is not None]
        if not specs or len(specs) < len(keys):
            return None
        self._claims.update(keys)
        node_info = self._snapshot.node_infos[pod.node_name]
        given = [claim.allocation.results for claim in own if claim.allocation is not None]
        specs = [_of_product(spec, node_info, results) for spec, results in zip(specs, given, strict=True)]
        spec = specs[0] if len(specs) == 1 else _merged(specs)
        cpu, ram = _requests(self._reading.requests.get(pod.uid, {}))
        several = sum(len(claim.allocation.results) for claim in own if claim.allocation is not None) > 1
        wish = pod.annotations.get(TOPOLOGY_ANNOTATION, "preferred" if several else "")
        return Job(pod.key.name, 0.0, cpu=cpu, ram=ram, topology=wish, claim=spec)

    def fleet(self) -> Iterable[Json]:
        """The nodes and their slices, all classes, and what pods that are not replayed use."""
        for obj in self._reading.fleet:
            spec, kind = obj.get("spec") or {}, obj["kind"]
            if kind == "Node" and obj["metadata"]["name"] not in self._nodes:
                continue
            if kind == "ResourceSlice" and spec.get("nodeName") and spec["nodeName"] not in self._nodes:
                continue
            yield obj
        for key, claim in self._snapshot.claims.items():
            if claim.allocation is not None and key not in self._claims:
                yield self._reading.claims[key]
        for obj in (*self._reading.others, *self._reading.requests.values()):
            if (obj.get("metadata") or {}).get("uid") not in self.chosen:
                yield obj


def _of_product(spec: Json, node_info: NodeInfo, results: Iterable[Result]) -> Json:
    """The spec with selectors for the products that the pod has: a replay leaves out its node selectors."""
    wanted = dict[str, str]()  # by name of the request
    for result in results:
        bit = node_info.inventory.index.get(result.device)
        if bit is not None and (found := product_expression(node_info.inventory.devices[bit])):
            wanted[result.request] = found
    devices = inner(spec, "devices", "spec")
    return {
        **spec,
        "devices": {**devices, "requests": [_selecting(one, wanted) for one in devices.get("requests") or ()]},
    }


def product_expression(gpu: PoolDevice) -> str:
    """The CEL expression that GPUs of the same product meet; '' for other devices, or without a product."""
    driver, attributes = driver_of(gpu.id.driver), gpu.device.attributes
    for name in driver.product if driver.kind == GPU else ():
        if isinstance(attributes.get(name), str):
            domain, _, short = name.rpartition("/")
            of = f"device.attributes[{_quoted(domain)}]"
            return f"{_quoted(short)} in {of} && {of}.{short} == {_quoted(str(attributes[name]))}"
    return ""


def _selecting(request: Json, wanted: Mapping[str, str]) -> Json:
    """The request with the selector of its name. Of alternatives, the one that was allocated gets it."""
    name = request["name"]
    if name in wanted and request.get("exactly"):
        return {**request, "exactly": _narrowed(request["exactly"], wanted[name])}
    options = request.get("firstAvailable") or ()
    narrowed = [_narrowed(one, wanted[of]) if (of := f"{name}/{one['name']}") in wanted else one for one in options]
    return {**request, **({"firstAvailable": narrowed} if narrowed else {})}


def _narrowed(request: Json, expression: str) -> Json:
    return {**request, "selectors": [*(request.get("selectors") or ()), {"cel": {"expression": expression}}]}


def _quoted(text: str) -> str:
    """A CEL string, which has the escapes of JSON."""
    return json.dumps(text)


def _merged(specs: Sequence[Json]) -> Json:
    """The specs of several claims of one pod as one. Each claim's requests get its number in their names."""
    requests, constraints = list[Json](), list[Json]()
    for number, spec in enumerate(specs):
        devices = inner(spec, "devices", "spec")
        asked = devices.get("requests") or []
        requests += [{**one, "name": f"c{number}-{one['name']}"} for one in asked]
        constraints += [_renamed(one, number, devices) for one in devices.get("constraints") or []]
    return {"devices": {"requests": requests, **({"constraints": constraints} if constraints else {})}}


def _renamed(constraint: Json, number: int, devices: Json) -> Json:
    """The constraint about the renamed requests. Without names it is about all requests of its claim."""
    names = constraint.get("requests") or [one["name"] for one in devices.get("requests") or ()]
    return {**constraint, "requests": [f"c{number}-{name}" for name in names]}


def _requests(pod: Json) -> tuple[int, int]:
    """(CPU in thousandths of a core, memory in bytes) that the containers of a pod request."""
    cpu = ram = 0
    for container in (pod.get("spec") or {}).get("containers") or ():
        asked: Mapping[str, object] = (container.get("resources") or {}).get("requests") or {}
        cpu += parse_quantity(str(asked.get("cpu", 0))).nanos * 1000 // NANO
        ram += parse_quantity(str(asked.get("memory", 0))).nanos // NANO
    return cpu, ram
