"""Which ComputeDomains are in which NVLink clique: after any events as if read anew."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from extender.api.claim_specs import ClaimSpec
from extender.api.nodes import Node
from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Allocation, Claim, Reservation, Result
from extender.api.resource_slices import DeviceId
from extender.cache import ClusterCache
from extender.vendors import CLIQUE_LABEL, COMPUTE_DOMAIN_DRIVER, COMPUTE_DOMAIN_LABEL, compute_domain

NODES, CLAIMS, DOMAINS = ["n0", "n1", "n2"], ["c0", "c1", "c2"], ["", "x", "y"]
_NODE = st.tuples(st.just("node"), st.sampled_from(NODES), st.sampled_from(["", "k", "l"]), st.sampled_from(DOMAINS))
_GONE = st.tuples(st.sampled_from(["no node", "no claim", "release"]), st.integers(0, 2), st.none(), st.none())
_CLAIM = st.tuples(
    st.sampled_from(["claim", "hold"]), st.sampled_from(CLAIMS), st.sampled_from(["", *NODES]), st.none()
)


def results(node: str) -> tuple[Result, ...]:
    return (Result("channel", DeviceId(COMPUTE_DOMAIN_DRIVER, node, "channel-0")),) if node else ()


def expected(cache: ClusterCache) -> dict[str, set[str]]:
    """The domains by clique, from all objects."""
    found = defaultdict[str | None, set[str | None]](set)
    nodes = cache.store.nodes
    for name, node in nodes.items():
        found[node.labels.get(CLIQUE_LABEL)].add(node.labels.get(COMPUTE_DOMAIN_LABEL))
        for claim in cache.store.claims.values():
            allocated = claim.allocation.results if claim.allocation is not None else ()
            reserved = cache.reservations.by_claim.get(claim.uid)
            for result in (*allocated, *(reserved.results if reserved is not None else ())):
                if result.device.pool == name:
                    found[node.labels.get(CLIQUE_LABEL)].add(compute_domain(claim.spec))
    clean = {clique: {one for one in domains if one} for clique, domains in found.items() if clique}
    return {clique: domains for clique, domains in clean.items() if domains}


@given(st.lists(st.one_of(_NODE, _CLAIM, _CLAIM, _GONE), max_size=25))
def test_the_domains_of_a_clique_are_those_of_its_claims_holds_and_labels(events: list[tuple]) -> None:
    cache = ClusterCache()
    for number, (kind, name, value, domain) in enumerate(events):
        match kind:
            case "node":
                labels = {CLIQUE_LABEL: value, COMPUTE_DOMAIN_LABEL: domain}
                cache.apply_node(name, Node(name, {key: text for key, text in labels.items() if text}))
            case "no node":
                cache.apply_node(NODES[name], None)
            case "claim":
                key = ObjectKey("default", name)
                claim = Claim(
                    key,
                    f"uid-{name}",
                    str(number),
                    ClaimSpec(domains=((COMPUTE_DOMAIN_DRIVER, DOMAINS[int(name[1])]),)),
                )
                cache.apply_claim(key, replace(claim, allocation=Allocation(results(value))) if value else claim)
            case "no claim":
                cache.apply_claim(ObjectKey("default", CLAIMS[name]), None)
            case "hold":
                known = ObjectKey("default", name) in cache.store.claims
                if known and value and f"uid-{name}" not in cache.reservations.by_claim:
                    cache.hold({f"uid-{name}": Reservation(f"pod-{name}", value, results(value), 100.0)})
            case "release":
                cache.release(f"pod-{CLAIMS[name]}")
        found = cache.snapshot().compute_domains
        assert {clique: set(domains) for clique, domains in found.items()} == expected(cache)
