"""Reads the objects of a cluster that Berth may not have scheduled, for berth assess.

One object that cannot be read is noted, and the others count. Kinds may lack, the claims of pods, or the devices of a
pool: the notes say what is not known then, and no figure states as a fact what depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice

from extender.allocation import Features, Snapshot
from extender.api.fields import Json, get, inner, many, need, string_map
from extender.api.foreign_gangs import ForeignGang, foreign_gang
from extender.api.nodes import resource_units
from extender.api.object_meta import ObjectKey
from extender.api.pod_amounts import requests_of
from extender.api.pod_groups import GROUP_OBJECTS, group_policy_of, minimum_of
from extender.api.pods import SCHEDULER, Pod, decode_pod
from extender.api.resource_claims import Claim
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted, one_line, shown
from extender.cache import ClusterCache
from extender.console import NO_BUDGETS
from extender.replay import several, version_problem
from extender.runtime.informers import object_appliers
from extender.vendors import GPU, driver_of
from extender.vendors.node_labels import PLUGIN_RESOURCES, has_whole_gpus

NEEDED = {
    "Node": "their labels, such as racks, and the GPUs of device plugins are not known",
    "Pod": "gangs, waiting pods and pods of a device plugin are not known",
    "ResourceSlice": "no GPU of a DRA driver is known",
    "ResourceClaim": "which pods have which GPUs is not known",
    "DeviceClass": "why pods with claims wait cannot be told, and they cannot be replayed",
    "DeviceTaintRule": "taints that rules add to devices are not known",
}
"""The six kinds, each with what its lack means."""
BUDGET, JOB = "PodDisruptionBudget", "Job"  # of which berth defrag asks
_MEANS = {BUDGET: NO_BUDGETS, "Namespace": "which pods may have admin access is not known"}
_OF_GROUPS = "what it says of waiting groups is not known"
_OPTIONAL_IN_FILES = ("DeviceTaintRule", "ResourceClaim")  # a cluster may well have none
_REPLAYED = ("Node", "ResourceSlice", "DeviceClass", "DeviceTaintRule")
_MAX_NAMED, _MAX_UNREADABLE = 3, 8  # of one kind; objects
_SKEW = timedelta(minutes=6)  # of clocks: less than what GPU-hours are rounded to
_DOMAINS = {name.partition("/")[0] for name in PLUGIN_RESOURCES}


@dataclass(slots=True)
class ClusterReading:
    """What was read. `offered` has the GPUs that a device plugin offers, by node and resource."""

    cache: ClusterCache
    pods: list[Pod] = field(default_factory=list)  # those that may have devices, or are in a group
    offered: dict[str, dict[str, int]] = field(default_factory=dict)
    claims: dict[ObjectKey, Json] = field(default_factory=dict)  # as they were read
    fleet: list[Json] = field(default_factory=list)  # the objects that a replay needs, as they were read
    others: list[Json] = field(default_factory=list)  # pods on nodes without devices: they use CPU and memory
    requests: dict[str, Json] = field(default_factory=dict)  # by UID: the pods with devices, as they were read
    ended: list[Pod] = field(default_factory=list)  # those that may have had devices
    budgets: list[Json] = field(default_factory=list)  # PodDisruptionBudgets
    jobs: list[Json] = field(default_factory=list)  # as far as there are some: no command lists them
    lacking: list[str] = field(default_factory=list)  # a sentence for each kind that lacks
    unreadable: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)  # kinds of which it is not known what the cluster has
    is_live: bool = False  # whether an object that is not there does not exist
    foreign_gangs: dict[str, ForeignGang] = field(default_factory=dict)  # by UID of the pods with devices
    unread_on: set[str] = field(default_factory=set)  # nodes with a pod that cannot be read
    alone_on: list[str] = field(default_factory=list)  # nodes that slices name, and that were not read
    shared_on: set[str] = field(default_factory=set)  # nodes whose device plugin offers no whole GPUs
    parts: dict[str, set[str]] = field(default_factory=dict)  # resources that are not counted, to their nodes


def reading_of(
    objects: Iterable[Json],
    refused: Mapping[str, str],
    where: str,
    *,
    is_live: bool = False,
    files: Sequence[tuple[str, int]] = (),
) -> ClusterReading:
    """Read objects. `refused` maps a kind that the API server did not list to its answer; `where` names the source.

    `is_live`: the API server listed all other kinds, so that what is not there does not exist. `files`: the
    names of the files, each with the number of its objects, in their order.
    Raises WireError if there are neither nodes nor slices, or if objects have a version that Berth does not read.
    """
    found = ClusterReading(ClusterCache(Features()), is_live=is_live)
    reader, rest = _Reader(found), iter(objects)
    for file, count in files or ((where, None),):
        for number, obj in enumerate(islice(rest, count), 1):
            reader.add(f"{file}, object {number}", obj)
    reader.finish()
    if not found.kinds & {"Node", "ResourceSlice"}:
        problems = "; ".join(one_line(text, 256) for text in (*refused.values(), *found.unreadable[:1]))
        why = f": {problems}" if problems else ": `berth assess --save FILE` makes such a file"
        raise WireError(where, f"has no Node and no ResourceSlice{why}")
    found.unread.update(refused)
    for kind in (*NEEDED, *(kind for kind in refused if kind not in NEEDED and _is_needed(kind, found))):
        meaning = NEEDED.get(kind) or _MEANS.get(kind, _OF_GROUPS)
        if kind in refused:
            found.lacking.append(f"{several(kind)} could not be listed ({one_line(refused[kind], 256)}): {meaning}")
        elif kind not in found.kinds and kind not in _OPTIONAL_IN_FILES:
            found.lacking.append(f"there is no {kind}: {meaning}")
    if not is_live:
        _add_unread(found)
    return found


def claims_of(pod: Pod) -> list[ObjectKey]:
    """The claims of a pod, also that of its extended resources, in the order of their names."""
    extended = {ObjectKey(pod.key.namespace, pod.extended_claim)} if pod.extended_claim else set()
    return sorted(pod.claim_keys | extended)


def has_admin_access(claim: Claim) -> bool:
    """Whether a request of the claim has admin access."""
    return any(option.admin_access for request in claim.spec.requests for option in request.alternatives)


def unread_group(pod: Pod, reading: ClusterReading) -> str:
    """The kind of the object that says how many pods of its group run together, if that is not known; else ''."""
    of = pod.membership
    if of is None or minimum_of(of, None) or of.policy_key in reading.cache.store.group_policies:
        return ""
    kind = next((one.kind for one in GROUP_OBJECTS if one.source is of.key.source), "")
    return "" if reading.is_live and kind not in reading.unread else kind


def _is_needed(kind: str, found: ClusterReading) -> bool:
    """Whether anything that was read depends on a kind that is not one of the six."""
    store = found.cache.store
    if kind == "Namespace":
        return any(map(has_admin_access, store.claims.values()))
    is_parent = kind == "CompositePodGroup" and any(one.parent for one in store.group_policies.values())
    waiting = (pod for pod in found.pods if pod.is_waiting)
    return kind == BUDGET or is_parent or any(unread_group(pod, found) == kind for pod in waiting)


def _add_unread(found: ClusterReading) -> None:
    """Add the kinds that files lack. A cluster whose pods name no claims may well have no slices and classes."""
    found.unread |= {"Node", "Pod"} - found.kinds
    if "ResourceClaim" in found.kinds or any(claims_of(pod) for pod in found.pods):
        found.unread |= {"ResourceSlice", "DeviceClass"} - found.kinds
    if "ResourceClaim" not in found.kinds and (why := _missing_claims(found)):
        found.unread.add("ResourceClaim")
        found.lacking.insert(0, f"there is no ResourceClaim, {why}: {NEEDED['ResourceClaim']}")
    for kind in sorted({unread_group(pod, found) for pod in found.pods if pod.is_waiting} - {""}):
        found.lacking.append(f"of waiting pods there is no {kind}: {_OF_GROUPS}")


def _missing_claims(found: ClusterReading) -> str:
    """Why files without claims are half a snapshot; '' if the cluster has no claims."""
    if "Pod" not in found.kinds:
        return "and no Pod that shows whether there are any"
    users = sum(bool(pod.node_name and (pod.claims or pod.extended_claim)) for pod in found.pods)
    return f"but {counted(users, 'running pod names', 'running pods name')} claims" if users else ""


def _is_of_gpus(resource: str) -> bool:
    return resource.partition("/")[0] in _DOMAINS


def _node_of(pod: Json) -> str:
    """The node of a pod that cannot be read; '' if it has none."""
    spec = pod.get("spec")
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""


class _Reader:
    def __init__(self, found: ClusterReading) -> None:
        self._found = found
        self._appliers = object_appliers(found.cache)
        self._slice_nodes: dict[str, None] = {}
        self._nodes: set[str] = set()
        self._read: dict[tuple[str, ...], Json] = {}  # by version, kind and name

    def add(self, place: str, obj: Json) -> None:
        """Read one object. Raises WireError for a version that Berth does not read."""
        kind = str(obj.get("kind"))
        metadata = obj.get("metadata")
        given = metadata if isinstance(metadata, dict) else {}
        key = str(obj.get("apiVersion")), kind, str(given.get("namespace")), str(given.get("name"))
        named = f"{place}, {kind} {one_line(str(given.get('name') or ''))}".rstrip()
        if problem := version_problem(obj):
            raise WireError(named, problem)
        if (first := self._read.get(key)) is not None:  # files may overlap
            if first != obj:
                self._note(f"{named}: is there twice, and differs: the first one counts")
            return
        try:
            for group, policy in group_policy_of(obj).items():
                self._found.cache.apply_group_policy(group, policy)
            if kind == BUDGET:
                self._found.budgets.append(obj)
                self._found.kinds.add(kind)
            elif kind == JOB and str(obj.get("apiVersion")).startswith("batch/"):
                self._found.jobs.append(obj)
            elif kind in self._appliers:
                self._apply(named, kind, obj)
                self._found.kinds.add(kind)
        except WireError as error:
            if kind == "Pod" and (node := _node_of(obj)):
                self._found.unread_on.add(node)
            self._note(f"{named}: {error}")
        else:
            self._read[key] = obj

    def _note(self, text: str) -> None:
        notes = self._found.unreadable
        if len(notes) < _MAX_UNREADABLE:
            notes.append(text)
        elif len(notes) == _MAX_UNREADABLE:
            notes.append("and more objects that cannot be read")

    def _apply(self, place: str, kind: str, obj: Json) -> None:
        found, metadata = self._found, get(obj, "metadata", dict, "", {})
        name, namespace = need(metadata, "name", ".metadata"), metadata.get("namespace")
        if kind == "Pod":
            self._add_pod(obj)
            try:
                requests_of(obj)
            except WireError as error:  # its devices count
                self._note(f"{place}: {error}")
            return
        self._appliers[kind](obj)
        if kind == "ResourceClaim":
            key = ObjectKey(namespace or "", name)
            found.claims[key] = obj
            if problem := found.cache.store.claims[key].problem:
                self._note(f"{place}: {problem}")
        elif kind == "Node":
            self._nodes.add(name)
            offered = inner(inner(obj, "status", ""), "allocatable", "status")
            labels = string_map(metadata, "labels", "metadata")
            for one, count in ((one, resource_units(one, offered[one])) for one in offered if _is_of_gpus(one)):
                if count and one not in PLUGIN_RESOURCES:
                    found.parts.setdefault(one, set()).add(name)
                elif count and has_whole_gpus(one, count, labels):
                    found.offered.setdefault(name, {})[one] = count
                elif count:
                    found.shared_on.add(name)
                    found.parts.setdefault(f"{one} of shared GPUs or parts", set()).add(name)
        elif kind == "ResourceSlice":
            node = inner(obj, "spec", "").get("nodeName")
            if node:
                self._slice_nodes[str(node)] = None
        if kind in _REPLAYED:
            found.fleet.append(obj)

    def _add_pod(self, obj: Json) -> None:
        pod, found = decode_pod(obj), self._found
        if not pod.node_name:
            # As if Berth were asked to place it: the explainer says why no node fits, not whose pod it is.
            found.cache.apply_pod(pod.uid, replace(pod, scheduler=SCHEDULER))
        elif not pod.ended and not pod.concerns_berth:
            found.others.append(obj)
        if pod.concerns_berth:
            found.requests[pod.uid] = obj
            (found.ended if pod.ended else found.pods).append(pod)
            if gang := foreign_gang(inner(obj, "metadata", "")):
                found.foreign_gangs[pod.uid] = gang

    def finish(self) -> None:
        """Without any Node object, the nodes are those that slices name."""
        if "Node" in self._found.kinds:
            self._found.alone_on = [name for name in self._slice_nodes if name not in self._nodes]
        else:
            for name in self._slice_nodes:
                obj: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
                self._appliers["Node"](obj)
                self._found.fleet.append(obj)


# -- devices that are not known --------------------------------------------------------------------------------------


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
            if pool.problem:
                yield name, pool.key.driver, pool.problem


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


# -- times ------------------------------------------------------------------------------------------------------------


def newest_time(reading: ClusterReading, clock: datetime) -> datetime:
    """The newest time that the objects have, but for the future: a file does not say when it was written."""
    past = (one for one in _times(reading) if one <= clock)
    return max(past, default=datetime.fromisoformat("1970-01-01T00:00:00+00:00"))


def clock_faults(reading: ClusterReading, now: datetime) -> str:
    """What is said of times of pods with devices that cannot be right; '' without any."""
    pods = ((inner(obj, "metadata", ""), clock_fault(obj, now)) for obj in reading.requests.values())
    found = [(f"{metadata.get('namespace')}/{metadata.get('name')}", fault) for metadata, fault in pods if fault]
    if not found:
        return ""
    name, fault = min(found)
    more = f", and those of {counted(len(found) - 1, 'other pod')} cannot, either" if len(found) > 1 else ""
    return f"the times of pod {name} cannot be right: {fault}{more}: how old pods are may be wrong"


def clock_fault(pod: Json, now: datetime) -> str:
    """Of the creation and the start of a pod the first that cannot be right, and why; '' if both can."""
    created, started = inner(pod, "metadata", "").get("creationTimestamp"), inner(pod, "status", "").get("startTime")
    for name, text in (("metadata.creationTimestamp", created), ("status.startTime", started)):
        found = time_of(text)
        if text and found is None:
            return f"{name} is no time: {shown(text)}"
        if found is not None and found > now + _SKEW:
            return f"{name} is in the future: {text}"
    first, second = time_of(created), time_of(started)
    is_reversed = first is not None and second is not None and second < first - _SKEW
    return f"status.startTime is before the creation: {started}" if is_reversed else ""


def _times(reading: ClusterReading) -> Iterator[datetime]:
    for obj in (*reading.requests.values(), *reading.fleet):
        status = obj.get("status") or {}
        conditions = (one.get("lastHeartbeatTime") for one in status.get("conditions") or ())
        for text in ((obj.get("metadata") or {}).get("creationTimestamp"), status.get("startTime"), *conditions):
            if (found := time_of(text)) is not None:
                yield found


def time_of(text: object) -> datetime | None:
    """A time of the API; None if it is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
