"""`berth doctor`: finds problems of a cluster, says why each one matters, and names the command that repairs it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import typer

from extender.allocation import NodeInfo
from extender.api.device_classes import MARKER_CLASS
from extender.api.documents import one_value
from extender.api.fields import Json, inner, need, objects, quantities, strings
from extender.api.gpu_topology import Source
from extender.api.pods import SCHEDULER, decode_pod
from extender.api.resource_slices import Device
from extender.base.berth_errors import WireError
from extender.base.bits import members
from extender.base.text_limits import counted, error_line, first_few, one_line, printable, shown
from extender.cache import ClusterCache
from extender.cli.cluster_objects import dump_of, list_items, take_objects
from extender.cli.object_files import policy_of
from extender.cli.options import NAMESPACE, BerthNamespace, Context, Kubeconfig, Output
from extender.cli.output import Screen, say, say_json
from extender.cluster import ApiClient, ClusterError, Credentials, Forbidden, NotFound, NotServed, load_credentials
from extender.console import Finding, check_consistency
from extender.files import name_of, read_file
from extender.policy import Policy, PolicyError, load_policy
from extender.topology.agent_slices import DRIVER
from extender.vendors import driver_of, parent_of, whole_identity
from extender.vendors.node_labels import found_levels

_OLDEST, _NEWEST = (1, 34), (1, 37)
_HOOKS = {
    "validatingwebhookconfigurations": "ValidatingWebhookConfigurationList",
    "mutatingwebhookconfigurations": "MutatingWebhookConfigurationList",
}
_WRITTEN = {"": ("pods/binding", "pods/status"), "resource.k8s.io": ("resourceclaims", "resourceclaims/status")}
_QUOTA = ".deviceclass.resource.k8s.io/devices"
_CLAIM_QUOTA = "count/resourceclaims.resource.k8s.io"
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
# (API group, resource, verb): the rights in manifests/base/rbac.yaml without which `berth serve` cannot work.
_RIGHTS = (
    ("resource.k8s.io", "resourceslices", "list"),
    ("resource.k8s.io", "resourceclaims", "watch"),
    ("", "pods", "watch"),
    ("", "nodes", "list"),
    ("resource.k8s.io", "resourceclaims", "patch"),
    ("resource.k8s.io", "resourceclaims", "update"),
    ("resource.k8s.io", "resourceclaims/status", "patch"),
    ("", "pods/binding", "create"),
    ("resource.k8s.io", "deviceclasses", "patch"),
)
_SHORT_SECONDS = 2.0  # doctor warns of a shorter httpTimeout for filter
_BIND_SECONDS = 10.0  # by which httpTimeout for bind exceeds binding_wait_seconds (docs/policy.md)
_SCHEDULER_FILE = "berth-scheduler.yaml"
_COMPARE = "compare with scheduler-config/berth-scheduler.yaml"
_IN_TREE_POINTS = ("preFilter", "filter", "postFilter", "reserve", "preBind")  # of the plugin DynamicResources
_DURATION, _UNITS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"), {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_CONFIGURATION_BYTES = 1024 * 1024
_DEFAULT = Policy()
_some = partial(first_few, most=5)  # of the names in a finding
_SILENT_MINUTES = 15  # three heartbeats of the agent


class DoctorFinding(NamedTuple):
    """One finding: the problem, its effect, and the command that repairs it."""

    severity: str  # "error" or "warning"
    problem: str
    effect: str
    remedy: str


def _error(problem: str, effect: str, remedy: str) -> DoctorFinding:
    return DoctorFinding("error", problem, effect, remedy)


def _warning(problem: str, effect: str, remedy: str) -> DoctorFinding:
    return DoctorFinding("warning", problem, effect, remedy)


def doctor_command(
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    scheduler_config: Annotated[
        Path | None,
        typer.Option(help="The KubeSchedulerConfiguration in use. Default: the ConfigMap berth-scheduler-config."),
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="The policy in use. Default: the ConfigMap berth-policy.")] = None,
    berth_namespace: BerthNamespace = NAMESPACE,
    output: Output = "table",
) -> None:
    """Examine a cluster for mistakes that stop Berth.

    Exit code 1 if there is an error.

    Example: berth doctor --kubeconfig ~/.kube/config
    """
    content, where = None, "the ConfigMap berth-scheduler-config"
    if scheduler_config is not None:
        content, where = read_file(scheduler_config, _MAX_CONFIGURATION_BYTES), name_of(scheduler_config)
        _parsed(content, where)  # before the cluster is read
    with Screen(stderr=True).status("reading the cluster"):
        credentials = load_credentials(kubeconfig, context)
        given = policy_of(policy) if policy is not None else None
        found = asyncio.run(_examine(credentials, berth_namespace, content, where, given))
    for one in found:
        if output == "json":
            say_json(one._asdict())
        else:
            problem, remedy = printable(one.problem), printable(one.remedy)
            say(f"{one.severity}: {problem}\n  effect: {one.effect}\n  remedy: {remedy}")
    if output == "table":
        say(counted(len(found), "finding"))
    if any(one.severity == "error" for one in found):
        raise typer.Exit(1)


async def _examine(
    credentials: Credentials, namespace: str, given: bytes | None, where: str, policy: Policy | None
) -> list[DoctorFinding]:
    found: list[DoctorFinding] = []
    async with ApiClient(credentials) as client:
        found += version_findings(await client.get("/version"))
        found += [finding async for finding in _rights(client)]
        taken = await take_objects(client)
        pods = await list_items(client, "/api/v1/pods", "PodList", {"fieldSelector": "spec.nodeName="})
        hooks = [
            hook
            for name, kind in _HOOKS.items()
            for hook in await _items(client, f"/apis/admissionregistration.k8s.io/v1/{name}", kind)
        ]
        quotas = await _items(client, "/api/v1/resourcequotas", "ResourceQuotaList")
        maps = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        text = "" if given is not None else await _entry(client, f"{maps}/berth-scheduler-config", _SCHEDULER_FILE)
        policy_text = "" if policy is not None else await _entry(client, f"{maps}/berth-policy", "policy.yaml")
    found += [*webhooks(hooks), *quota_blocks(quotas, pods)]
    try:
        policy = policy or load_policy(policy_text or "{}")
    except PolicyError as error:
        policy = Policy()
        effect = "Berth keeps the last good policy, and does not start with this one"
        found.append(_error(f"the ConfigMap berth-policy: {error}", effect, "berth policy check FILE"))
    if given is not None or text:
        found += configuration_findings(given or text, where, policy)
    else:
        problem = f"no scheduler configuration was found: {where} is not in namespace {one_line(namespace)}"
        remedy = "berth doctor --berth-namespace NAMESPACE, or --scheduler-config FILE"
        found.append(_warning(problem, "doctor cannot check it for common mistakes", remedy))
    of_cluster = cluster_findings(dump_of(taken), int(time.time() // 60), policy.group_levels)
    return [*found, *of_cluster, *waiting(pods)]


async def _items(client: ApiClient, path: str, kind: str) -> list[Json]:
    """The objects of a list; none if the server does not serve the list or forbids it. Raises ClusterError."""
    try:
        return await list_items(client, path, kind)
    except (Forbidden, NotFound, NotServed):
        return []


def version_findings(answer: Json) -> Iterator[DoctorFinding]:
    """Yield a finding if Berth does not know the version in `answer`, the reply of an API server to /version."""
    text = one_line(str(answer.get("gitVersion", ""))).removeprefix("v")
    found = _VERSION.match(text)
    if found is None:
        problem = f"the API server names no version: {shown(text)}"
        yield _warning(problem, "doctor cannot tell whether Berth knows its API", "kubectl version")
        return
    major, minor = map(int, found.groups())
    if (major, minor) < _OLDEST:
        yield _error(f"the API server is {text}", "resource.k8s.io/v1 exists since 1.34", "upgrade the cluster")
    if (major, minor) > _NEWEST:
        yield _warning(
            f"the API server is {text}",
            f"Berth knows the API up to version {_NEWEST[0]}.{_NEWEST[1]}",
            "look for a newer Berth, or try this one with the component trial first",
        )


async def _rights(client: ApiClient) -> Any:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    for group, resource, verb in _RIGHTS:
        name, _, sub = resource.partition("/")
        wanted = {"group": group, "resource": name, "subresource": sub, "verb": verb}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        try:
            answer = await client.post(path, body)
        except ClusterError:
            return  # the sandbox has no such API; a real server always does
        if not inner(answer, "status", "SelfSubjectAccessReview").get("allowed"):
            yield _error(
                f"this account may not {verb} {resource}",
                "Berth would not become ready, or binds would fail",
                "kubectl apply -f manifests/base/rbac.yaml",
            )


async def _entry(client: ApiClient, config_map: str, key: str) -> str:
    """Return an entry of a ConfigMap; '' if it does not exist or cannot be read."""
    try:
        found = await client.get(config_map)
    except ClusterError:
        return ""
    return str(inner(found, "data", config_map).get(key) or "")


def webhooks(configurations: list[Json]) -> Iterator[DoctorFinding]:
    """Yield the webhooks without which no bind succeeds."""
    for config in configurations:
        name = config["metadata"]["name"]
        for hook, where in objects(config, "webhooks", f"webhooks of {name}"):
            asked = {
                resource
                for rule, place in objects(hook, "rules", where)
                for group, resources in _WRITTEN.items()
                for resource in resources
                if _covers(rule, place, group, resource)
            }
            if asked and hook.get("failurePolicy", "Fail") == "Fail":
                yield _warning(
                    f"webhook {hook.get('name')} is asked about {', '.join(sorted(asked))}",
                    "every bind waits for this webhook, and fails while the webhook is down",
                    f"kubectl edit {str(config.get('kind', 'webhookconfiguration')).lower()} {name}",
                )


def _covers(rule: Json, where: str, group: str, resource: str) -> bool:
    """Whether a webhook's rule applies to a resource, or to a subresource such as pods/binding."""
    name, slash, _ = resource.partition("/")
    wildcards = {"*/*", f"{name}/*"} if slash else {"*", "*/*", f"{name}/*"}
    groups, resources = set(strings(rule, "apiGroups", where)), set(strings(rule, "resources", where))
    return bool({group, "*"} & groups) and bool({resource, *wildcards} & resources)


