"""The whole answer of berth assess, from what was read of a cluster to plain values for the table, JSON and HTML.

Its first lines are the verdict. It compares the replay by Berth with what the pods have today, and with first fit in
the same replay. Today's pods came and went, the replay begins with emptied nodes: what first fit gains there, too, is
no merit of Berth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.fields import Json, inner
from extender.api.foreign_gangs import FOREIGN_GANGS
from extender.api.gpu_topology import Graph
from extender.assess.cluster_reading import ClusterReading, has_admin_access, unread_of
from extender.assess.fleet_state import FleetState, NodeFacts, fleet_state, plugin_requests, with_parted_gpus_in_use
from extender.assess.gang_spread import GangSpread, gang_key, gang_spreads
from extender.assess.pod_sets import Bandwidth, PodSet, bandwidth_of, pod_sets
from extender.assess.replayed_pods import Figures, Replayed, replayed_pods
from extender.assess.waiting_pods import NOT_LOOKED_AT, WaitingPods, waiting_pods
from extender.base.bits import members
from extender.base.text_limits import counted
from extender.console import to_json
from extender.policy import Policy
from extender.topology.link_knowledge import Links
from extender.vendors.node_labels import FoundLevels, found_levels

_OF_NODES = ("free", "closed", "stranded", "largest_set")
_OF_CLAIMS = (*_OF_NODES, "allocated", "shared")
_OF_LINKS = ("joined", "gbps", "best_gbps", "now_gbps")
_NO = "Berth would not place the running pods better"
_KUBELET = "Only the kubelet knows which GPUs they have today"
_UNKNOWN = "It is not known whether Berth would place the running pods better"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`helps` is None if it is not known."""

    helps: bool | None
    sentences: tuple[str, ...]


@dataclass(slots=True)
class Assessment:
    """What berth assess says of a cluster."""

    nodes: int
    fleet: FleetState
    sets: list[PodSet]  # of the pods with several GPUs, the worst first
    bandwidth: Bandwidth
    near: int  # pairs of a GPU and a NIC that are as near as their node allows
    pairs: int  # the most that can be
    gangs: list[GangSpread]
    waiting: list[WaitingPods]
    plugin_pods: int  # pods whose GPUs a device plugin chose
    plugin_several: int  # those with several of them
    plugin_gpus: int
    shared_pods: int  # pods on nodes whose device plugin offers shared GPUs or parts, which are not counted
    shared_several: int  # those with several of them, which may be of several GPUs
    unread_pods: int  # running pods of which it is not known which GPUs they have
    uncounted_nodes: int  # with a pool of GPUs that offers none
    replay: Replayed
    unknown: list[str]  # what is not known, a sentence each
    lacking: list[str]  # kinds that were not read
    unreadable: list[str]
    graphs: dict[str, Graph] = field(default_factory=dict)  # by node: of the pods with several GPUs
    unread: frozenset[str] = frozenset()  # kinds of which it is not known what the cluster has
    policy: str = ""  # where the policy is from; '': the default
    cluster: str = ""  # that was read; '': files were
    verdict: Verdict = Verdict(None, ())
    gated: dict[str, int] = field(default_factory=dict)  # pods by their scheduling gates
    found_levels: FoundLevels | None = None  # of the nodes, in place of the levels of the policy

    @property
    def knows_claims(self) -> bool:
        """Whether it is known which GPUs of DRA drivers are in use."""
        return "ResourceClaim" not in self.unread

    @property
    def knows_pods(self) -> bool:
        """Whether it is known which GPUs of device plugins are in use."""
        return "Pod" not in self.unread

    def as_json(self) -> Json:
        """The assessment without the graphs. GPUs are a list of positions in place of a mask."""
        names = (name for name in self.__dataclass_fields__ if name not in ("sets", "graphs", "gangs"))
        found: Json = {name: to_json(getattr(self, name)) for name in names}
        found |= {"knows_claims": self.knows_claims, "knows_pods": self.knows_pods}
        hidden = _OF_CLAIMS if not self.knows_claims else _OF_NODES if "Node" in self.unread else ()
        for one in found["fleet"]["products"]:
            one.update({} if one["counted"] else dict.fromkeys(hidden))
        found["bandwidth"]["share"] = self.bandwidth.share
        found["found_levels"] = self.found_levels._asdict() if self.found_levels is not None else None
        found["sets"] = [
            {**to_json(one), "gpus": members(one.gpus), **({} if one.is_measured else dict.fromkeys(_OF_LINKS))}
            for one in self.sets
        ]
        found["gangs"] = [{name: value for name, value in to_json(one).items() if name != "uids"} for one in self.gangs]
        return found


