"""How the members of a gang limit each other's nodes: pod anti-affinity, pod affinity and topology spread.

kube-scheduler filters by these before it asks Berth, but by the pods that have a node. A plan gives all members their
nodes at once, so it must keep what they require of each other. The watch shows no bound pods: what members require of
other pods, kube-scheduler alone checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from extender.allocation import Snapshot, tolerates
from extender.api.nodes import Node
from extender.api.pods import HOSTNAME, NO_CONSTRAINTS, Pod, PodTerm, SpreadConstraint

NO_LIMIT = 1 << 30  # more members than any gang has
MAX_TERMS = 16  # different ones of a gang that count: each is compared with all members
_NONE: Mapping[str, int] = MappingProxyType({})
Added = Mapping[tuple[Hashable, str], int]
"""The members that a plan has placed, by counter and domain."""

T = TypeVar("T", PodTerm, SpreadConstraint)


@dataclass(frozen=True, slots=True, eq=False)
class NodeLimit:
    """The number of members on one node, or in one domain of a label. Each member counts for all limits that it has.

    Members with the same NodeLimit object count together, and those of several objects with one `counter`.
    """

    most: int  # in any domain
    placed: Mapping[str, int] = field(default_factory=dict)  # domain to number of those that the plan does not move
    domain_of: Mapping[str, str] | None = None  # by node; no limit on other nodes. None: each node is a domain
    over: tuple[str, ...] = ()  # if not empty, the members in the domain that has the fewest add to `most`
    ceiling: int = NO_LIMIT  # with `over`: the most members in any domain of a whole plan
    counter: Hashable = None
    against: Hashable = None  # a counter: a domain with one of its members has no room

    @property
    def counted(self) -> Hashable:
        """What members are counted by."""
        return self.counter if self.counter is not None else self

    def domain(self, node: str) -> str | None:
        """The domain of a node; None if the limit does not hold there."""
        return node if self.domain_of is None else self.domain_of.get(node)

    def left(self, node: str, added: Added = MappingProxyType({}), *, in_turn: bool = True) -> int:
        """How many more of these members fit on a node.

        `in_turn`: as many as kube-scheduler accepts now, and not only once the plan is whole.
        """
        domain = self.domain(node)
        if domain is None:
            return NO_LIMIT
        if self.against is not None and added.get((self.against, domain)):
            return 0
        most = self.most + self._lowest(added) if in_turn or not self.over else self.ceiling
        return max(most - self._number(domain, added), 0)

    def holds(self, added: Added) -> bool:
        """Whether a whole plan keeps the limit."""
        most = self.most + self._lowest(added)
        return all(self._number(one, added) <= most for one in self.over if added.get((self.counted, one)))

    def _lowest(self, added: Added) -> int:
        return min((self._number(one, added) for one in self.over), default=0)

    def _number(self, domain: str, added: Added) -> int:
        return self.placed.get(domain, 0) + added.get((self.counted, domain), 0)

    def key(self, node: str) -> Hashable:
        """Nodes with equal keys have equal room, whatever a plan adds to other nodes."""
        return self.left(node) if self.domain_of is None else (self.left(node), self.domain_of.get(node))


class PreferredAffinity(NamedTuple):
    """The labels by whose domains all members of a gang prefer to be, the largest weight first."""

    together: tuple[str, ...] = ()  # in one domain
    apart: tuple[str, ...] = ()  # in many domains, evenly


NO_PREFERRED_AFFINITY = PreferredAffinity()


class Between(NamedTuple):
    """What members require of each other, and prefer."""

    limits: Mapping[str, tuple[NodeLimit, ...]]  # by UID; members without limits are left out
    together: str = ""  # label of which all members must have one value; '' for none
    preferred: PreferredAffinity = NO_PREFERRED_AFFINITY


@dataclass(frozen=True, slots=True)
class _Members:
    pods: Sequence[Pod]
    snapshot: Snapshot
    placed: Mapping[str, int]  # node to number of bound members
    offered: Collection[str] | None
    found: dict[str, list[NodeLimit]] = field(default_factory=dict)

    def matched(self, term: PodTerm) -> set[str]:
        """The UIDs of the members that a term matches."""
        namespace = self.pods[0].key.namespace
        labels = self.snapshot.namespaces.get(namespace, {})
        return {pod.uid for pod in self.pods if term.matches(pod.labels, namespace, labels)}

    def add(self, uids: Iterable[str], limit: NodeLimit) -> None:
        for uid in uids:
            self.found.setdefault(uid, []).append(limit)

    def domain_of(self, key: str) -> Mapping[str, str] | None:
        return None if key == HOSTNAME else self.snapshot.domains((key,)).name_of

    def placed_in(self, domain_of: Mapping[str, str] | None) -> Mapping[str, int]:
        """Domain to number of bound members. Berth takes these for equal to the members of the plan."""
        if domain_of is None:
            return self.placed
        found: Counter[str] = Counter()
        for node, number in self.placed.items():
            if node in domain_of:
                found[domain_of[node]] += number
        return found


def limits_between(
    pods: Sequence[Pod], snapshot: Snapshot, placed: Mapping[str, int], offered: Collection[str] | None
) -> Between:
    """What the members of a plan require of each other, and what they prefer.

    `placed` has the number of bound members by node. `offered` are the nodes that kube-scheduler offers to a member
    before any of the others has a node; None if that is not known.
    """
    if all(pod.constraints == NO_CONSTRAINTS for pod in pods):
        return Between({})
    members = _Members(pods, snapshot, placed, offered)
    apart = _holders((pod.uid, one) for pod in pods for one in pod.constraints.apart if not one.weight)
    for number, (term, holders) in enumerate(apart.items()):
        _keep_apart(members, term, holders, number)
    spread = _holders((pod.uid, one) for pod in pods for one in pod.constraints.spread if one.required)
    for constraint, holders in spread.items():
        _keep_even(members, constraint, holders)
    limits = {uid: tuple(found) for uid, found in members.found.items()}
    return Between(limits, _together(members), _preferred(members))


def _holders(things: Iterable[tuple[str, T]]) -> dict[T, set[str]]:
    """The UIDs of the members that have each thing; of the first MAX_TERMS things."""
    found: dict[T, set[str]] = {}
    for uid, thing in things:
        if thing in found or len(found) < MAX_TERMS:
            found.setdefault(thing, set()).add(uid)
    return found


def _keep_apart(members: _Members, term: PodTerm, holders: AbstractSet[str], number: int) -> None:
    """Anti-affinity holds both ways: a pod is in no domain of a pod that it rejects, or that rejects it."""
    matched, domain_of = members.matched(term), members.domain_of(term.topology_key)
    if not matched:
        return
    if holders == matched:
        placed = members.placed_in(domain_of) if len(holders) == len(members.pods) else _NONE
        members.add(holders, NodeLimit(1, placed, domain_of))
        return
    for counted, other, has in ((holders, matched, True), (matched, holders, False)):
        for own, most in ((counted & other, 1), (counted - other, NO_LIMIT)):
            limit = NodeLimit(most, _NONE, domain_of, counter=(number, has), against=(number, not has))
            members.add(own, limit)


def _keep_even(members: _Members, constraint: SpreadConstraint, holders: Collection[str]) -> None:
    """Only of members that all have the constraint and are all matched by it: kube-scheduler counts others alone."""
    matched = {pod.uid for pod in members.pods if constraint.matches(pod.labels)}
    if holders != matched:
        return
    domain_of = members.domain_of(constraint.topology_key)
    placed = members.placed_in(domain_of) if len(holders) == len(members.pods) else _NONE
    skew, total = constraint.max_skew, len(holders) + sum(placed.values())
    domains = _eligible_domains(members, constraint, next(pod for pod in members.pods if pod.uid in holders))
    if total < len(domains) or len(domains) < constraint.min_domains:
        members.add(holders, NodeLimit(skew, placed, domain_of))  # one domain has none of them, or counts as empty
    elif members.offered is None or _covers(members.offered, domains, domain_of):
        # Otherwise other pods may count, too: kube-scheduler offers no node where they are too many.
        ceiling = (total + (len(domains) - 1) * skew) // len(domains)
        members.add(holders, NodeLimit(skew, placed, domain_of, tuple(domains), ceiling))


def _eligible_domains(members: _Members, constraint: SpreadConstraint, pod: Pod) -> list[str]:
    """The domains that kube-scheduler compares: those with a node that counts."""
    keys = [one.topology_key for one in pod.constraints.spread if one.required]

    def counts(node: Node) -> bool:
        selectors = pod.node_selectors if constraint.honors_affinity else ()
        taints = node.taints if constraint.honors_taints else ()
        return (
            all(key in node.labels or key == HOSTNAME for key in keys)
            and all(selector.matches(node.name, node.labels) for selector in selectors)
            and all(any(tolerates(one, taint) for one in pod.tolerations) for taint in taints)
        )

    domain_of = members.domain_of(constraint.topology_key)
    nodes = (node_info.node for node_info in members.snapshot.node_infos.values())
    names = (node.name for node in nodes if counts(node))
    found = (name if domain_of is None else domain_of.get(name) for name in names)
    return list(dict.fromkeys(domain for domain in found if domain is not None))


def _covers(offered: Collection[str], domains: Collection[str], domain_of: Mapping[str, str] | None) -> bool:
    seen = {name if domain_of is None else domain_of.get(name) for name in offered}
    return all(domain in seen for domain in domains)


def _together(members: _Members) -> str:
    """The topology key of an affinity that every member has to every other, which puts all into one domain."""
    terms = (term for term in _common(members, [pod.constraints.together for pod in members.pods]) if not term.weight)
    return next((term.topology_key for term in terms), "")


_SPREAD_WEIGHT = 100  # kube-scheduler weighs both plugins equally, and a spread constraint has no weight of its own


def _preferred(members: _Members) -> PreferredAffinity:
    """Only what every member prefers with regard to every other: of these, a plan can be as a whole."""
    together = _common(members, [pod.constraints.together for pod in members.pods])
    apart = _common(members, [pod.constraints.apart for pod in members.pods])
    near = [(term.weight, term.topology_key) for term in together if term.weight]
    far = [(term.weight, term.topology_key) for term in apart if term.weight]
    for one in members.pods[0].constraints.spread[:MAX_TERMS]:
        everyone = all(one in pod.constraints.spread and one.matches(pod.labels) for pod in members.pods)
        if everyone and not one.required:
            far.append((_SPREAD_WEIGHT, one.topology_key))
    return PreferredAffinity(_by_weight(near), _by_weight(far))


def _common(members: _Members, terms: Sequence[tuple[PodTerm, ...]]) -> list[PodTerm]:
    """The terms that every member has, and that match every member."""
    found = [term for term in terms[0][:MAX_TERMS] if all(term in others for others in terms)]
    return [term for term in found if len(members.matched(term)) == len(members.pods)]


def _by_weight(weights: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for _, key in sorted(weights, key=lambda entry: -entry[0])))