def quota_blocks(quotas: list[Json], pods: list[Json]) -> Iterator[DoctorFinding]:
    """Yield the exhausted quotas on devices and claims, and the waiting pods whose claims do not exist."""
    for quota in quotas:
        namespace, quota_name = need(quota["metadata"], "namespace", "ResourceQuota"), quota["metadata"]["name"]
        where = f"quota {namespace}/{quota_name}"
        status = inner(quota, "status", where)
        hard, used = (quantities(status, field, where) for field in ("hard", "used"))
        for name, most in hard.items():
            counts = "claims" if name == _CLAIM_QUOTA else f"devices of class {name.removesuffix(_QUOTA)}"
            if not name.endswith((_QUOTA, _CLAIM_QUOTA)):
                continue
            if (used[name].nanos if name in used else 0) >= most.nanos:
                shown_use = f"{status['used'][name] if name in used else 0} of {status['hard'][name]} used"
                yield _warning(
                    f"{where}: {counts}: {shown_use}",
                    "no further such claim is created there; no scheduler says why the pods wait",
                    f"kubectl -n {namespace} edit resourcequota {quota_name}",
                )
    waiting_for = sorted(
        str(pod.key)
        for pod in map(decode_pod, pods)
        if any(claim.template_name and claim.name not in pod.claim_statuses for claim in pod.claims)
    )
    if waiting_for:
        yield _warning(
            f"{counted(len(waiting_for), 'waiting pod has', 'waiting pods have')} no claim yet: {_some(waiting_for)}",
            "a quota, a missing template or a stopped kube-controller-manager prevents the claim",
            f"kubectl -n {waiting_for[0].partition('/')[0]} describe pod {waiting_for[0].partition('/')[2]}",
        )