def assess(
    reading: ClusterReading, policy: Policy, source: str = "", cluster: str = "", *, replays: bool
) -> Assessment:
    """Assess a cluster under a policy. `source` says where that is from, unless it is the default one.

    `cluster` names the cluster, unless files were read. If the policy names none of the levels that nodes have, the
    assessment is that of a policy that does.
    """
    snapshot = reading.cache.snapshot()
    if (levels_of_nodes := _found_levels(reading, snapshot, policy)) is not None:
        policy = policy.model_copy(update={"group_levels": levels_of_nodes.levels})
    unread, seen = unread_of(reading, snapshot), with_parted_gpus_in_use(snapshot)
    sets = pod_sets(reading, seen)
    halves = {gang_key(pod, reading) for pod in reading.pods if pod.uid in unread.pods}
    complete = (pod for pod in reading.pods if gang_key(pod, reading) not in halves)
    levels = policy.group_levels
    gangs = gang_spreads(complete, sets, reading, snapshot, levels) if "Node" not in reading.unread else []
    spread = frozenset(chain.from_iterable(one.uids for one in gangs if one.nodes > 1))
    users = {node: list(own) for node, own in groupby(sets, key=lambda one: one.node)}
    fleet = fleet_state(reading, seen, users, spread, levels, unread)
    several = sorted((one for one in sets if one.is_several), key=_worst_first)
    asked = [(sum(plugin_requests(pod).values()), pod.node_name) for pod in reading.pods if pod.node_name]
    whole = [amount for amount, node in asked if node not in reading.shared_on]
    shared = [amount for amount, node in asked if node in reading.shared_on]
    found = Assessment(
        len(snapshot.node_infos),
        fleet,
        several,
        bandwidth_of(several),
        sum(one.near for one in sets),
        sum(one.pairs for one in sets),
        gangs,
        waiting_pods(reading, snapshot, policy, knows_free="ResourceClaim" not in reading.unread and not unread.nodes),
        sum(map(bool, whole)),
        sum(one > 1 for one in whole),
        sum(whole),
        sum(map(bool, shared)),
        sum(one > 1 for one in shared),
        len(unread.pods),
        len(unread.uncounted),
        Replayed(problem="not asked for"),
        [],
        [*reading.lacking, *unread.notes],
        [*reading.unreadable, *(f"node {name}: {why}" for name, why in reading.cache.failed_nodes.items())],
        {one.node: of.graph for one in several if (of := snapshot.node_infos[one.node].fabric) is not None},
        frozenset(reading.unread),
        source,
        cluster,
        gated=_gated(reading),
        found_levels=levels_of_nodes,
    )
    if replays:
        found.replay = replayed_pods(reading, snapshot, sets, gangs, policy, unread.nodes)
    found.verdict = verdict_of(found.replay, found.bandwidth, found.plugin_several, found.waiting)
    found.unknown = list(_unknown(found, reading, snapshot))
    return found


def _found_levels(reading: ClusterReading, snapshot: Snapshot, policy: Policy) -> FoundLevels | None:
    infos = snapshot.node_infos
    labels = (one.node.labels for name, one in infos.items() if one.fabric is not None or name in reading.offered)
    return found_levels(labels, policy.group_levels)


def _gated(reading: ClusterReading) -> dict[str, int]:
    """How many pods with devices have which scheduling gates. No scheduler looks at these pods."""
    found = Counter[str]()
    for pod in reading.pods:
        if pod.gated and pod.may_need_devices and not pod.deleting:
            gates = inner(reading.requests[pod.uid], "spec", "")["schedulingGates"]
            found[", ".join(str(one.get("name")) for one in gates if isinstance(one, dict))] += 1
    return dict(found.most_common())


def _worst_first(one: PodSet) -> tuple[bool, float, float, str]:
    """Those that have the smallest share of what they could have first: of bandwidth, or of near NICs.

    Those of which neither is known are last.
    """
    gbps = one.gbps / one.best_gbps if one.is_measured and one.best_gbps else 1.0
    near = one.near / one.pairs if one.pairs else 1.0
    return not (one.is_measured or one.pairs), min(gbps, near), max(gbps, near), one.pod


# -- what is not known -----------------------------------------------------------------------------------------------


