"""Pods of a cluster as jobs of a replay: for the replay of berth assess, and as lines of a file of jobs."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from extender.allocation import NodeInfo, Snapshot, tolerates
from extender.allocation.nodes import PoolDevice
from extender.api.claim_specs import merged_specs
from extender.api.fields import Json, inner, many, naming, string
from extender.api.foreign_gangs import ForeignGang
from extender.api.group_topology import fields_of_job
from extender.api.nodes import Node, Toleration, encode_toleration
from extender.api.pod_amounts import requests_of
from extender.api.pod_annotations import WISHES, PodIntent, intent_of
from extender.api.pod_groups import GroupKey, GroupSource
from extender.api.pods import Pod
from extender.api.resource_claims import Claim, Result
from extender.assess.cluster_reading import ClusterReading, claims_of, clock_fault, has_admin_access, time_of
from extender.assess.fleet_state import plugin_requests
from extender.assess.gang_spread import gang_key
from extender.base.berth_errors import WireError
from extender.gangs.gang import gang_minimum
from extender.replay import SPEC_FIELDS, Job, cel_text, job_problem
from extender.replay.emptied_nodes import DRIVER_OF_PLUGIN, may_ask_for
from extender.replay.published_traces import plain_name
from extender.vendors import GPU, driver_of
from extender.vendors.node_labels import WHOLE_PLUGIN, driver_product

_NOT_VALID = "an annotation that is not valid, which is left out"
_OTHER_LEVEL = "a level besides that of their PodGroup, or another scheduler's level without '/': it is left out"


def by_age(pods: Iterable[Pod]) -> list[Pod]:
    """The oldest first."""
    return sorted(pods, key=lambda pod: (pod.created, pod.key))


def gang_of(pod: Pod, reading: ClusterReading) -> GroupKey | ForeignGang | None:
    """The group with whose other pods a pod is one job; None if it is a job alone.

    Of a Job or JobSet without a group, those that run now are a gang. Others may come one after the other.
    """
    group = gang_key(pod, reading)
    is_job = isinstance(group, GroupKey) and group.source in (GroupSource.JOB_SET, GroupSource.JOB)
    may_be_queue = is_job and not pod.membership
    return group if not may_be_queue or (pod.node_name and not pod.ended) else None


def by_gang(pods: Iterable[tuple[Pod, Job]], reading: ClusterReading) -> list[list[tuple[Pod, Job]]]:
    """The pods that are one job each, in the order of their first ones."""
    found: dict[Hashable, list[tuple[Pod, Job]]] = {}
    for pod, job in pods:
        found.setdefault(gang_of(pod, reading) or pod.uid, []).append((pod, job))
    return list(found.values())


def gang_job(pods: Iterable[Job]) -> Job:
    """The pods of a gang as one job. Those of other shapes than the first one are its parts."""
    shapes: dict[Hashable, list[Job]] = {}
    for one in pods:
        shapes.setdefault(one.shape, []).append(one)
    first, *others = (replace(equal[0], pods=len(equal)) for equal in shapes.values())
    return replace(first, parts=tuple(others))


def pod_job(pod: Pod, reading: ClusterReading, snapshot: Snapshot) -> Job | None:
    """One pod as a job, which arrives at 0 s; None if it shares a claim, or the spec of one is not known.

    None, too, with admin access: such a pod watches the devices of others, and its namespace needs a label for it.
    Raises WireError that names the pod.
    The job asks for the product that a running pod has. GPUs of a device plugin become GPUs of a DRA driver.
    """
    obj, node_info = reading.requests.get(pod.uid, {}), snapshot.node_infos.get(pod.node_name)
    with naming(obj):
        cpu, ram, _ = requests_of(obj)
    spec = _spec(pod, inner(obj, "spec", ""), node_info.node if node_info is not None else None)
    keys, plain = claims_of(pod), Job(pod.key.name, 0.0, cpu=cpu, ram=ram, spec=spec, **_of_gang(pod, snapshot)[0])
    if not keys:
        plain = replace(plain, spec={"tolerations": [], **(spec or {})})  # it tolerates no other taints, see Job.pod
        return _plugin_job(pod, reading, plain, node_info.node.labels if node_info is not None else {})
    own = [claim for key in keys if (claim := snapshot.claims.get(key)) is not None and _is_own(claim, pod)]
    if len(own) < len(keys) or any(claim.problem or has_admin_access(claim) for claim in own):
        return None
    specs = [inner(reading.claims[claim.key], "spec", "") for claim in own]
    given = [claim.allocation.results if claim.allocation is not None else () for claim in own]
    if node_info is not None:
        specs = [_of_product(one, node_info, results) for one, results in zip(specs, given, strict=True)]
    asked = specs[0] if len(specs) == 1 else merged_specs(specs)
    devices = sum(map(len, given)) or _counted(asked)
    return replace(plain, claim=asked, **_annotated(pod, devices))


def _plugin_job(pod: Pod, reading: ClusterReading, plain: Job, labels: Mapping[str, str]) -> Job | None:
    """The job of a pod of a device plugin, on a node with these labels. Other vendors than NVIDIA have a class."""
    resource = _plugin_resource(pod)
    gpus, product = plugin_requests(pod)[resource], driver_product(resource, labels)
    if not may_ask_for(gpus) or _has_shared(pod, reading, resource):
        return None
    if resource == WHOLE_PLUGIN:
        return replace(plain, gpus=gpus, product=product, **_annotated(pod, gpus))
    if pod.node_name and not product:
        return None
    driver = DRIVER_OF_PLUGIN[resource]
    request: Json = {"deviceClassName": driver, "count": gpus}
    if product:
        request = _narrowed(request, _product_is(driver_of(driver).product[0], product))
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
    return replace(plain, claim=claim, **_annotated(pod, gpus))


def _plugin_resource(pod: Pod) -> str:
    """The resource of a device plugin whose GPUs become those of the pod's job."""
    asked = plugin_requests(pod)
    return next((name for name in DRIVER_OF_PLUGIN if asked[name]), WHOLE_PLUGIN)


