"""The whole answer of berth defrag: the advice, its proof, the moves as rows, and the commands that carry it out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isclose
from shlex import quote

from extender.allocation import Features, Snapshot
from extender.api.fields import Json
from extender.api.pod_amounts import NO_LIMIT
from extender.api.pods import Pod
from extender.assess.movable_pods import Movable, gpus_of
from extender.assess.pod_facts import ClusterFacts
from extender.assess.wanted_pods import Wanted
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.base.text_limits import counted
from extender.console import to_json
from extender.defrag import RESERVED, TOLERATION, WAIT_COST, Advice, Asked, Cluster, Restart, Verdict, advise, again
from extender.explain import free_devices
from extender.policy import Policy
from extender.replay import NodeRoom, Proof, prove
from extender.scheduling import Evaluator

_TOLERATION = {"key": TOLERATION.key, "operator": TOLERATION.operator}
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
    cost: float = 0.0  # of what the proof found
    waiting_gpus: int = 0  # of restarted pods that would wait, in `cost` with `waiting_cost`
    waiting_cost: float = 0.0
    is_cheapest: bool = True
    moves: list[Move] = field(default_factory=list)
    placed_on: list[str] = field(default_factory=list)  # nodes of the wanted pods
    reserved: list[str] = field(default_factory=list)  # nodes that become free for the wanted pods
    proof: str = ""  # a sentence
    is_proved: bool = False
    commands: list[str] = field(default_factory=list)
    reason: str = ""  # why most nodes have no room even then
    candidates: int = 0  # restarts that may be proposed
    stays: dict[str, list[str]] = field(default_factory=dict)  # reason to the pods that are never restarted

    def as_json(self) -> Json:
        """The answer as JSON."""
        found: Json = to_json(self)
        return found


def advise_restarts(
    facts: ClusterFacts,
    wanted: Wanted,
    movable: Movable,
    policy: Policy,
    deadline: Deadline,
) -> RestartAdvice:
    """Search until the deadline, and prove what was found."""
    snapshot = facts.cache.snapshot()
    context = Evaluator(Features()).evaluation_context(snapshot, deadline)
    cluster = Cluster.of(snapshot, movable.left, policy, context)
    advice = advise(cluster, wanted.asked, movable.restarts, movable.budgets)
    found = RestartAdvice(
        wanted.asked.text,
        advice.verdict.value,
        is_cheapest=advice.is_cheapest,
        placed_on=sorted(set(advice.nodes.values())),
        candidates=len(movable.restarts),
        stays=movable.stays,
    )
    if advice.verdict is Verdict.IMPOSSIBLE:
        with suppress(DeadlineExceeded):
            found.reason = cluster.without(movable.restarts).refusal(wanted.asked)
    elif advice.verdict is Verdict.ADVICE:
        nodes = _proof_nodes(advice, snapshot)
        own = [one.pod for one in facts.pods.values() if one.pod.node_name and _is_of(one.pod, wanted)]
        left = cluster.without(advice.restarts).left
        total = {name: facts.allocatable.get(name, NO_LIMIT) for name in nodes}
        room = NodeRoom(total, {name: left.get(name, NO_LIMIT) for name in nodes})
        proof = prove(facts.cache, room, wanted.asked, advice.restarts, advice.reserved, policy, own)
        found.moves = [_move(one, proof) for one in advice.restarts]
        _add_cost(found, advice)
        found.reserved = sorted(advice.reserved)
        _add_proof(found, wanted, proof, advice, (len(nodes), len(snapshot.node_infos)))
    return found


# -- the proof -------------------------------------------------------------------------------------------------------


def _is_of(pod: Pod, wanted: Wanted) -> bool:
    return pod.membership is not None and pod.membership.key == wanted.group


def _proof_nodes(advice: Advice, snapshot: Snapshot) -> frozenset[str]:
    infos = snapshot.node_infos
    first = {name for one in advice.restarts for name in one.nodes} | advice.reserved
    first |= {node for places in advice.places.values() for node in places.values()}
    others = sorted(infos.keys() - first, key=lambda name: (-free_devices(infos[name]), name))
    return frozenset([*(first & infos.keys()), *others[: max(_PROOF_NODES - len(first), 0)]])


def _add_cost(found: RestartAdvice, advice: Advice) -> None:
    """The cost if all pods go where the proof found places, which the search may have thought of otherwise."""
    found.waiting_gpus = sum(move.waiting_gpus for move in found.moves)
    found.waiting_cost = WAIT_COST * found.waiting_gpus
    cost = sum(one.cost for one in advice.restarts) + found.waiting_cost
    found.is_cheapest &= isclose(cost, advice.cost)
    found.cost = round(cost, 1)


def _add_proof(found: RestartAdvice, wanted: Wanted, proof: Proof, advice: Advice, nodes: tuple[int, int]) -> None:
    """Say what the proof found, on so many of all nodes. Only a proved advice has commands."""
    needed = [pod.uid for pod in wanted.asked.pods]
    placed = sorted({proof.nodes[uid] for uid in needed if uid in proof.nodes})
    part = "" if nodes[0] == nodes[1] else f"{nodes[0]:,} of "
    on = f"the filter and the binds of berth serve, on {part}{counted(nodes[1], 'node')},"
    if proof.problem:
        found.proof = f"not proved: {proof.problem}"
    elif sum(uid in proof.nodes for uid in needed) < len(advice.nodes):
        reason = next((proof.reasons[uid] for uid in needed if uid in proof.reasons), "they were not placed")
        found.proof = f"not proved: {on} did not place {wanted.asked.text}: {reason}"
    else:
        found.is_proved, found.placed_on = True, placed
        found.commands = list(_commands(wanted.asked, found.reserved, advice))
        moved = sum(not move.waiting_pods for move in found.moves)
        others = "all restarted pods" if moved == len(found.moves) else f"{moved} of {len(found.moves)} restarts"
        found.proof = f"proved: {on} placed {wanted.asked.text} on {', '.join(placed)}, and {others}"


def _move(restart: Restart, proof: Proof) -> Move:
    pods = again(restart).pods
    waiting = [pod for pod in pods if pod.uid not in proof.nodes]
    lacking = {key for pod in waiting for key in pod.claim_keys}
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
        sum(gpus_of(claim) for claim in restart.claims if claim.key in lacking),
        next((proof.reasons[pod.uid] for pod in waiting if pod.uid in proof.reasons), ""),
    )


def _commands(wanted: Asked, reserved: Sequence[str], advice: Advice) -> Iterator[str]:
    """The commands of kubectl that carry an advice out, in their order. Comments stand for what only the user can do.

    The nodes keep a taint that only the wanted pods tolerate until these have their places: otherwise the restarted
    pods, which their owners create at once, may take the nodes first.
    """
    nodes, taint = " ".join(map(quote, reserved)), f"{RESERVED.key}:{RESERVED.effect}"
    yield f"kubectl taint nodes {nodes} {RESERVED.key}=:{RESERVED.effect}"
    if not wanted.is_new:
        yield from (_tolerate(pod) for pod in wanted.pods)
    for one in advice.restarts:
        yield _of_pods(one.pods, "delete pod")
    free = f"kubectl taint nodes {nodes} {taint}-"
    if wanted.is_new:
        yield f"# create the pods with this toleration: {json.dumps(_TOLERATION)}"
        yield f"# when they have nodes: {free}"
    else:
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