def _unknown(found: Assessment, reading: ClusterReading, snapshot: Snapshot) -> Iterable[str]:
    for fact in found.fleet.facts:
        yield from _about_links(fact)
    silent = sum(fact.nodes - fact.with_nics for fact in found.fleet.facts)
    if silent:
        yield f"{counted(silent, 'node')}: the drivers do not say how near GPUs and NICs are, or there are no NICs."
    if found.plugin_pods:
        yield (
            f"{counted(found.plugin_pods, 'pod has', 'pods have')} {counted(found.plugin_gpus, 'GPU')} of a device "
            "plugin: which ones only the kubelet knows, so these sets are not measured."
        )
    if reading.parts:
        named, nodes = ", ".join(sorted(reading.parts)), set().union(*reading.parts.values())
        yield f"{counted(len(nodes), 'node offers', 'nodes offer')} {named}, which are not counted."
    both = sum(name in snapshot.node_infos and snapshot.node_infos[name].fabric is not None for name in reading.offered)
    if both:
        yield (
            f"{counted(both, 'node offers', 'nodes offer')} GPUs by a device plugin and by slices: if they are the "
            "same ones, they are counted twice, and pods of the plugin use GPUs that seem free."
        )
    if not any(fact.links is Links.AGENT for fact in found.fleet.facts):
        yield "Without the agent: unhealthy GPUs, memory in use without a claim, and broken links are not known."
    claims = reading.cache.store.claims.values()
    if left_out := sum(len(claim.reserved_for) > 1 or has_admin_access(claim) for claim in claims):
        which = counted(
            left_out, "claim is shared by several pods, or has", "claims are shared by several pods, or have"
        )
        yield f"{which} admin access: such pods are not replayed."
    as_groups = "here, in the replay and in --jobs their running pods are a gang, as if they had berth.dev/group"
    if others := [one.source for one in found.gangs if one.source in FOREIGN_GANGS]:
        named = counted(len(others), "gang is named by", "gangs are named by")
        yield f"{named} {', '.join(sorted(set(others)))} alone, which Berth does not read: {as_groups}."
    of_jobs = {pod.uid for pod in reading.pods if pod.jobs and pod.uid not in reading.foreign_gangs}
    if jobs := sum(not one.uids.isdisjoint(of_jobs) for one in found.gangs):
        yield (
            f"{counted(jobs, 'gang is a Job, JobSet or the like', 'gangs are Jobs, JobSets or the like')} without a "
            f"group: {as_groups}."
        )
    if alone := sum(one.pods for one in found.waiting if one.fits_alone):
        yield (
            f"{counted(alone, 'waiting pod fits', 'waiting pods fit')} alone. Whether the whole groups fit is not "
            "known: only groups with claims and with a minimum that Berth reads are placed as a whole."
        )
    if any(one.fits or one.fits_alone for one in found.waiting):
        yield f"Whether waiting pods fit is said without regard to {NOT_LOOKED_AT}."
    if found.replay.rows:
        yield (
            "The replay creates the running pods in the order of their age, none of which ends, each with the "
            "product that it has now (with firstAvailable it may get another one), on nodes that its node selector, "
            "node affinity and tolerations admit. It asks "
            "for links (berth.dev/topology: preferred) for several GPUs."
        )
    if found.replay.rows and found.replay.of_plugin:
        yield "The GPUs of the device plugin are replayed on the usual boards of their products."


def _about_links(fact: NodeFacts) -> Iterable[str]:
    nodes = f"{counted(fact.nodes, 'node')} of {fact.product or 'an unnamed product'}"
    of = "the links are those of the usual board" if fact.links is Links.BOARD else "Berth's agent has read the links"
    if fact.links is Links.UNKNOWN:
        reader = "Only Berth's agent reads it" if fact.readable else "Berth's agent cannot read it for this driver"
        yield (
            f"{nodes}: no driver publishes which GPUs links join, and boards differ. {reader}. Their pods with several "
            "GPUs are not measured."
        )
    elif fact.links is Links.NONE:
        yield f"{nodes}: the product has no links. Sets differ by PCIe and NUMA alone, which bandwidths leave out."
    elif fact.equal:
        joined = "All GPUs are joined whatever one takes: inside a node, Berth wins no bandwidth here."
        yield f"{nodes}: {of}. {joined}"


# -- the verdict -----------------------------------------------------------------------------------------------------


class _Measure(NamedTuple):
    """One of the Figures. `sign` is -1 where less is better. Differences that `digits` do not show do not count."""

    field: str
    form: str  # of the figure
    words: str  # around it
    sign: int = 1
    digits: int = 2

    def value(self, one: Figures) -> float | None:
        found: float | None = getattr(one, self.field)
        return found

    def shown(self, one: Figures) -> str:
        return self.form.format(one)

    def text(self, one: Figures) -> str:
        return self.words.format(self.shown(one))

    def gain(self, one: Figures, other: Figures) -> float:
        """By how much `one` is better; 0 where one of both is not measured."""
        a, b = self.value(one), self.value(other)
        return 0.0 if a is None or b is None else self.sign * (round(a, self.digits) - round(b, self.digits))


_MEASURES = (
    _Measure("joined", "{0.joined_pods:,} of {0.several:,}", "joined GPUs for {} pods with several"),
    _Measure("share", "{0.share:.0%}", "{} of the best bandwidth"),
    _Measure("nics", "{0.nics:.0%}", "{} of the NICs near"),
    _Measure("domains", "{0.domains:.1f}", "{} domains for a gang", sign=-1, digits=1),
)