def _has_shared(pod: Pod, reading: ClusterReading, resource: str) -> bool:
    """Whether the GPUs of a device plugin that a pod has, or can get, are shared with other pods."""
    if pod.node_name:
        return pod.node_name in reading.shared_on
    return bool(reading.shared_on) and not any(resource in one for one in reading.offered.values())


def _is_own(claim: Claim, pod: Pod) -> bool:
    """Whether no other pod uses the claim. A pod that waits, or has ended, has no reservation."""
    users = {one.uid for one in claim.reserved_for}
    if pod.node_name and not pod.ended:
        return claim.allocation is not None and users == {pod.uid}
    return users <= {pod.uid}


def _annotated(pod: Pod, devices: int) -> dict[str, Any]:
    """What the pod asks of its devices: links, too, for several. Nothing if an annotation is not valid."""
    asked = _intent(pod, "preferred" if devices > 1 else "")
    if asked is None:
        return {}
    values = asked.topology, asked.wanted_gbps, asked.min_gbps, asked.expected_bytes
    return dict(zip(WISHES, values, strict=True))


def _intent(pod: Pod, topology: str) -> PodIntent | None:
    with suppress(ValueError):
        return intent_of(pod.annotations, topology)
    return None


def _of_gang(pod: Pod, snapshot: Snapshot) -> tuple[dict[str, Any], str]:
    """(how near to each other the pods of its gang must be, as fields of a job; the constraint that a job cannot have).

    No fields if the annotations are not valid, and '' if the job has all of them.
    """
    of = pod.membership
    if of is None or of.problem:
        return {}, _NOT_VALID if of is not None else ""
    policy = snapshot.group_policies.get(of.policy_key)
    fields, is_kept = fields_of_job(of.topology, policy.topology_label if policy is not None else "")
    if of.subgroups.constrain or (policy is not None and policy.parent):
        return dict(fields), "sub-groups, slices or a CompositePodGroup, which are left out"
    return dict(fields), "" if is_kept else _OTHER_LEVEL


