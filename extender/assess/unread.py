"""Which devices a reading does not know: pods whose claims were not read, pools that offer no devices.

No figure states as a fact what depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from extender.allocation import Snapshot
from extender.api.fields import inner, many
from extender.api.pods import Pod
from extender.api.resource_claims import Claim
from extender.assess.cluster_reading import ClusterReading, claims_of
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted
from extender.vendors import GPU, driver_of

_MAX_NAMED = 3  # of one kind


@dataclass(slots=True)
class Unread:
    """What is not known. `notes` has a sentence for each kind of it."""

    pods: set[str] = field(
        default_factory=set
    )  # UIDs of the running pods of which it is not known which GPUs they have
    nodes: set[str] = field(default_factory=set)  # which of their GPUs are free is not known
    uncounted: set[str] = field(default_factory=set)  # nodes with GPUs that no readable pool offers
    claims: str = ""  # of which claims it is not known which devices they have, and why
    notes: list[str] = field(default_factory=list)


def unread_of(reading: ClusterReading, snapshot: Snapshot) -> Unread:
    """What the reading does not know. Without any claims, only what is not counted."""
    found, pools = Unread(), list(_unusable_pools(snapshot))
    found.uncounted = {node for node, driver, _ in pools if driver_of(driver).kind == GPU} | {*reading.alone_on}
    if pools:
        found.notes.append(_note(pools, "pool offers", "pools offer", "no devices, which are not counted"))
    if reading.alone_on:
        rows = [(name, "", "") for name in reading.alone_on]
        found.notes.append(
            _note(rows, "node of slices is", "nodes of slices are", "not known, nor its devices counted")
        )
    if "ResourceClaim" not in reading.unread:
        _add_claims(found, reading, snapshot)
    if "Pod" not in reading.unread and not reading.is_live and (gone := _absent_pods(reading, snapshot)):
        what = "claims and were not read: here, gangs, the replay and --jobs lack them"
        found.notes.append(_note(gone, "pod has", "pods have", what))
    if "Node" in reading.unread:  # taints and cordons close GPUs
        found.nodes |= snapshot.node_infos.keys()
    return found


def _add_claims(found: Unread, reading: ClusterReading, snapshot: Snapshot) -> None:
    running = [pod for pod in reading.pods if pod.node_name]
    unread = [(pod, why) for pod in running if (why := _unread_claim(pod, reading, snapshot))]
    named = {key for pod in running for key in claims_of(pod)}
    alone = [key for key, claim in snapshot.claims.items() if key not in named and _is_unread(claim, reading)]
    found.pods = {pod.uid for pod, _ in unread}
    found.nodes = {pod.node_name for pod, _ in unread} | reading.unread_on
    if alone:
        found.nodes |= snapshot.node_infos.keys()
        found.claims = f"claim {alone[0]}: {snapshot.claims[alone[0]].problem}"
        found.notes.append(f"which GPUs are free is not known ({found.claims})")
    if unread:
        rows = [(pod.node_name, str(pod.key), why) for pod, why in unread]
        found.claims = _note(rows, "running pod has", "running pods have", "claims that were not read")
        found.notes.append(f"{found.claims}: their GPUs, and which others of their nodes are free, are not known")
    elsewhere = [pod for pod in running if pod.uid not in found.pods and _is_elsewhere(pod, snapshot)]
    if elsewhere:
        found.pods |= {pod.uid for pod in elsewhere}
        rows = [(pod.node_name, str(pod.key), "") for pod in elsewhere]
        found.notes.append(_note(rows, "running pod has", "running pods have", "GPUs that no pool offers"))


def _absent_pods(reading: ClusterReading, snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """The pods for which claims are reserved and that files lack, as rows of `_note`."""
    known = reading.requests.keys()
    users = {
        one.uid: f"{key.namespace}/{one.name}"
        for key, claim in snapshot.claims.items()
        for one in claim.reserved_for
        if one.resource == "pods" and one.uid not in known
    }
    return [("", name, "") for name in sorted(users.values())]


def _unusable_pools(snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    """(node, driver, why) of the pools that offer no devices to their nodes."""
    for name, node_info in snapshot.node_infos.items():
        for pool in node_info.inventory.pools:
            if not pool.usable:
                yield name, pool.key.driver, pool.trouble or f"ResourceSlices of pool {pool.key.name} are missing"


def _unread_claim(pod: Pod, reading: ClusterReading, snapshot: Snapshot) -> str:
    """The first claim of a running pod whose devices are not known, and why; '' if there is none."""
    for key in claims_of(pod):
        claim = snapshot.claims.get(key)
        if claim is None and not reading.is_live:
            return f"claim {key}: was not read"
        if claim is not None and _is_unread(claim, reading):
            return f"claim {key}: {claim.problem}"
    if not pod.has_claim_names and not reading.is_live:
        return "its status does not name its claims"
    return ""


def _is_unread(claim: Claim, reading: ClusterReading) -> bool:
    """Whether the claim has devices that cannot be read."""
    if not claim.problem:
        return False
    try:
        allocation = inner(inner(reading.claims[claim.key], "status", ""), "allocation", "status")
        given = many(inner(allocation, "devices", "status.allocation"), "results", "", lambda one, _: one)
    except WireError:
        return True
    return len(given) != len(claim.allocation.results if claim.allocation is not None else ())


def _is_elsewhere(pod: Pod, snapshot: Snapshot) -> bool:
    """Whether the pod has GPUs that its node does not offer: its pool is not usable, or its slice was not read."""
    node_info = snapshot.node_infos.get(pod.node_name)
    claims = (snapshot.claims.get(key) for key in claims_of(pod))
    allocations = (claim.allocation for claim in claims if claim is not None and claim.allocation is not None)
    gpus = (one.device for given in allocations for one in given.results if driver_of(one.device.driver).kind == GPU)
    return any(node_info is None or one not in node_info.inventory.index for one in gpus)


def _note(rows: Iterable[tuple[str, str, str]], one: str, many: str, what: str) -> str:
    """`rows` are (node, name, why)."""
    given = list(rows)
    named = "; ".join(
        f"{name}{' on ' * bool(name and node)}{node}{': ' * bool(why)}{why}" for node, name, why in given[:_MAX_NAMED]
    )
    more = f"; and {len(given) - _MAX_NAMED} more" if len(given) > _MAX_NAMED else ""
    return f"{counted(len(given), one, many)} {what} ({named}{more})"