def waiting(pods: list[Json]) -> Iterator[DoctorFinding]:
    """Yield the waiting pods with claims whose schedulerName is not Berth's, and those whose last attempt failed."""
    decoded = [decode_pod(pod) for pod in pods]
    failed = sorted((str(pod.key), pod) for pod in decoded if pod.scheduler == SCHEDULER and pod.scheduler_error)
    if failed:
        name, first = failed[0]
        yield _warning(
            f"{counted(len(failed), 'waiting pod')} whose last attempt ended with an error: "
            f"{_some([key for key, _ in failed])}; {name}: {error_line(first.scheduler_error)}",
            "a node fits, but the bind fails, or the filter request does; kube-scheduler tries again and again",
            f"kubectl -n {first.key.namespace} describe pod {first.key.name}",
        )
    wrong = sorted(str(pod.key) for pod in decoded if pod.claims and pod.scheduler != SCHEDULER)
    if wrong:
        yield _warning(
            f"{counted(len(wrong), 'waiting pod')} with claims for another scheduler: {_some(wrong)}",
            "another scheduler places them without regard to NVLink, and races with Berth for devices",
            f"set schedulerName: {SCHEDULER} in their manifests",
        )


# -- the configuration of kube-scheduler -------------------------------------------------------------------------


def _parsed(content: bytes | str, where: str) -> Json:
    """Return the KubeSchedulerConfiguration in `content`. Raises WireError if it is none."""
    config = one_value(content, where, _MAX_CONFIGURATION_BYTES)
    if type(config) is not dict or config.get("kind") != "KubeSchedulerConfiguration":
        raise WireError(where, "must be a KubeSchedulerConfiguration")
    return config