def _changes(pod: Pod, obj: Json, snapshot: Snapshot, now: datetime.datetime) -> Iterator[str]:
    """What of a pod its job does not have as it is, each for a sentence that begins with the number of such pods."""
    _, lost = _of_gang(pod, snapshot)
    if lost or _intent(pod, "") is None:
        yield lost or _NOT_VALID
    if clock_fault(obj, now):
        yield "times that cannot be right: the job arrives now at the latest, without a creation with the first one"
    if pod.ended and _ran_seconds(obj) is None:
        yield "no end after the start, so the job counts as 1 s"
    for resource in _other_resources(pod, obj):
        yield f"{resource}, which is left out: a replay finds a place for the job more easily"


def _other_resources(pod: Pod, obj: Json) -> list[str]:
    """The extended resources that neither a claim nor the GPUs of the job stand for.

    None of a pod whose status does not say which ones its claim is for, as in an anonymised file.
    """
    status = inner(inner(obj, "status", ""), "extendedResourceClaimStatus", "status")
    kept = {*many(status, "requestMappings", "status", lambda one, path: string(one, "resourceName", path))}
    if pod.extended_claim and not kept:
        return []
    if not claims_of(pod):
        kept.add(_plugin_resource(pod))
    asked = {name for one in pod.containers for name, amount in one.requests if amount}
    return sorted(asked - kept)


def _counted(claim: Json) -> int:
    """The devices of the requests for a fixed count."""
    exact = [one.get("exactly") or {} for one in inner(claim, "devices", "spec").get("requests") or ()]
    return sum(one.get("count") or 1 for one in exact)


def _spec(pod: Pod, given: Json, node: Node | None) -> Json | None:
    """What limits the nodes of the pod; None if nothing does. It tolerates the taints that its own node has by now."""
    found = {name: given[name] for name in SPEC_FIELDS if given.get(name)}
    if (affinity := inner(given, "affinity", "spec").get("nodeAffinity")) is not None:
        found["affinity"] = {"nodeAffinity": affinity}
    else:
        found.pop("affinity", None)
    later = [
        encode_toleration(Toleration(taint.key, "Exists", effect=taint.effect))
        for taint in (node.taints if node is not None else ())
        if not any(tolerates(one, taint) for one in pod.tolerations)
    ]
    if later:
        found["tolerations"] = [*(found.get("tolerations") or ()), *later]
    return found or None


@dataclass(slots=True)
class JobLines:
    """The lines of a file of jobs, and what is not in it."""

    lines: list[Json]
    left_out: int = 0  # pods that cannot be jobs
    too_few: list[str] = field(default_factory=list)  # pods whose group waits for others, with their numbers
    refused: Counter[str] = field(default_factory=Counter)  # why a replay refuses jobs, to the number of their pods
    lost: dict[str, list[str]] = field(default_factory=dict)  # what is not as in the cluster, to the names of its pods


def job_lines(reading: ClusterReading, snapshot: Snapshot, now: datetime.datetime, levels: Sequence[str]) -> JobLines:
    """The pods with devices as lines of a file of jobs, for replays with these group levels.

    A job arrives when its first pod was created, at the latest now. It has an end if all of its pods have ended.
    """
    pods, found = list[tuple[Pod, Job]](), JobLines([])
    sizes = Counter(pod.membership.key for pod in reading.pods if pod.membership is not None and not pod.deleting)
    for pod in by_age((*reading.pods, *reading.ended)):
        if pod.deleting or not pod.may_need_devices:
            continue
        if (of := pod.membership) is not None and not (pod.node_name or pod.ended):
            existing, minimum = sizes[of.key], gang_minimum(of, snapshot)
            if existing < minimum:
                found.too_few.append(f"{pod.key}: {existing:,} of {minimum:,}")
                continue
        try:
            job = pod_job(pod, reading, snapshot)
        except WireError as error:
            found.refused[str(error)] += 1
            continue
        if job is None:
            found.left_out += 1
            continue
        pods.append((pod, job))
    known = {*snapshot.classes, *DRIVER_OF_PLUGIN.values()} if "DeviceClass" not in reading.unread else None
    times = {pod.uid: _times(reading.requests[pod.uid], now.timestamp()) for pod, _ in pods}
    first = min((arrival for arrival, _ in times.values() if arrival is not None), default=0.0)
    for number, members in enumerate(by_gang(pods, reading), 1):
        key, job = members[0][0].key, gang_job(one for _, one in members)
        arrival = min((at for one, _ in members if (at := times[one.uid][0]) is not None), default=first)
        seconds = max(times[one.uid][1] for one, _ in members)
        name = f"{plain_name(f'{key.namespace}-{key.name}')}-{number}"
        line = replace(job, name=name, arrival=arrival - first, duration=seconds).line()
        if problem := job_problem(line, known, levels):
            found.refused[problem] += len(members)
            continue
        found.lines.append(line)
        for pod, _ in members:
            for what in _changes(pod, reading.requests[pod.uid], snapshot, now):
                found.lost.setdefault(what, []).append(str(pod.key))
    found.lines.sort(key=lambda line: line["arrival"])
    return found


