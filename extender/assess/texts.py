"""The words of an assessment that the screen and the HTML file share: heads of tables, cells, and the first lines."""

from __future__ import annotations

from collections.abc import Iterator

from extender.assess.assessment import Assessment
from extender.assess.fleet_state import ProductState
from extender.assess.gang_spread import NODE, GangSpread
from extender.assess.pod_sets import PodSet
from extender.assess.replayed_pods import Figures
from extender.base.text_limits import counted

HEADS = {
    "products": ("product", "nodes", "GPUs", "free", "in use", "stranded", "largest joined free set"),
    "sets": ("pod", "node", "GPUs", "joined", "GB/s", "best", "now", "NICs", "links are from"),
    "gangs": ("gang", "pods", "GPUs", "nodes", "domains", "fewest", "of"),
    "waiting": ("pod", "pods", "reason"),
    "breakers": ("pod", "node", "GPUs of the set", "and"),
    "replay": ("", "jobs placed", "joined", "GB/s", "of the best", "NICs near", "domains of a gang"),
}


def headline(found: Assessment) -> Iterator[str]:
    """The answer in a few sentences."""
    products = found.fleet.products
    gpus, free = sum(one.gpus for one in products), sum(one.free for one in products)
    stranded = sum(one.stranded for one in products)
    fleet = f"{counted(found.nodes, 'node')}, {counted(gpus, 'GPU')}"
    if not found.knows_claims:
        yield f"Which GPUs are in use is not known: no ResourceClaims were read. {fleet}."
        return
    yield f"{fleet}: {free} free, {stranded:.0f} of them of no use to the typical job."
    width = found.bandwidth
    if width.pods and width.share is not None:
        yield (
            f"{counted(width.pods, 'pod has', 'pods have')} several GPUs. Of the {width.measured} whose links are "
            f"known, {width.joined} are joined. They have {width.share:.0%} of the bandwidth of their nodes' best sets."
        )
    elif width.pods:
        yield f"{counted(width.pods, 'pod has', 'pods have')} several GPUs. The links between them are not known."
    else:
        yield "No pod with several GPUs has a claim."
    if found.pairs:
        yield f"{found.near} of {counted(found.pairs, 'pair')} of GPU and NIC are as near as their node allows."
    spread = [one for one in found.gangs if one.domains > one.fewest]
    if found.gangs:
        yield f"Of {counted(len(found.gangs), 'gang')}, {len(spread)} spread over more domains than they need."


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def product_cells(one: ProductState, *, is_known: bool = True) -> list[str]:
    """The cells of a product. `is_known`: whether the claims are."""
    if not (is_known or one.counted):
        return [one.product, f"{one.nodes:,}", f"{one.gpus:,}", *("not known",) * 4]
    used = one.allocated + one.shared + one.drifting + one.unhealthy
    found = [one.product, *(f"{count:,}" for count in (one.nodes, one.gpus, one.free, used))]
    return [*found, *(("not known",) * 2 if one.counted else (f"{one.stranded:.1f}", str(one.largest_set or "-")))]


def set_cells(one: PodSet) -> list[str]:
    """The cells of a pod with several GPUs."""
    known = one.is_measured
    joined = ("yes" if one.joined else "no") if known else "?"
    rates = (f"{value:.0f}" if known else "?" for value in (one.gbps, one.best_gbps, one.now_gbps))
    near = f"{one.near} of {one.pairs} near" if one.pairs else "-"
    return [one.pod, one.node, " ".join(one.names), joined, *rates, near, one.links.value]


def gang_cells(one: GangSpread) -> list[str]:
    """The cells of a gang."""
    level = "nodes: no label of a rack" if one.level == NODE else one.level
    return [one.gang, *map(str, (one.pods, one.gpus, one.nodes, one.domains, one.fewest)), level]


def replay_cells(one: Figures) -> list[str]:
    """The cells of one placement."""
    figures = (_percent(one.joined), _amount(one.gbps), _percent(one.share), _percent(one.nics), _amount(one.domains))
    return [one.placement, f"{one.started:,}", *figures]