def configuration_findings(
    content: bytes | str, where: str = "the scheduler configuration", policy: Policy = _DEFAULT
) -> Iterator[DoctorFinding]:
    """Yield the mistakes in a KubeSchedulerConfiguration beside this policy. Raises WireError if `content` is none."""
    config = _parsed(content, where)
    profiles = [p for p, _ in objects(config, "profiles", where) if p.get("schedulerName") == SCHEDULER]
    yield from _sampling(config, profiles)
    for profile in profiles:
        yield from _in_tree_plugin(profile, where)
    extenders = [one for one, _ in objects(config, "extenders", where)]
    if not any(e.get("filterVerb") for e in extenders) or not any(e.get("bindVerb") for e in extenders):
        effect = "kube-scheduler sends Berth no filter or bind calls"
        yield _error("no extender has filterVerb and bindVerb", effect, _COMPARE)
    for one in extenders:
        yield from _extender_fields(one)
        yield from _extender_timeouts(one, policy)


def _sampling(config: Json, profiles: list[Json]) -> Iterator[DoctorFinding]:
    """Yield an error if kube-scheduler looks for a feasible node among a sample of the nodes."""
    field = "percentageOfNodesToScore"
    share = next((one[field] for one in (*profiles, config) if field in one), None)
    if share != 100:  # noqa: PLR2004 - percent
        effect = "kube-scheduler sends Berth a sample of the nodes, which may lack the nodes with the right GPUs"
        yield _error(f"percentageOfNodesToScore is {one_line(str(share))}", effect, _COMPARE)


def _in_tree_plugin(profile: Json, where: str) -> Iterator[DoctorFinding]:
    """Yield an error if a profile leaves the in-tree plugin on."""
    plugins = inner(profile, "plugins", f"{where}: profiles")
    off = set()
    for point in plugins:
        plan = inner(plugins, point, f"{where}: profiles.plugins")
        disabled = [one.get("name") for one, _ in objects(plan, "disabled", f"{where}: profiles.plugins.{point}")]
        off |= {point} if "DynamicResources" in disabled or "*" in disabled else set()
    missing = [] if "multiPoint" in off else [point for point in _IN_TREE_POINTS if point not in off]
    if missing:
        effect = "the in-tree plugin would allocate the claims before Berth"
        yield _error(f"DynamicResources is on at {', '.join(missing)}", effect, _COMPARE)


def _extender_fields(one: Json) -> Iterator[DoctorFinding]:
    """Yield the fields of an extender entry that have a wrong value, other than time-outs."""
    name = f"extender {_text(one, 'urlPrefix')}"
    for field, wanted, why in (
        ("nodeCacheCapable", True, "kube-scheduler sends whole Node objects: bodies of tens of megabytes"),
        ("ignorable", False, "kube-scheduler binds pods without devices while Berth is down"),
    ):
        if one.get(field, False) is not wanted:
            yield _error(f"{name}: {field} is {_text(one, field)}", why, _COMPARE)
    if one.get("filterVerb") and not one.get("prioritizeVerb"):
        effect = "kube-scheduler chooses among the nodes of Berth's short list by in-tree scores alone"
        yield _warning(f"{name} has no prioritizeVerb", effect, _COMPARE)
    if one.get("managedResources"):
        effect = "kube-scheduler does not call Berth for pods with claims, because they name no resource"
        yield _error(f"{name} has managedResources", effect, _COMPARE)


