"""The decision about a bound pod, and its text in the pod's annotation: serve writes the text, the console reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from extender.allocation import NodeInfo, Snapshot
from extender.api.pods import DECISION_BYTES
from extender.base.text_limits import cut, one_line
from extender.scheduling.evaluate import EvaluationContext, Placement
from extender.scheduling.requirements.pod_requirements import PodRequirements
from extender.topology.device_pairs import Accepted, DevicePair, DevicePairs, device_pairs, parse_pairs
from extender.topology.score_parts import ScorePart, product_gbps

_AS_GOOD = 0.0005  # margins below it would be shown as 0.000
_FIELDS = re.compile(
    r"; (?=score [0-9]|devices |[a-z]+ [0-9]\.[0-9]{2}: |pairs |another Comp|runner-up )"
)  # a text may have "; "
_SCORE = re.compile(r"score ([0-9]{1,3}\.[0-9]{3})")
_PART = re.compile(r"([a-z]+) ([0-9]\.[0-9]{2}): (.*)", re.DOTALL)
_PAIRS = "pairs "
_CROWDED = "another ComputeDomain has channels in NVLink clique "
_RUNNER_UP = re.compile(r"runner-up (\S+), (?:as good|([0-9]{1,3}\.[0-9]{3}) behind)")


@dataclass(frozen=True, slots=True)
class ScoredNode:
    """A node that satisfies the pod's requirements, with its score and devices."""

    node: str
    score: float
    devices: tuple[str, ...]  # the devices to allocate, as driver/pool/device
    ring_gbps: float  # GB/s of the ring through the chosen GPUs
    best_gbps: float  # GB/s of the best set of equal size on this node if all its GPUs are free
    source: str  # the source of the link data
    parts: tuple[ScorePart, ...]
    reused: tuple[str, ...] = ()  # devices of the pod's claims that were allocated or promised before
    pairs: tuple[DevicePair, ...] = ()  # of all devices that the pod uses, the first 8
    more_pairs: int = 0
    network: str = ""  # the predicted bandwidth of the NICs, as text
    clique: str = ""  # the node's NVLink clique, if another ComputeDomain has channels in it

    @property
    def all_devices(self) -> tuple[str, ...]:
        """All devices that the pod uses."""
        return (*self.devices, *self.reused)

    @classmethod
    def of(
        cls,
        node_info: NodeInfo,
        placement: Placement,
        requirements: PodRequirements,
        context: EvaluationContext,
        snapshot: Snapshot,
    ) -> ScoredNode:
        """The node with the score and devices of this placement. Raises DeadlineExceeded."""
        gpus = node_info.positions(placement.solution.taken)
        source = node_info.fabric.source.value if node_info.fabric is not None else ""
        claims = (*requirements.allocated_claims, *requirements.promised_claims)
        reused = (claim.allocation.results for claim in claims if claim.allocation is not None)
        best = max(product_gbps(node_info, gpus), placement.ring_gbps)
        return cls(
            node_info.node.name,
            placement.score,
            placement.devices(node_info),
            placement.ring_gbps,
            best if placement.ring_gbps else 0.0,
            source,
            placement.parts,
            tuple(str(result.device) for results in reused for result in results),
            *(_pairs(node_info, placement, requirements, context) if node_info.locality is not None else DevicePairs()),
            one_line(requirements.shared_clique(node_info.node, snapshot)) if requirements.compute_domain else "",
        )

    def annotation(self, runner_up: str, margin: float) -> str:
        """The text of the pod's annotation, which `parse_decision` reads; '' without parts.

        It has the score, the devices, the parts of the score, the pairs of devices, the crowded clique, the runner-up:
        at most 4 KiB.
        """
        if not self.parts:
            return ""
        found = [f"score {self.score:.3f}", f"devices {', '.join(self.all_devices)}"]
        found += [f"{part.name} {part.value:.2f}: {part.sentence}" for part in self.parts]
        if self.pairs:
            found.append(_PAIRS + DevicePairs(self.pairs, self.more_pairs, self.network).text())
        found += [crowded_text(self.clique)] if self.clique else []
        found += [runner_up_text(runner_up, margin)] if runner_up else []
        return cut("; ".join(found), DECISION_BYTES)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision by which Berth bound a pod."""

    at: str  # RFC 3339
    chosen: ScoredNode
    runner_up: str = ""  # the best other node when the pod was filtered
    margin: float = 0.0  # score of the chosen node minus score of the runner-up


class NotedDecision(NamedTuple):
    """A decision as far as the annotation tells it: without the node, and with values of two or three digits."""

    score: float = 0.0
    parts: tuple[ScorePart, ...] = ()
    runner_up: str = ""
    margin: float = 0.0
    pairs: DevicePairs = DevicePairs()
    clique: str = ""


def parse_decision(text: str) -> NotedDecision:
    """Read a text of `ScoredNode.annotation`. A user may change the annotation: what cannot be read has its default."""
    score, parts, runner_up, margin, pairs, clique = 0.0, list[ScorePart](), "", 0.0, DevicePairs(), ""
    for field in _FIELDS.split(text):
        if found := _SCORE.fullmatch(field):
            score = float(found[1])
        elif found := _PART.fullmatch(field):
            parts.append(ScorePart(found[1], float(found[2]), found[3]))
        elif found := _RUNNER_UP.fullmatch(field):
            runner_up, margin = found[1], float(found[2] or 0.0)
        elif field.startswith(_PAIRS):
            pairs = parse_pairs(field.removeprefix(_PAIRS))
        elif field.startswith(_CROWDED):
            clique = field.removeprefix(_CROWDED)
    return NotedDecision(score, tuple(parts), runner_up, margin, pairs, clique)


def _pairs(
    node_info: NodeInfo, placement: Placement, requirements: PodRequirements, context: EvaluationContext
) -> DevicePairs:
    """The pairs of the devices. The selectors are read only for a pair that could be nearer."""
    local = requirements.for_node(node_info.node)
    requests = {
        pick.bit: (name, pick.request)
        for name, picks in zip(local.claim_names, placement.solution.picks, strict=True)
        for pick in picks
    }
    own, simple = requirements.devices_on(node_info), node_info.inventory.simple
    problem = context.problem(node_info, local)
    specs = dict(zip(local.claim_names, local.specs, strict=True))

    def accepted(bit: int) -> Accepted | None:
        if bit not in requests:
            return None
        claim, request = requests[bit]
        match = problem.select(claim, request).match
        # A constraint may forbid a device that the request accepts.
        is_bound = any(constraint.covers(request.name) for constraint in specs[claim].constraints)
        return Accepted(match, match & simple & ~node_info.busy & ~placement.solution.mask, is_bound)

    return device_pairs(node_info, placement.solution.taken | own, accepted)


def crowded_text(clique: str) -> str:
    """What the explanation and the pod's annotation say of a clique that the pod shares with another ComputeDomain."""
    return f"{_CROWDED}{clique}"


def runner_up_text(name: str, margin: float) -> str:
    """The runner-up for users, as the explanation and the pod's annotation name it."""
    return f"runner-up {name}, {'as good' if margin < _AS_GOOD else f'{margin:.3f} behind'}"
