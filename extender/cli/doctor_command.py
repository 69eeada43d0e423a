"""`berth doctor`: finds problems of a cluster, says why each one matters, and names the command that repairs it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from extender.cli.cluster_dump import dump_of, list_items, take_objects
from extender.cli.doctor_cluster import DoctorFinding, cluster, some
from extender.cli.kubeconfig_option import Kubeconfig
from extender.cli.object_files import policy_of
from extender.cli.output import Screen, say, say_json
from extender.cluster import ApiClient, ClusterError, Forbidden, NotFound, NotServed, load_credentials
from extender.files import name_of, read_file
from extender.model import SCHEDULER, WireError, counted, one_line, printable, shown
from extender.policy import Policy, PolicyError, load_policy
from extender.wire import Json, decode_pod, get, many, need, one_value, quantities, strings

_OLDEST, _NEWEST = (1, 34), (1, 37)
_HOOKS = {
    "validatingwebhookconfigurations": "ValidatingWebhookConfigurationList",
    "mutatingwebhookconfigurations": "MutatingWebhookConfigurationList",
}
_WRITTEN = {"": ("pods/binding", "pods/status"), "resource.k8s.io": ("resourceclaims", "resourceclaims/status")}
_QUOTA = ".deviceclass.resource.k8s.io/devices"
_CLAIM_QUOTA = "count/resourceclaims.resource.k8s.io"
_SHORT_SECONDS = 2.0  # doctor warns of a shorter httpTimeout for filter
_BIND_SECONDS = 10.0  # by which httpTimeout for bind exceeds binding_wait_seconds (docs/policy.md)
_COMPARE = "compare with scheduler-config/berth-scheduler.yaml"
_IN_TREE_POINTS = ("preFilter", "filter", "postFilter", "reserve", "preBind")  # of the plugin DynamicResources
_DURATION, _UNITS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"), {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_MOST_CONFIGURATION = 1024 * 1024  # bytes
_DEFAULT = Policy()
# (API group, resource, verb): the rights in manifests/base/rbac.yaml without which `berth serve` cannot work.
_RIGHTS = (
    ("resource.k8s.io", "resourceslices", "list"),
    ("resource.k8s.io", "resourceclaims", "watch"),
    ("", "pods", "watch"),
    ("", "nodes", "list"),
    ("resource.k8s.io", "resourceclaims", "patch"),
    ("resource.k8s.io", "resourceclaims/status", "patch"),
    ("", "pods/binding", "create"),
    ("resource.k8s.io", "deviceclasses", "patch"),
)


def doctor_command(
    kubeconfig: Kubeconfig = None,
    scheduler_config: Annotated[
        Path | None,
        typer.Option(help="The KubeSchedulerConfiguration in use. Default: the ConfigMap berth-scheduler-config."),
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="The policy in use. Default: the ConfigMap berth-policy.")] = None,
    output: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table",
) -> None:
    """Examine a cluster for mistakes that stop Berth.

    Exit code 1 if there is an error.

    Example: berth doctor --kubeconfig ~/.kube/config
    """
    given = scheduler_config
    content, where = (read_file(given, _MOST_CONFIGURATION), name_of(given)) if given is not None else (None, "")
    with Screen(stderr=True).status("reading the cluster"):
        found = asyncio.run(_examine(kubeconfig, content, where, policy_of(policy) if policy is not None else None))
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
    kubeconfig: Path | None, given: bytes | None, where: str, policy: Policy | None
) -> list[DoctorFinding]:
    found: list[DoctorFinding] = []
    if given is not None:
        _checked(given, where)  # before the cluster is read
    async with ApiClient(load_credentials(kubeconfig)) as client:
        found += version_findings(await client.get("/version"))
        found += [finding async for finding in _rights(client)]
        objects = await take_objects(client)
        pods = await list_items(client, "/api/v1/pods", "PodList", {"fieldSelector": "spec.nodeName="})
        hooks = [
            hook
            for name, kind in _HOOKS.items()
            for hook in await _items(client, f"/apis/admissionregistration.k8s.io/v1/{name}", kind)
        ]
        quotas = await _items(client, "/api/v1/resourcequotas", "ResourceQuotaList")
        text = "" if given is not None else await _config_map(client, "berth-scheduler-config", "berth-scheduler.yaml")
        policy_text = "" if policy is not None else await _config_map(client, "berth-policy", "policy.yaml")
    found += [*webhooks(hooks), *quota_blocks(quotas, pods)]
    try:
        policy = policy or load_policy(policy_text or "{}")
    except PolicyError as error:
        policy = Policy()
        found.append(_invalid_policy(error))
    if given is not None or text:
        found += configuration(given or text, where or "the ConfigMap berth-scheduler-config", policy)
    else:
        found.append(_no_configuration())
    return found + list(cluster(dump_of(objects))) + list(waiting(pods))


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
        yield DoctorFinding(
            "warning",
            f"the API server names no version: {shown(text)}",
            "doctor cannot tell whether Berth knows its API",
            "kubectl version",
        )
        return
    major, minor = map(int, found.groups())
    if (major, minor) < _OLDEST:
        yield DoctorFinding(
            "error", f"the API server is {text}", "resource.k8s.io/v1 exists since 1.34", "upgrade the cluster"
        )
    if (major, minor) > _NEWEST:
        yield DoctorFinding(
            "warning",
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
        if not get(answer, "status", dict, "SelfSubjectAccessReview", {}).get("allowed"):
            yield DoctorFinding(
                "error",
                f"this account may not {verb} {resource}",
                "Berth would not become ready, or binds would fail",
                "kubectl apply -f manifests/base/rbac.yaml",
            )


async def _config_map(client: ApiClient, name: str, key: str) -> str:
    """Return an entry of a ConfigMap; '' if it does not exist or cannot be read."""
    try:
        found = await client.get(f"/api/v1/namespaces/berth-system/configmaps/{name}")
    except ClusterError:
        return ""
    return str(get(found, "data", dict, f"ConfigMap {name}", {}).get(key) or "")


def _invalid_policy(error: PolicyError) -> DoctorFinding:
    return DoctorFinding(
        "error",
        f"the ConfigMap berth-policy: {error}",
        "Berth keeps the last good policy, and does not start with this one",
        "berth policy check FILE",
    )


def _no_configuration() -> DoctorFinding:
    return DoctorFinding(
        "warning",
        "no scheduler configuration was found",
        "doctor cannot check it for common mistakes",
        "berth doctor --scheduler-config FILE",
    )


def _checked(content: bytes | str, where: str) -> Json:
    """Return the KubeSchedulerConfiguration in `content`. Raises WireError if it is none."""
    config = one_value(content, where, _MOST_CONFIGURATION)
    if type(config) is not dict or config.get("kind") != "KubeSchedulerConfiguration":
        raise WireError(where, "must be a KubeSchedulerConfiguration")
    return config


def configuration(
    content: bytes | str, where: str = "the scheduler configuration", policy: Policy = _DEFAULT
) -> Iterator[DoctorFinding]:
    """Yield the mistakes in a KubeSchedulerConfiguration beside this policy. Raises WireError if `content` is none."""
    config = _checked(content, where)
    profiles = [p for p, _ in _objects(config, "profiles", where) if p.get("schedulerName") == SCHEDULER]
    yield from _sampling(config, profiles)
    for profile in profiles:
        yield from _in_tree_plugin(profile, where)
    extenders = [one for one, _ in _objects(config, "extenders", where)]
    if not any(e.get("filterVerb") for e in extenders) or not any(e.get("bindVerb") for e in extenders):
        yield DoctorFinding(
            "error",
            "no extender has filterVerb and bindVerb",
            "kube-scheduler sends Berth no filter or bind calls",
            _COMPARE,
        )
    for one in extenders:
        yield from _extender_fields(one)
        yield from _extender_timeouts(one, policy)


def _sampling(config: Json, profiles: list[Json]) -> Iterator[DoctorFinding]:
    """Yield an error if kube-scheduler looks for a feasible node among a sample of the nodes."""
    share = next(
        (p["percentageOfNodesToScore"] for p in profiles if "percentageOfNodesToScore" in p),
        config.get("percentageOfNodesToScore"),
    )
    if share != 100:  # noqa: PLR2004 - percent
        yield DoctorFinding(
            "error",
            f"percentageOfNodesToScore is {one_line(str(share))}",
            "kube-scheduler sends Berth a sample of the nodes, which may lack the nodes with the right GPUs",
            _COMPARE,
        )


def _in_tree_plugin(profile: Json, where: str) -> Iterator[DoctorFinding]:
    """Yield an error if a profile leaves the in-tree plugin on."""
    plugins = get(profile, "plugins", dict, f"{where}: profiles", {})
    names = {point: [d.get("name") for d in _disabled(plugins, point, where)] for point in plugins}
    off = {point for point, disabled in names.items() if "DynamicResources" in disabled or "*" in disabled}
    missing = [] if "multiPoint" in off else [point for point in _IN_TREE_POINTS if point not in off]
    if missing:
        yield DoctorFinding(
            "error",
            f"DynamicResources is on at {', '.join(missing)}",
            "the in-tree plugin would allocate the claims before Berth",
            _COMPARE,
        )


def _extender_fields(one: Json) -> Iterator[DoctorFinding]:
    """Yield the fields of an extender entry that have a wrong value, other than time-outs."""
    for field, wanted, why in (
        ("nodeCacheCapable", True, "kube-scheduler sends whole Node objects: bodies of tens of megabytes"),
        ("ignorable", False, "kube-scheduler binds pods without devices while Berth is down"),
    ):
        if one.get(field, False) is not wanted:
            yield DoctorFinding(
                "error", f"extender {_text(one, 'urlPrefix')}: {field} is {_text(one, field)}", why, _COMPARE
            )
    if one.get("filterVerb") and not one.get("prioritizeVerb"):
        yield DoctorFinding(
            "warning",
            f"extender {_text(one, 'urlPrefix')} has no prioritizeVerb",
            "kube-scheduler chooses among the nodes of Berth's short list by in-tree scores alone",
            _COMPARE,
        )
    if one.get("managedResources"):
        yield DoctorFinding(
            "error",
            f"extender {_text(one, 'urlPrefix')} has managedResources",
            "kube-scheduler does not call Berth for pods with claims, because they name no resource",
            _COMPARE,
        )


def _extender_timeouts(one: Json, policy: Policy) -> Iterator[DoctorFinding]:
    """Yield the time-outs of an extender entry that are too short for its verbs."""
    timeout = _seconds(one.get("httpTimeout"))
    problem = f"extender {_text(one, 'urlPrefix')}: httpTimeout is {_text(one, 'httpTimeout')}"
    if one.get("filterVerb") and timeout < _SHORT_SECONDS:
        yield DoctorFinding(
            "warning",
            problem,
            "the first filter call for new pod requirements takes longer on thousands of nodes; "
            "kube-scheduler then retries the pod",
            _COMPARE,
        )
    if one.get("bindVerb") and timeout < policy.binding_wait_seconds + _BIND_SECONDS:
        wanted_seconds = f"{policy.binding_wait_seconds + _BIND_SECONDS:g}s"
        yield DoctorFinding(
            "error",
            f"{problem}, shorter than {wanted_seconds}: binding_wait_seconds of the policy and 10 s",
            "kube-scheduler gives up a bind that Berth still carries out, and may give the node to other pods",
            f"set httpTimeout: {wanted_seconds} in the bind entry, or lower binding_wait_seconds",
        )


def _objects(obj: Json, key: str, where: str) -> tuple[tuple[Json, str], ...]:
    return many(obj, key, f"{where}: ", lambda item, path: (item, path))


def _disabled(plugins: Json, point: str, where: str) -> list[Json]:
    plan = get(plugins, point, dict, f"{where}: profiles.plugins", {})
    return [one for one, _ in _objects(plan, "disabled", f"{where}: profiles.plugins.{point}")]


def _text(obj: Json, field: str) -> str:
    return one_line(str(obj.get(field)))


def _seconds(text: object) -> float:
    """Return a Go duration such as 1m30s in seconds; kube-scheduler's default, 5 s, for any other text."""
    parts = _DURATION.findall(str(text))
    is_duration = parts and "".join(number + unit for number, unit in parts) == text
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if is_duration else 5.0