def _extender_timeouts(one: Json, policy: Policy) -> Iterator[DoctorFinding]:
    """Yield the time-outs of an extender entry that are too short for its verbs."""
    timeout = _seconds(one.get("httpTimeout"))
    problem = f"extender {_text(one, 'urlPrefix')}: httpTimeout is {_text(one, 'httpTimeout')}"
    if one.get("filterVerb") and timeout < _SHORT_SECONDS:
        yield _warning(
            problem,
            "the first filter call for new pod requirements takes longer on thousands of nodes; "
            "kube-scheduler then retries the pod",
            _COMPARE,
        )
    if one.get("bindVerb") and timeout < policy.binding_wait_seconds + _BIND_SECONDS:
        wanted_seconds = f"{policy.binding_wait_seconds + _BIND_SECONDS:g}s"
        yield _error(
            f"{problem}, shorter than {wanted_seconds}: binding_wait_seconds of the policy and 10 s",
            "kube-scheduler gives up a bind that Berth still carries out, and may give the node to other pods",
            f"set httpTimeout: {wanted_seconds} in the bind entry, or lower binding_wait_seconds",
        )


def _text(obj: Json, field: str) -> str:
    return one_line(str(obj.get(field)))


def _seconds(text: object) -> float:
    """Return a Go duration such as 1m30s in seconds; kube-scheduler's default, 5 s, for any other text."""
    parts = _DURATION.findall(str(text))
    is_duration = parts and "".join(number + unit for number, unit in parts) == text
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if is_duration else 5.0


# -- the objects in the cache: slices, agents, classes and allocations ----------------------------------------


def cluster_findings(
    cache: ClusterCache, minute: int = 0, levels: Sequence[str] = _DEFAULT.group_levels
) -> Iterator[DoctorFinding]:
    """Yield the findings about slices, agents, classes and allocations, and levels that the policy does not name.

    `minute` is Unix time / 60; 0 is unknown.
    """
    snapshot = cache.snapshot()
    if MARKER_CLASS not in snapshot.classes:
        yield _error(
            f"DeviceClass {MARKER_CLASS} is missing",
            "Berth cannot requeue waiting pods when devices appear",
            "kubectl apply -f manifests/base/marker-class.yaml",
        )
    gpus = {name: node_info for name, node_info in snapshot.node_infos.items() if _has_gpus(node_info)}
    silent = sorted(
        name
        for name, node_info in gpus.items()
        if (node_info.fabric.source is not Source.LIVE if node_info.fabric else name not in cache.slices.fabric)
    )
    if silent:
        yield _warning(
            f"no fresh agent on {len(silent)} of {counted(len(gpus), 'GPU node')}: {_some(silent)}",
            "Berth takes their links from a product table and does not know their live memory",
            "kubectl -n berth-system get pods -l app=berth-agent -o wide",
        )
    yield from _unnamed_levels(gpus.values(), levels)
    yield from _lonely_agents(cache, snapshot.node_infos, minute)
    astray = sorted(name for name, node_info in gpus.items() if _disagree(node_info))
    if astray:
        yield _error(
            f"agent and GPU driver name different GPUs on {counted(len(astray), 'node')}: {_some(astray)}",
            "Berth ignores the data of the agent about those GPUs",
            "restart the agent and the driver's pod there, and compare nvidia-smi -L",
        )
    broken = sorted(
        f"{pool.key.name} on {name}: {pool.trouble or 'slices are missing'}"
        for name, node_info in snapshot.node_infos.items()
        for pool in node_info.inventory.pools
        if not pool.usable
    )
    if broken:
        yield _error(
            f"{counted(len(broken), 'pool')} cannot be used: {_some(broken)}",
            "Berth allocates none of their devices",
            "restart the driver's pod on those nodes and look at its log",
        )
    yield from _left_out(snapshot.node_infos.values())
    others = sorted(
        str(key) for key, claim in snapshot.claims.items() if claim.allocation is not None and not claim.is_of_berth
    )
    if others:
        yield _warning(
            f"{counted(len(others), 'claim was', 'claims were')} allocated by another scheduler: {_some(others)}",
            "two schedulers race for the same devices; the later write loses, and its pod must be scheduled again",
            "kubectl apply -k manifests/components/admission",
        )
    for finding in check_consistency(cache):
        yield _from_audit(finding)


