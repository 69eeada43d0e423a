"""The whole answer of berth defrag: the advice, its proof, the moves as rows, and the commands that carry it out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, groupby
from math import inf
from shlex import quote
from typing import NamedTuple

import structlog

from extender.allocation import Features, Snapshot
from extender.allocation.what_if import hypothetical_snapshot
from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.api.pod_amounts import NO_LIMIT, Amounts
from extender.api.pod_annotations import intent_of
from extender.api.pods import SCHEDULER, Pod
from extender.api.resource_slices import PoolKey
from extender.assess.fleet_state import plugin_requests
from extender.assess.movable_pods import CLAIM, ClusterFacts, Movable, Terms, job_failures, movable_pods
from extender.assess.restart_options import HelpfulOptions, is_kept, tolerates_taint, without_kept
from extender.assess.wanted_pods import DEFAULT, Wanted, check_wanted, wanted_group, wanted_pod
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.base.text_limits import counted, first_few
from extender.cache import ClusterCache
from extender.console import to_json
from extender.defrag import (
    RESERVED,
    TOLERATION,
    WAIT_COST,
    Advice,
    AdviceKind,
    Asked,
    Cluster,
    Restart,
    advise,
    again,
    over_budget,
)
from extender.explain import free_devices
from extender.policy import Policy
from extender.replay import NodeRoom, Proof, prove
from extender.scheduling import Evaluator
from extender.topology.link_knowledge import as_if_joined, assumed, assumed_links, needs_links, unknown_links, unread

_TOLERATION = {"key": TOLERATION.key, "operator": TOLERATION.operator}
NOT_KNOWN = "not-known"  # the verdict if the pods fit, should links that no agent reports join the GPUs
_FORBIDDEN = "forbidden"
_SENTENCES = {
    "fits": "there is room now",
    "impossible": "there is no room even if all pods that may be restarted end",
    _FORBIDDEN: "there is no room after restarts that the PodDisruptionBudgets allow together",
    NOT_KNOWN: "whether there is room, or can be, is not known",
    "gave-up": "no advice was found before the search gave up",
}
_LATE = "give berth defrag more --seconds, or ask for less"
_MANY_WAYS = "there are more ways than it tries, so more --seconds do not help: ask for less"
_NOT_TOGETHER = "one of the pods alone has room, but not so many together"
_SILENT_LEVEL = 50  # the level of log lines: none of the proof has it
_MAX_NAMED = 3  # pods in a sentence
_POD = "pod "  # begins the names of pods among claims
_PROOF_NODES = 256  # on which the pods are placed again: those of the advice, and the freest others


@dataclass(frozen=True, slots=True)
class Move:
    """One restart as a row."""

    restart: str
    owner: str
    pods: tuple[str, ...]
    nodes: tuple[str, ...]
    frees: tuple[str, ...]  # node: its devices
    gpus: int
    gpu_hours: float
    cost: float  # without that of waiting
    goes_to: tuple[str, ...]  # nodes
    waiting_pods: int = 0
    waiting_gpus: int = 0
    waits: str = ""  # the reason


@dataclass(slots=True)
class RestartAdvice:
    """What berth defrag says about some wanted pods."""

    wanted: str
    verdict: str
    sentence: str = ""  # the answer in one line
    cost: float = 0.0  # of what the proof found
    waiting_gpus: int = 0  # of restarted pods that would wait, in `cost` with `waiting_cost`
    waiting_cost: float = 0.0
    is_cheapest: bool = True
    moves: list[Move] = field(default_factory=list)
    placed_on: list[str] = field(default_factory=list)  # nodes of the wanted pods
    still_waits: list[str] = field(default_factory=list)  # wanted pods above the minimum of their gang, without a place
    reserved: list[str] = field(default_factory=list)  # nodes that become free for the wanted pods
    assumed_links: list[str] = field(default_factory=list)  # of `placed_on`: nodes with links as of the usual board
    proof: str = ""  # a sentence
    is_proved: bool = False
    commands: list[str] = field(default_factory=list)
    reason: str = ""  # why most nodes have no room even then, or which budgets forbid it
    ends: list[str] = field(default_factory=list)  # pods and claims, whose devices become free by themselves before
    over_budget: dict[str, int] = field(default_factory=dict)  # budget to the disruptions that room needs of it
    candidates: int = 0  # restarts that may be proposed
    stays: dict[str, list[str]] = field(default_factory=dict)  # reason to the pods that are never restarted
    jobs: str = ""  # a sentence, if pods of Jobs are restarted
    other_schedulers: str = ""  # a sentence, if some of the places are not for Berth to choose

    def as_json(self) -> Json:
        """The answer as JSON."""
        found: Json = to_json(self)
        return found


def advice_for(
    facts: ClusterFacts, wanted: Iterable[Wanted], terms: Terms, policy: Policy, seconds: float
) -> Iterator[RestartAdvice]:
    """The advice for each, after `seconds` at most. Without a priority, that of the wanted pods is the limit.

    Raises WireError if no place could help some of them.
    """
    snapshot, known = facts.cache.snapshot(), dict[Terms, Movable]()
    for one in wanted:
        check_wanted(one, snapshot, policy)
        priority = one.priority if terms.priority is None else terms.priority
        own = replace(terms, priority=priority, wanted=one.belong_to)
        if own not in known:
            known[own] = movable_pods(facts, snapshot, own)
        deadline = Deadline(seconds, time.monotonic)
        found = advise_restarts(facts, one, known[own], policy, deadline)
        options = HelpfulOptions(facts, one, own, known[own], policy, deadline, bool(found.over_budget))
        with suppress(DeadlineExceeded):
            if found.verdict in (AdviceKind.IMPOSSIBLE, NOT_KNOWN) or found.over_budget:
                found.sentence += options.in_words()
            if found.verdict != AdviceKind.FITS:
                found.sentence += options.rollout()
        yield found


def advise_restarts(
    facts: ClusterFacts,
    wanted: Wanted,
    movable: Movable,
    policy: Policy,
    deadline: Deadline,
) -> RestartAdvice:
    """Search until the deadline, and prove what was found."""
    snapshot, kept = without_kept(facts.cache.snapshot(), wanted.asked)
    context = Evaluator(Features()).evaluation_context(snapshot, deadline)
    as_it_is, tried = Cluster.of(snapshot, movable.left, policy, context), list[Proved]()
    ends = _needed_ends(as_it_is, wanted.asked, movable.ending)
    cluster = as_it_is.without(ends)

    def prove_(advice: Advice) -> float:
        tried.append(proved(facts, cluster, wanted, replace(advice, ends=ends), policy))
        return tried[-1].cost

    advice = advise(cluster, wanted.asked, movable.restarts, movable.budgets, prove_)
    if ends and advice.verdict is AdviceKind.FITS:
        advice = replace(advice, verdict=AdviceKind.ADVICE, reserved=wanted.asked.holding(advice.nodes))
        prove_(advice)
    found = RestartAdvice(
        wanted.asked.text,
        advice.verdict.value,
        is_cheapest=advice.is_cheapest,
        placed_on=sorted(wanted.asked.holding(advice.nodes)),
        candidates=len(movable.restarts),
        stays=_stays(movable, wanted.asked),
    )
    restarts: Sequence[Restart] = ()
    if advice.verdict is AdviceKind.FITS:
        found.still_waits = _without_places(wanted.asked, advice.nodes)
    elif advice.verdict in (AdviceKind.IMPOSSIBLE, AdviceKind.GAVE_UP):
        found.reason = _why_gave_up(deadline) if advice.verdict is AdviceKind.GAVE_UP else ""
        with suppress(DeadlineExceeded):
            _add_reason(found, cluster, wanted.asked, movable, policy)
    elif advice.verdict is AdviceKind.ADVICE:
        best = _on_all_freed(facts, cluster, wanted, min(tried, key=lambda one: one.cost), policy)
        restarts = best.advice.restarts
        found.moves = [_move(one, best.proof) for one in restarts]
        found.reserved = sorted(best.advice.reserved)
        found.waiting_gpus = sum(move.waiting_gpus for move in found.moves)
        found.waiting_cost = WAIT_COST * found.waiting_gpus
        found.cost = round(sum(one.cost for one in restarts) + found.waiting_cost, 1)
        found.ends = _awaited(best, as_it_is, wanted.asked)
        found.jobs = job_failures(facts.jobs_of(pod for one in restarts for pod in one.pods), facts.jobs)
        _add_proof(found, wanted, best, snapshot)
    if found.placed_on:
        found.other_schedulers = _other_schedulers(wanted, restarts)
    if _needs_links(wanted.asked, policy):
        found.assumed_links = assumed(snapshot.node_infos[name] for name in found.placed_on)
    notes = _notes(found, facts, cluster, wanted.asked, policy)
    if kept:
        notes += f"; not used, as an earlier advice may have reserved it: {first_few(kept, _MAX_NAMED)}"
        notes += f" ({_free(kept)} ends that)"
    found.sentence = f"{found.wanted}: {_in_one_line(found)}{notes}"
    return found


def _needed_ends(cluster: Cluster, asked: Asked, ending: Sequence[Restart]) -> tuple[Restart, ...]:
    """What ends by itself, unless there is room now."""
    with suppress(DeadlineExceeded):
        if cluster.place(asked) is not None:
            return ()
    return tuple(ending)


def _notes(found: RestartAdvice, facts: ClusterFacts, cluster: Cluster, asked: Asked, policy: Policy) -> str:
    """Says where links that no agent reported may change the answer, for which pods it is, and what it does not know.

    Of GPUs of a device plugin only the kubelet knows which ones are in use.
    """
    nodes, text = list[str](), ""
    with suppress(DeadlineExceeded):
        if found.moves and (nodes := _if_joined(cluster, asked, policy)):
            text = f"; there may be room without a restart: {unknown_links(nodes)}"
    if left := len(found.still_waits):
        text += f"; that is for {len(asked.pods) - left} of {counted(len(asked.pods), 'pod')}: "
        text += f"{first_few(found.still_waits, _MAX_NAMED)} would wait on"
    text += assumed_links([name for name in found.assumed_links if name not in nodes])
    used = {*found.placed_on, *chain.from_iterable(one.goes_to for one in found.moves)}
    pods = [one.pod for one in facts.pods.values() if one.pod.node_name in used and plugin_requests(one.pod)]
    if names := sorted(f"{pod.key} on {pod.node_name}" for pod in pods):
        plugin = f"as a device plugin serves {first_few(names, _MAX_NAMED)}"
        text += f"; GPUs that seem free may be in use, {plugin}"
    return text


def _stays(movable: Movable, asked: Asked) -> dict[str, list[str]]:
    """What stays, without the claims of the wanted pods: nothing of these is to be restarted."""
    own = {f"{CLAIM}{key}" for pod in asked.pods for key in pod.claim_keys}
    found = {why: [name for name in names if name not in own] for why, names in movable.stays.items()}
    return {why: names for why, names in found.items() if names}


def _why_gave_up(deadline: Deadline) -> str:
    try:
        deadline.check_time()
    except DeadlineExceeded:
        return _LATE
    return _MANY_WAYS


def _add_reason(found: RestartAdvice, cluster: Cluster, asked: Asked, movable: Movable, policy: Policy) -> None:
    """Set the reason: budgets forbid the room, no agent read the links, or nodes lack something.

    Raises DeadlineExceeded.
    """
    over = over_budget(cluster, asked, movable.restarts, movable.budgets)
    if over:
        found.over_budget = dict(over)
        found.reason = "; ".join(
            f"PodDisruptionBudget {name} allows {counted(movable.budgets[name], 'disruption')}, the cheapest restarts "
            f"found need {pods}"
            for name, pods in sorted(over.items())
        )
    elif found.verdict == AdviceKind.IMPOSSIBLE:
        ended = cluster.without(movable.restarts)
        nodes = _if_joined(ended, asked, policy)
        found.verdict = NOT_KNOWN if nodes else found.verdict
        found.reason = unknown_links(nodes) if nodes else ended.refusal(asked) or _NOT_TOGETHER * (len(asked.pods) > 1)


def _needs_links(asked: Asked, policy: Policy) -> bool:
    return needs_links(intent_of(pod.annotations, policy.defaults.topology) for pod in asked.pods)


def _if_joined(cluster: Cluster, asked: Asked, policy: Policy) -> list[str]:
    """The nodes whose links no agent reports, and on which the pods have room if links join all GPUs of the node.

    None if the pods need no links. Raises DeadlineExceeded.
    """
    infos, memory = cluster.snapshot.node_infos, cluster.memory
    nodes = {name: as_if_joined(infos[name]) for name in unread(infos.values())}
    if not nodes or not _needs_links(asked, policy):
        return []
    joined = hypothetical_snapshot(cluster.snapshot, {**infos, **nodes}, memory.base.version)
    placed = Cluster.of(joined, cluster.left, memory.policy, memory.context).place(asked)
    return sorted(set(placed.nodes.values()) & nodes.keys()) if placed is not None else []


def _without_places(asked: Asked, nodes: Mapping[str, str]) -> list[str]:
    return [str(pod.key) for pod in asked.pods if pod.uid not in nodes]


def _other_schedulers(wanted: Wanted, restarts: Sequence[Restart]) -> str:
    """Says which pods Berth does not place, so that they may come to other nodes than it says; '' if it places all."""
    moved = [{pod.scheduler or DEFAULT for pod in one.pods} - {SCHEDULER} for one in restarts]
    others = sorted((wanted.schedulers - {SCHEDULER}).union(*moved))
    if not others:
        return ""
    what = [wanted.asked.text] * bool(wanted.schedulers - {SCHEDULER})
    what += [counted(sum(map(bool, moved)), "restart")] * any(moved)
    named = f"for {' and '.join(what)} {' and '.join(others)} may choose other nodes than Berth"
    return f"{named}, whose choice is named here"


def _in_one_line(found: RestartAdvice) -> str:
    restarts = counted(len(found.moves), "restart")
    if found.is_proved:
        cheapest = "" if found.is_cheapest else "; there may be a cheaper way"
        if not found.moves:
            return f"there is room on {', '.join(found.placed_on)}{_when_ended(found.ends)}, no restart"
        ended = f",{_when_ended(found.ends)}" if found.ends else ""
        return f"there is room after {restarts}, cost {found.cost:g} GPU-hours{ended}{cheapest}"
    if found.proof:
        return f"no advice, {restarts} seemed to make room: {found.proof}"
    where = f" on {', '.join(found.placed_on)}" if found.placed_on else ""
    is_forbidden = found.verdict == AdviceKind.IMPOSSIBLE and found.over_budget
    said = _SENTENCES[_FORBIDDEN if is_forbidden else found.verdict]
    return f"{said}{where}" + (f": {found.reason}" if found.reason else "")


def _awaited(best: Proved, cluster: Cluster, asked: Asked) -> list[str]:
    """The pods that end by themselves on the reserved nodes, and the claims there of pods that have ended.

    Pods without devices only where the wanted pods need their CPU, memory or place. `cluster` is as it is.
    """
    advice, needed = best.advice, dict[str, Amounts]()
    for pod in asked.pods:
        node = best.proof.nodes.get(pod.uid, "")
        needed[node] = needed.get(node, Amounts()).plus(asked.amounts(pod))
    freed = [*advice.restarts, *(one for one in advice.ends if one.claims)]
    short = {name for name in advice.reserved if not cluster.left_without(name, freed).has(needed.get(name, Amounts()))}
    infos = [cluster.snapshot.node_infos[name] for name in advice.reserved]
    pools = {pool.key for info in infos for pool in info.inventory.pools}
    own = [
        one
        for one in advice.ends
        if any(PoolKey(of.device.driver, of.device.pool) in pools for of in one.results)
        or (not one.claims and one.nodes <= short)
    ]
    pods = sorted(f"{_POD}{pod.key}" for one in own for pod in one.pods)
    return [*pods, *(one.name for one in own if not one.pods)]


def _when_ended(ends: Sequence[str]) -> str:
    pods = [name.removeprefix(_POD) for name in ends if name.startswith(_POD)]
    claims = [name for name in ends if not name.startswith(_POD)]
    verb = "pod {} has ended" if len(pods) == 1 else "pods {} have ended"
    said = [verb.format(first_few(pods, _MAX_NAMED))] * bool(pods)
    said += [f"Kubernetes has freed {first_few(claims, _MAX_NAMED)}"] * bool(claims)
    return f" when {' and '.join(said)}"


# -- the proof -------------------------------------------------------------------------------------------------------


class Proved(NamedTuple):
    """An advice with its proof, on so many nodes. `cost` is what the proof found; infinite if it proved nothing."""

    advice: Advice
    proof: Proof
    nodes: int
    cost: float


def proved(facts: ClusterFacts, cluster: Cluster, wanted: Wanted, advice: Advice, policy: Policy) -> Proved:
    """Prove an advice. `cluster` is the cluster as it is.

    If filter prefers other nodes for the wanted pods than those of the advice, these are to be reserved, too: otherwise
    restarted pods may take them first.
    """
    reserved = advice.reserved
    while True:
        found = _proved_as_it_is(facts, cluster, wanted, replace(advice, reserved=reserved), policy)
        nodes = wanted.asked.holding(found.proof.nodes)
        if nodes <= reserved:
            return found
        reserved |= nodes


def _on_all_freed(facts: ClusterFacts, cluster: Cluster, wanted: Wanted, best: Proved, policy: Policy) -> Proved:
    """The advice with all nodes reserved where pods end, if that costs no more: then it does not matter when they end.

    Otherwise a restarted pod may take the devices of the first pods that end, before the last ones have ended.
    """
    reserved = best.advice.reserved | _freed(best.advice, cluster.snapshot)
    if reserved == best.advice.reserved or best.cost == inf:
        return best
    found = _proved_as_it_is(facts, cluster, wanted, replace(best.advice, reserved=reserved), policy)
    return found if found.cost <= best.cost else best


def _freed(advice: Advice, snapshot: Snapshot) -> frozenset[str]:
    return frozenset(name for one in advice.restarts for name in one.nodes & snapshot.node_infos.keys())


def _proved_as_it_is(facts: ClusterFacts, cluster: Cluster, wanted: Wanted, advice: Advice, policy: Policy) -> Proved:
    nodes = _proof_nodes(advice, cluster.snapshot)
    own = [one.pod for one in facts.pods.values() if one.pod.node_name and _is_of(one.pod, wanted)]
    left = cluster.without(advice.restarts).left
    total = {name: facts.allocatable.get(name, NO_LIMIT) for name in nodes}
    room = NodeRoom(total, {name: left.get(name, NO_LIMIT) for name in nodes})
    proof = prove(facts.cache, room, wanted.asked, advice, policy, own)
    cost = sum(one.cost + WAIT_COST * one.waiting_gpus(_waiting(one, proof)) for one in advice.restarts)
    placed = sum(pod.uid in proof.nodes for pod in wanted.asked.pods)
    is_proved = (
        not proof.problem
        and placed >= max(len(advice.nodes), 1)
        and wanted.asked.holding(proof.nodes) <= advice.reserved
    )
    return Proved(advice, proof, len(nodes), cost if is_proved else inf)


def _is_of(pod: Pod, wanted: Wanted) -> bool:
    return pod.membership is not None and pod.membership.key == wanted.group


def _proof_nodes(advice: Advice, snapshot: Snapshot) -> frozenset[str]:
    infos = snapshot.node_infos
    first = _freed(advice, snapshot) | advice.reserved
    first |= {node for places in advice.places.values() for node in places.values()}
    others = sorted(infos.keys() - first, key=lambda name: (-free_devices(infos[name]), name))
    return frozenset([*first, *others[: max(_PROOF_NODES - len(first), 0)]])


def _add_proof(found: RestartAdvice, wanted: Wanted, best: Proved, snapshot: Snapshot) -> None:
    """Say what the proof found, on so many of all nodes. Only a proved advice has commands."""
    proof, needed, nodes = best.proof, [pod.uid for pod in wanted.asked.pods], len(snapshot.node_infos)
    placed = sorted(wanted.asked.holding(proof.nodes))
    part = "" if best.nodes == nodes else f"{best.nodes:,} of "
    on = f"the filter and the binds of berth serve, on {part}{counted(nodes, 'node')},"
    if proof.problem:
        found.proof = f"not proved: {proof.problem}"
    elif best.cost == inf:
        reason = next((proof.reasons[uid] for uid in needed if uid in proof.reasons), "they were not placed")
        found.proof = f"not proved: {on} did not place {wanted.asked.text}: {reason}"
    else:
        found.is_proved, found.placed_on = True, placed
        found.still_waits = _without_places(wanted.asked, proof.nodes)
        found.commands = list(_commands(wanted.asked, found.reserved, found.ends, best.advice, snapshot))
        moved, restarts = sum(not move.waiting_pods for move in found.moves), len(found.moves)
        others = ", and all restarted pods" if moved == restarts else f", and {moved} of {restarts} restarts"
        left = len(needed) - len(found.still_waits)
        text = f"{left} of {len(needed)} pods of " * (left < len(needed)) + wanted.asked.text
        found.proof = f"proved: {on} placed {text} on {', '.join(placed)}{others * bool(restarts)}"


def _waiting(restart: Restart, proof: Proof) -> list[Pod]:
    return [pod for pod in again(restart).pods if pod.uid not in proof.nodes]


def _move(restart: Restart, proof: Proof) -> Move:
    pods, waiting = again(restart).pods, _waiting(restart, proof)
    frees: dict[str, list[str]] = {}
    for result in restart.results:
        frees.setdefault(result.device.pool, []).append(result.device.device)
    return Move(
        restart.name,
        restart.owner,
        tuple(str(pod.key) for pod in restart.pods),
        tuple(sorted(restart.nodes)),
        tuple(f"{pool}: {', '.join(sorted(devices))}" for pool, devices in sorted(frees.items())),
        restart.gpus,
        round(restart.gpu_hours, 1),
        round(restart.cost, 1),
        tuple(sorted({proof.nodes[pod.uid] for pod in pods if pod.uid in proof.nodes})),
        len(waiting),
        restart.waiting_gpus(waiting),
        next((proof.reasons[pod.uid] for pod in waiting if pod.uid in proof.reasons), ""),
    )


def _free(nodes: Iterable[str]) -> str:
    return f"kubectl taint nodes {' '.join(map(quote, nodes))} {RESERVED.key}:{RESERVED.effect}-"


def _commands(
    wanted: Asked, reserved: Sequence[str], awaited: Sequence[str], advice: Advice, snapshot: Snapshot
) -> Iterator[str]:
    """The commands of kubectl that carry an advice out, in their order. Comments stand for what only the user can do.

    The nodes keep a taint that only the wanted pods tolerate until these have their places: otherwise the restarted
    pods, which their owners create at once, may take the nodes first.
    """
    fresh = [name for name in reserved if not is_kept(snapshot.node_infos[name].node)]
    if fresh:
        yield f"kubectl taint nodes {' '.join(map(quote, fresh))} {RESERVED.key}=:{RESERVED.effect}"
    pods = chain.from_iterable(one.pods for one in advice.restarts)
    by_namespace = [list(together) for _, together in groupby(pods, key=lambda pod: pod.key.namespace)]
    # If nodes where pods end are not reserved, the pods should end together, as in the proof: only the last one waits.
    is_reserved = _freed(advice, snapshot) <= frozenset(reserved)
    for together in by_namespace:
        option = "" if is_reserved or together is by_namespace[-1] else " --wait=false"
        yield _of_pods(together, "delete pod") + option
    ending = [pod for one in advice.ends for pod in one.pods if f"{_POD}{pod.key}" in awaited]
    for _, others in groupby(sorted(ending, key=lambda pod: pod.key), key=lambda pod: pod.key.namespace):
        yield _of_pods(list(others), "wait --for=delete --timeout=10m pod")
    free = _free(reserved)
    if wanted.is_new:
        yield f"# create the pods with this toleration: {json.dumps(_TOLERATION)}"
        yield f"# when they have nodes: {free}"
    else:
        # Not before the pods are gone: a wanted pod goes to the first node with room, which may not be that of the
        # proof while others still end. Then a restarted pod may lack its place.
        yield from (_tolerate(pod) for pod in wanted.pods if not tolerates_taint(pod))
        placed = [pod for pod in wanted.pods if pod.uid in advice.nodes]
        yield _of_pods(placed, "wait --for=condition=PodScheduled --timeout=10m pod")
        yield free


def _of_pods(pods: Sequence[Pod], verb: str) -> str:
    return f"kubectl -n {quote(pods[0].key.namespace)} {verb} {' '.join(quote(pod.key.name) for pod in pods)}"


def _tolerate(pod: Pod) -> str:
    """Tolerations may be added to a pod that exists. A JSON patch adds to a list only if there is one."""
    path, value = ("/spec/tolerations/-", _TOLERATION) if pod.tolerations else ("/spec/tolerations", [_TOLERATION])
    patch = json.dumps([{"op": "add", "path": path, "value": value}])
    return f"{_of_pods([pod], 'patch pod')} --type json -p {quote(patch)}"


# -- for the console -------------------------------------------------------------------------------------------------


class ConsoleAdvisor:
    """The advice for the page: from the console's cache, and the objects that it lists. See its RestartAdvisor."""

    def __init__(self, cache: ClusterCache) -> None:
        self._facts = ClusterFacts(cache)

    def add(self, objects: Sequence[Json]) -> None:
        """See RestartAdvisor.add."""
        for obj in objects:
            self._facts.add(obj)

    def advise(self, key: ObjectKey, policy: Policy, now: datetime, seconds: float, *, is_group: bool) -> Json:
        """See RestartAdvisor.advise."""
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_SILENT_LEVEL))
        snapshot = self._facts.cache.snapshot()
        wanted = (wanted_group if is_group else wanted_pod)(self._facts, snapshot, key)
        return next(advice_for(self._facts, [wanted], Terms(now, None), policy, seconds)).as_json()