def _times(pod: Json, now: float) -> tuple[float | None, float]:
    """(creation if it is known, duration) in seconds; the duration of a pod that has not ended is infinity."""
    status, created = inner(pod, "status", ""), _seconds(inner(pod, "metadata", "").get("creationTimestamp"))
    created = min(created, now) if created is not None else None
    if status.get("phase") not in ("Succeeded", "Failed"):
        return created, math.inf
    return created, max(_ran_seconds(pod) or 1.0, 1.0)


def _ran_seconds(pod: Json) -> float | None:
    """How long the containers of an ended pod ran; None if that is not known, or the end is before the start."""
    status = inner(pod, "status", "")
    states = many(status, "containerStatuses", "status", lambda one, path: inner(one, "state", path))
    ends = [_seconds(inner(state, "terminated", "status").get("finishedAt")) for state in states]
    started = _seconds(status.get("startTime")) or _seconds(inner(pod, "metadata", "").get("creationTimestamp"))
    found = max((end for end in ends if end is not None), default=-math.inf) - (started or math.inf)
    return found if found >= 0 else None


def _seconds(time: object) -> float | None:
    """A time of the API in seconds; None if it is none."""
    found = time_of(time)
    return found.timestamp() if found is not None else None


def _of_product(spec: Json, node_info: NodeInfo, results: Iterable[Result]) -> Json:
    """The spec with selectors for the products that the pod has: a replay leaves out its node selectors."""
    wanted = dict[str, str]()  # by name of the request
    for result in results:
        bit = node_info.inventory.index.get(result.device)
        if bit is not None and (found := product_expression(node_info.inventory.devices[bit])):
            wanted[result.request] = found
    devices = inner(spec, "devices", "spec")
    return {
        **spec,
        "devices": {**devices, "requests": [_selecting(one, wanted) for one in devices.get("requests") or ()]},
    }


def product_expression(gpu: PoolDevice) -> str:
    """The CEL expression that GPUs of the same product meet; '' for other devices, or without a product."""
    driver, attributes = driver_of(gpu.id.driver), gpu.device.attributes
    for name in driver.product if driver.kind == GPU else ():
        if isinstance(attributes.get(name), str):
            return _product_is(name, str(attributes[name]))
    return ""


def _product_is(name: str, product: str) -> str:
    """The CEL expression for devices whose attribute of this name, with its domain, is the product."""
    domain, _, short = name.rpartition("/")
    of = f"device.attributes[{cel_text(domain)}]"
    return f"{cel_text(short)} in {of} && {of}.{short} == {cel_text(product)}"


def _selecting(request: Json, wanted: Mapping[str, str]) -> Json:
    """The request with the selector of its name. Of alternatives, the one that was allocated gets it."""
    name = request["name"]
    if name in wanted and request.get("exactly"):
        return {**request, "exactly": _narrowed(request["exactly"], wanted[name])}
    options = request.get("firstAvailable") or ()
    narrowed = [_narrowed(one, wanted[of]) if (of := f"{name}/{one['name']}") in wanted else one for one in options]
    return {**request, **({"firstAvailable": narrowed} if narrowed else {})}


def _narrowed(request: Json, expression: str) -> Json:
    return {**request, "selectors": [*(request.get("selectors") or ()), {"cel": {"expression": expression}}]}