def _from_audit(finding: Finding) -> DoctorFinding:
    if not finding.claims:
        return _error(
            f"audit: {finding.sentence}",
            "Berth does not use the invalid data of this node; other nodes are not affected",
            f"kubectl get resourceslices --field-selector spec.nodeName={finding.about} -o yaml",
        )
    claim = finding.claims[0]
    return _error(
        f"audit: {finding.sentence}",
        "two workloads may use one device, or no workload can use a device",
        f"kubectl -n {claim.namespace} describe resourceclaim {claim.name}",
    )


def _left_out(node_infos: Iterable[NodeInfo]) -> Iterator[DoctorFinding]:
    """Yield a finding for each device field that Berth does not support. Berth never allocates those devices."""
    nodes: dict[str, list[str]] = {}
    for node_info in node_infos:
        for field in {
            node_info.inventory.devices[bit].device.node_allocatable
            for _, mask in node_info.inventory.unsupported
            for bit in members(mask)
        }:
            nodes.setdefault(field, []).append(node_info.node.name)
    for field, names in sorted(nodes.items()):
        yield _warning(
            f"devices with {field} on {counted(len(names), 'node')}: {_some(sorted(names))}",
            "Berth does not support the field yet and never allocates these devices",
            "turn the feature off in their driver, or give them a DeviceClass for pods of the default scheduler",
        )


def _unnamed_levels(gpus: Iterable[NodeInfo], levels: Sequence[str]) -> Iterator[DoctorFinding]:
    """Yield a finding if nodes with GPUs have labels of a cloud that say how near they are, and `levels` has none."""
    if (better := found_levels((one.node.labels for one in gpus), levels)) is not None:
        yield _warning(
            f"group_levels of the policy names none of the labels of {better.setter} that nodes with GPUs have",
            "Berth does not know which nodes are near each other, and spreads gangs over more domains than they need",
            f"write into the policy: {better.line}",
        )


def _lonely_agents(cache: ClusterCache, node_infos: Mapping[str, NodeInfo], minute: int) -> Iterator[DoctorFinding]:
    """Yield the nodes whose agent is dead, by the minute of its last write, and those that have lost their driver."""
    ages = {
        name: minute - max((_read_at(device) for device in slice_.devices), default=0)
        for name, slice_ in cache.slices.fabric.items()
        if name in node_infos
    }
    dead = sorted(f"{name} ({age} min ago)" for name, age in ages.items() if _SILENT_MINUTES < age < minute)
    if dead:
        yield _warning(
            f"no news of the agent on {counted(len(dead), 'node')}: {_some(dead)}",
            "Berth ignores what it said about memory; links and health may be out of date",
            "kubectl -n berth-system get pods -l app=berth-agent -o wide",
        )
    alone = sorted(name for name in ages if cache.slices.fabric[name].devices and not any(_for_agent(node_infos[name])))
    if alone:
        yield _error(
            f"the agent finds GPUs, but no driver publishes any on {counted(len(alone), 'node')}: {_some(alone)}",
            "no pod gets a GPU there",
            "look at the pod of the GPU driver's kubelet plugin on those nodes, and at its log",
        )


def _read_at(device: Device) -> int:
    found = device.attributes.get(f"{DRIVER}/readAt")
    return found if isinstance(found, int) else 0


def _for_agent(node_info: NodeInfo) -> Iterator[tuple[Device, str]]:
    """Yield the devices of drivers whose GPUs the agent reads, also of unusable pools, with the driver."""
    for pool in node_info.inventory.pools:
        if driver_of(pool.key.driver).agent:
            for slice_ in pool.slices:
                yield from ((device, pool.key.driver) for device in slice_.devices)


def _has_gpus(node_info: NodeInfo) -> bool:
    """Whether a driver publishes GPUs that the agent reads, or parts of them; a passthrough GPU is hidden from it."""
    return any(whole_identity(device, driver) or parent_of(device, driver) for device, driver in _for_agent(node_info))


def _disagree(node_info: NodeInfo) -> bool:
    """Whether the live agent and the driver's slices name different GPUs."""
    if node_info.fabric is None or node_info.fabric.source is not Source.LIVE:
        return False
    published = {
        whole_identity(one.device, one.id.driver) or parent_of(one.device, one.id.driver)
        for one in node_info.inventory.devices
        if driver_of(one.id.driver).agent
    }
    return {*node_info.fabric.uuids} != published - {""}
