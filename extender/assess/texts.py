"""The words of an assessment that the screen and the HTML file share: heads of tables, cells, and the first lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from extender.assess.assessment import Assessment
from extender.assess.fleet_state import ProductState
from extender.assess.gang_spread import NODE, GangSpread
from extender.assess.pod_sets import PodSet
from extender.assess.replayed_pods import Figures
from extender.base.text_limits import counted

HEADS = {
    "products": ("product", "nodes", "GPUs", "free", "closed", "in use", "stranded", "largest set"),
    "sets": ("pod", "node", "GPUs", "joined", "GB/s", "best", "now", "NICs", "links"),
    "gangs": ("gang", "pods", "GPUs", "nodes", "domains", "fewest", "of"),
    "waiting": ("pod", "pods", "reason"),
    "breakers": ("pod", "node", "GPUs of the set", "and"),
    "replay": ("", "placed", "joined", "GB/s", "of the best", "NICs near", "domains"),
}


_MAX_GATES = 3  # that are named


def headline(found: Assessment) -> Iterator[str]:
    """The answer in a few sentences."""
    if found.cluster:
        yield f"This is {found.cluster}."
    products = [one for one in found.fleet.products if not one.parts]
    parts = [one for one in found.fleet.products if one.parts]
    fleet = f"{counted(found.nodes, 'node')}, {counted(sum(one.gpus for one in products), 'GPU')}"
    if parts:
        fleet += f" and {_in_parts(parts)}"
    if found.uncounted_nodes:
        fleet += f", without those of {counted(found.uncounted_nodes, 'node')} that cannot be counted"
    if "ResourceSlice" in found.unread:
        fleet += ", without those of DRA drivers, of which no ResourceSlices were read"
    if not found.knows_claims:
        yield f"Which GPUs are in use is not known: no ResourceClaims were read. {fleet}."
        return
    if "Node" in found.unread:
        yield f"Which GPUs are free, and how gangs spread, is not known: no Nodes were read. {fleet}."
    else:
        free_parts = [f"{sum(one.free for one in parts)} parts of GPUs free"] if parts else []
        yield f"{fleet}: {', '.join([*_free_in_words(products), *free_parts])}."
    width = found.bandwidth
    if width.pods and width.share is not None:
        yield (
            f"{counted(width.pods, 'pod has', 'pods have')} several GPUs. Joined, of those whose links are known: "
            f"{width.joined} of {width.measured}. They have {width.share:.0%} of the bandwidth of their nodes' best "
            "sets."
        )
    elif width.pods:
        yield f"{counted(width.pods, 'pod has', 'pods have')} several GPUs. The links between them are not known."
    elif not found.unread_pods:
        yield "No pod with several GPUs has a claim."
    if found.unread_pods:
        yield f"It is not known which GPUs {counted(found.unread_pods, 'running pod has', 'running pods have')}."
    if found.pairs:
        yield f"Pairs of GPU and NIC that are as near as their node allows: {found.near} of {found.pairs}."
    spread = [one for one in found.gangs if one.domains > one.fewest]
    if found.gangs:
        yield f"Gangs that spread over more domains than they need: {len(spread)} of {len(found.gangs)}."
    if unlevelled := sum(one.may_be_near for one in found.gangs):
        yield (
            f"It is not known how near to each other the nodes of {counted(unlevelled, 'gang')} are: they have no "
            "label of group_levels. Label nodes with their racks, and name the labels in group_levels of the policy."
        )
    for gates, pods in list(found.gated.items())[:_MAX_GATES]:
        which = counted(pods, "more pod has", "more pods have")
        yield f"{which} a scheduling gate ({gates}): no scheduler tries such pods."
    if found.policy:
        yield f"Berth's decisions are those of the policy of {found.policy}."
    if found.found_levels is not None:
        yield (
            f"Nodes have labels of {found.found_levels.setter} that say how near they are, but the policy does not "
            "name these. All that is said here is of a Berth with this line in its policy:"
        )
        yield found.found_levels.line


def _in_parts(parts: Sequence[ProductState]) -> str:
    devices, cards = sum(one.gpus for one in parts), [one.cards for one in parts if one.cards is not None]
    if len(cards) < len(parts):
        return f"{counted(devices, 'part')} of GPUs"
    return f"{counted(sum(cards), 'GPU')} in {counted(devices, 'MIG device or partition', 'MIG devices or partitions')}"


def _free_in_words(products: Sequence[ProductState]) -> Iterator[str]:
    """How many GPUs are free, and how many of these are of no use. Stranded GPUs of a device plugin are not known."""
    free, closed = sum(one.free for one in products), sum(one.closed for one in products)
    measured = [one for one in products if not one.counted]
    free_measured, stranded = sum(one.free for one in measured), round(sum(one.stranded for one in measured))
    yield f"{free} free"
    if free_measured or stranded:
        of = "them" if len(measured) == len(products) else f"the {free_measured} of DRA drivers"
        parts = ", free parts of shared GPUs counted" if any(one.shared for one in measured) else ""
        yield f"{stranded} of {of} of no use to the typical job{parts}"
    elif free:
        yield "how many of them are of no use to the typical job is not known"
    if closed:
        yield f"{closed} in no use, but with a device taint or on nodes that take no pods"
    if drifting := sum(one.drifting for one in products):
        yield f"{drifting} in use by processes without a claim"
    if unhealthy := sum(one.unhealthy for one in products):
        yield f"{unhealthy} with a fault that the agent reports"
    if unknown := sum(one.unknown for one in products):
        yield f"{unknown} free or not, which is not known"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def product_cells(one: ProductState, *, is_known: bool = True) -> list[str]:
    """The cells of a product. `is_known`: whether the claims are."""
    gpus = f"{one.gpus:,}" + (f" of {counted(one.cards, 'GPU')}" if one.cards is not None else "")
    if not (is_known or one.counted):
        return [one.product, f"{one.nodes:,}", gpus, *("not known",) * 5]
    used = one.allocated + one.shared + one.drifting + one.unhealthy
    counts = [f"{one.nodes:,}", gpus, *(f"{count:,}" for count in (one.free, one.closed, used))]
    if one.unknown:
        counts[2] += f", {one.unknown:,} not known"
    largest = "not known" if one.largest_set is None else str(one.largest_set or "-")
    is_hidden = one.counted or (one.unknown and not one.free)
    return [one.product, *counts, *(("not known",) * 2 if is_hidden else (f"{one.stranded:.1f}", largest))]


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
