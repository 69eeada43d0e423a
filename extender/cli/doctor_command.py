"""`berth doctor`: finds problems of a cluster, says why each one matters, and names the command that repairs it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from extender.cli.cluster_dump import dump_of, list_items, take_objects
from extender.cli.doctor_cluster import DoctorFinding, cluster, some
from extender.cli.doctor_configuration import MOST_CONFIGURATION, checked, configuration, objects_of
from extender.cli.object_files import policy_of
from extender.cli.options import Kubeconfig
from extender.cli.output import Screen, say, say_json
from extender.cluster import ApiClient, ClusterError, Forbidden, NotFound, NotServed, load_credentials
from extender.files import name_of, read_file
from extender.model import SCHEDULER, counted, error_line, one_line, printable, shown
from extender.policy import Policy, PolicyError, load_policy
from extender.wire import Json, decode_pod, get, need, quantities, strings

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
    content, where = (read_file(given, MOST_CONFIGURATION), name_of(given)) if given is not None else (None, "")
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
        checked(given, where)  # before the cluster is read
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
    return found + list(cluster(dump_of(objects), int(time.time() // 60))) + list(waiting(pods))


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


def webhooks(configurations: list[Json]) -> Iterator[DoctorFinding]:
    """Yield the webhooks without which no bind succeeds."""
    for config in configurations:
        name = config["metadata"]["name"]
        for hook, where in objects_of(config, "webhooks", f"webhooks of {name}"):
            asked = {
                resource
                for rule, place in objects_of(hook, "rules", where)
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
    """Yield the waiting pods with claims whose schedulerName is not Berth's, and those whose last attempt failed."""
    decoded = [decode_pod(pod) for pod in pods]
    failed = sorted((str(pod.key), pod) for pod in decoded if pod.scheduler == SCHEDULER and pod.scheduler_error)
    if failed:
        name, first = failed[0]
        yield DoctorFinding(
            "warning",
            f"{counted(len(failed), 'waiting pod')} whose last attempt ended with an error: "
            f"{some([key for key, _ in failed])}; {name}: {error_line(first.scheduler_error)}",
            "a node fits, but the bind fails, or the filter request does; kube-scheduler tries again and again",
            f"kubectl -n {first.key.namespace} describe pod {first.key.name}",
        )
    wrong = sorted(str(pod.key) for pod in decoded if pod.claims and pod.scheduler != SCHEDULER)
    if wrong:
        yield DoctorFinding(
            "warning",
            f"{counted(len(wrong), 'waiting pod')} with claims for another scheduler: {some(wrong)}",
            "another scheduler places them without regard to NVLink, and races with Berth for devices",
            f"set schedulerName: {SCHEDULER} in their manifests",
        )