def verdict_of(replay: Replayed, bandwidth: Bandwidth, plugin_several: int, waiting: Sequence[WaitingPods]) -> Verdict:
    """The verdict. `bandwidth` is that of the running pods today, without the `plugin_several` of a device plugin."""
    helps, text = _of_replay(replay, list(_left_out(replay, bandwidth, plugin_several)))
    return Verdict(helps, (text, *_of_waiting(waiting)))


def _left_out(replay: Replayed, bandwidth: Bandwidth, plugin_several: int) -> Iterator[str]:
    """What might be better with Berth, and is not compared."""
    if unmeasured := bandwidth.pods - bandwidth.measured:
        yield f"{counted(unmeasured, 'pod')} with several GPUs, whose links no agent of Berth has read"
    if plugin_several and not replay.of_plugin:
        yield f"{counted(plugin_several, 'pod')} with several GPUs of a device plugin"
    if replay.unlevelled_gangs:
        yield f"how near the nodes of {counted(replay.unlevelled_gangs, 'gang')} are, which no label says"
    if replay.wide_gangs:
        yield f"{counted(replay.wide_gangs, 'gang')} over more domains than needed, without a replay of all pods"


def _of_replay(replay: Replayed, left_out: Sequence[str]) -> tuple[bool | None, str]:
    if not replay.rows:
        return None, f"{_UNKNOWN}: the replay was not computed ({replay.problem})."
    today, berth, first_fit = replay.rows[:3]
    missing = f" Not compared: {'; '.join(left_out)}." if left_out else ""
    measured = [one for one in _MEASURES if one.value(berth) is not None]
    if not measured and missing:
        return None, f"{_UNKNOWN}.{missing}"
    if not measured:
        return False, f"{_NO}: none of them has several GPUs or a NIC, or is in a gang."
    gains = [one for one in measured if one.gain(berth, today) > 0]
    after = f"{_worse(measured, replay)} {_extent(replay)}{missing}"
    unknown = [one for one in measured if one.value(today) is None]
    if any(one.gain(berth, first_fit) > 0 for one in gains):
        after = f" {_KUBELET}: with Berth, {_list(unknown, replay)}.{after}" if unknown else after
        return True, f"Berth would place the running pods better: {_list(gains, replay)}.{after}"
    if gains:
        why = "First fit does as well there, so the reason may be the emptied nodes"
        return None, f"Berth may place the running pods better: {_list(gains, replay)}. {why}.{after}"
    if unknown:
        return None, f"{_UNKNOWN}. {_KUBELET}: with Berth, {_list(unknown, replay)}.{after}"
    if missing:
        return None, f"{_UNKNOWN}. It would not where that can be compared: {_list(measured, replay)}.{after}"
    return False, f"{_NO}: {_list(measured, replay)}.{after}"


def _list(measures: Sequence[_Measure], replay: Replayed) -> str:
    """The figures of Berth, with those of today and of first fit."""
    today, berth, first_fit = replay.rows[:3]
    parts = []
    for one in measures:
        others = (f"{of.placement} {one.shown(of)}" for of in (today, first_fit) if one.value(of) is not None)
        parts.append(f"{one.text(berth)} ({', '.join(others)})")
    return "; ".join(parts)


def _worse(measures: Sequence[_Measure], replay: Replayed) -> str:
    today, berth, _ = replay.rows[:3]
    losses = [f"{one.text(berth)} (today {one.shown(today)})" for one in measures if one.gain(berth, today) < 0]
    losses += [f"{berth.started:,} of {counted(replay.jobs, 'job')} placed"] if berth.started < replay.jobs else []
    return f" Worse: {'; '.join(losses)}." if losses else ""


def _extent(replay: Replayed) -> str:
    left = f", without {replay.left_out:,} that cannot be replayed" if replay.left_out else ""
    return f"Replayed: {counted(replay.pods, 'pod')} on {replay.nodes:,} of {counted(replay.of_nodes, 'node')}{left}."


def _of_waiting(waiting: Sequence[WaitingPods]) -> Iterator[str]:
    if not waiting:
        return
    pods, fit = sum(one.pods for one in waiting), sum(one.pods for one in waiting if one.fits and not one.other_reason)
    others = sum(one.pods for one in waiting if one.fits and one.other_reason)
    unknown = sum(one.pods for one in waiting if one.fits is None)
    more = f"; by their devices {others:,} more, for which their scheduler has another reason" if others else ""
    more += f"; of {unknown:,} it is not known" if unknown else ""
    yield f"Waiting pods that would fit now, each alone or with its gang: {fit:,} of {pods:,}{more}."