def webhooks(configurations: list[Json]) -> Iterator[DoctorFinding]:
    """Yield the webhooks without which no bind succeeds."""
    for config in configurations:
        name = config["metadata"]["name"]
        for hook, where in _objects(config, "webhooks", f"webhooks of {name}"):
            asked = {
                resource
                for rule, place in _objects(hook, "rules", where)
                for group, resources in _WRITTEN.items()
                for resource in resources
                if _covers(rule, place, group, resource)
            }
            if asked and hook.get("failurePolicy", "Fail") == "Fail":
                yield DoctorFinding(
                    "warning",
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
        status = get(quota, "status", dict, where, {})
        hard, used = (quantities(status, field, where) for field in ("hard", "used"))
        for name, most in hard.items():
            counts = "claims" if name == _CLAIM_QUOTA else f"devices of class {name.removesuffix(_QUOTA)}"
            if not name.endswith((_QUOTA, _CLAIM_QUOTA)):
                continue
            if (used[name].nanos if name in used else 0) >= most.nanos:
                shown_use = f"{status['used'][name] if name in used else 0} of {status['hard'][name]} used"
                yield DoctorFinding(
                    "warning",
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
        yield DoctorFinding(
            "warning",
            f"{counted(len(waiting_for), 'waiting pod has', 'waiting pods have')} no claim yet: {some(waiting_for)}",
            "a quota, a missing template or a stopped kube-controller-manager prevents the claim",
            f"kubectl -n {waiting_for[0].partition('/')[0]} describe pod {waiting_for[0].partition('/')[2]}",
        )


def waiting(pods: list[Json]) -> Iterator[DoctorFinding]:
    """Yield the waiting pods with claims whose schedulerName is not Berth's."""
    decoded = map(decode_pod, pods)
    wrong = sorted(str(pod.key) for pod in decoded if pod.claims and pod.scheduler != SCHEDULER)
    if wrong:
        yield DoctorFinding(
            "warning",
            f"{counted(len(wrong), 'waiting pod')} with claims for another scheduler: {some(wrong)}",
            "another scheduler places them without regard to NVLink, and races with Berth for devices",
            f"set schedulerName: {SCHEDULER} in their manifests",
        )
