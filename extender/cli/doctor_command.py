"""`berth doctor`: what keeps Berth from working well in a cluster, why it hurts, and the command that mends it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import typer
from rich.console import Console

from extender.cli.cluster_dump import dump_of, items_of, take_objects
from extender.cli.doctor_cluster import Diagnosis, cluster, some
from extender.cluster import ApiClient, ClusterError, load_credentials
from extender.files import name_of, read_file
from extender.model import WireError, one_line, parse_quantity
from extender.wire import get, many, one_value

Json = dict[str, Any]
SCHEDULER = "berth-scheduler"
_OLDEST, _NEWEST = (1, 34), (1, 37)
_HOOKS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
_WRITTEN = {"": ("pods/binding", "pods/status"), "resource.k8s.io": ("resourceclaims", "resourceclaims/status")}
_QUOTA = ".deviceclass.resource.k8s.io/devices"
_SHORT_SECONDS = 2.0  # of httpTimeout for filter
_MOST_CONFIGURATION = 1024 * 1024  # bytes
# (API group, resource, verb): the heart of manifests/base/rbac.yaml.
_RIGHTS = (
    ("resource.k8s.io", "resourceslices", "list"), ("resource.k8s.io", "resourceclaims", "watch"), ("", "pods", "watch"),
    ("", "nodes", "list"), ("resource.k8s.io", "resourceclaims", "patch"), ("resource.k8s.io", "resourceclaims/status", "patch"),
    ("", "pods/binding", "create"), ("resource.k8s.io", "deviceclasses", "patch"),
)  # fmt: skip


def doctor_command(
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Reach the cluster by this file; without it, from inside a pod.")
    ] = None,
    scheduler_config: Annotated[
        Path | None,
        typer.Option(help="The KubeSchedulerConfiguration in use; else the ConfigMap berth-scheduler-config."),
    ] = None,
    output: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table",
) -> None:
    """Examine a cluster. Exit code 1 where there is an error.

    Example: berth doctor --kubeconfig ~/.kube/config
    """
    given = scheduler_config
    content, where = (read_file(given, _MOST_CONFIGURATION), name_of(given)) if given is not None else (None, "")
    with Console(stderr=True).status("reading the cluster"):
        found = asyncio.run(_examine(kubeconfig, content, where))
    for one in found:
        if output == "json":
            typer.echo(orjson.dumps(one._asdict()).decode())
        else:
            typer.echo(f"{one.severity}: {one.what}\n  why it hurts: {one.why}\n  what mends it: {one.mend}")
    if output == "table":
        typer.echo(f"{len(found)} {'finding' if len(found) == 1 else 'findings'}")
    if any(one.severity == "error" for one in found):
        raise typer.Exit(1)


async def _examine(kubeconfig: Path | None, given: bytes | None, where: str) -> list[Diagnosis]:
    found = list(configuration(given, where)) if given is not None else []
    async with ApiClient(load_credentials(kubeconfig)) as client:
        found += version_findings(await client.get("/version"))
        found += [ailment async for ailment in _rights(client)]
        objects = await take_objects(client)
        pods = list(items_of(await client.get("/api/v1/pods", {"fieldSelector": "spec.nodeName="}), "/api/v1/pods"))
        hooks = [
            hook for kind in _HOOKS for hook in await _items(client, f"/apis/admissionregistration.k8s.io/v1/{kind}")
        ]
        quotas = await _items(client, "/api/v1/resourcequotas")
        text = "" if given is not None else await _configuration(client)
    found += [*webhooks(hooks), *quota_blocks(quotas, pods)]
    if given is None:
        found += configuration(text, "the ConfigMap berth-scheduler-config") if text else [_no_configuration()]
    return found + list(cluster(dump_of(objects))) + list(waiting(pods))


async def _items(client: ApiClient, path: str) -> list[Json]:
    """The objects of a list; none where the server does not serve them or forbids them."""
    try:
        return list(items_of(await client.get(path), path))
    except ClusterError:
        return []


def version_findings(answer: Json) -> Iterator[Diagnosis]:
    """Whether Berth knows the version that an API server tells of itself at /version."""
    text = str(answer.get("gitVersion", "")).removeprefix("v")
    major, minor = (int("".join(c for c in part if c.isdigit()) or 0) for part in [*text.split("."), "0", "0"][:2])
    if (major, minor) < _OLDEST:
        yield Diagnosis(
            "error", f"the API server is {text}", "resource.k8s.io/v1 begins with 1.34", "upgrade the cluster"
        )
    if (major, minor) > _NEWEST:
        yield Diagnosis(
            "warning",
            f"the API server is {text}",
            f"Berth knows the API up to {_NEWEST[0]}.{_NEWEST[1]}",
            "look for a newer Berth, and try this one on the trial overlay first",
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
        if not (answer.get("status") or {}).get("allowed"):
            yield Diagnosis(
                "error",
                f"this account may not {verb} {resource}",
                "Berth would not become ready, or binds would fail",
                "kubectl apply -f manifests/base/rbac.yaml",
            )


async def _configuration(client: ApiClient) -> str:
    try:
        found = await client.get("/api/v1/namespaces/berth-system/configmaps/berth-scheduler-config")
    except ClusterError:
        return ""
    return str((found.get("data") or {}).get("berth-scheduler.yaml") or "")


def _no_configuration() -> Diagnosis:
    return Diagnosis(
        "warning",
        "no scheduler configuration was found",
        "its traps cannot be looked for",
        "berth doctor --scheduler-config FILE",
    )


def configuration(content: bytes | str, where: str = "the scheduler configuration") -> Iterator[Diagnosis]:
    """The traps of a KubeSchedulerConfiguration that can be seen from outside. Raises WireError where it is none."""
    config = one_value(content, where, _MOST_CONFIGURATION)
    if type(config) is not dict or config.get("kind") != "KubeSchedulerConfiguration":
        raise WireError(where, "must be a KubeSchedulerConfiguration")
    mend = "compare with scheduler-config/berth-scheduler.yaml"
    profiles = [p for p, _ in _objects(config, "profiles", where) if p.get("schedulerName") == SCHEDULER]
    share = next(
        (p["percentageOfNodesToScore"] for p in profiles if "percentageOfNodesToScore" in p),
        config.get("percentageOfNodesToScore"),
    )
    if share != 100:  # noqa: PLR2004 - percent
        yield Diagnosis(
            "error",
            f"percentageOfNodesToScore is {one_line(str(share))}",
            "the scheduler shows Berth a sample; nodes with the right GPUs are missed",
            mend,
        )
    for profile in profiles:
        plugins = get(profile, "plugins", dict, f"{where}: profiles", {})
        names = {point: [d.get("name") for d in _disabled(plugins, point, where)] for point in plugins}
        off = {point for point, disabled in names.items() if "DynamicResources" in disabled or "*" in disabled}
        missing = (
            []
            if "multiPoint" in off
            else [p for p in ("preFilter", "filter", "postFilter", "reserve", "preBind") if p not in off]
        )
        if missing:
            yield Diagnosis(
                "error",
                f"DynamicResources is on at {', '.join(missing)}",
                "the in-tree plugin would allocate the claims before Berth",
                mend,
            )
    extenders = [one for one, _ in _objects(config, "extenders", where)]
    if not any(e.get("filterVerb") for e in extenders) or not any(e.get("bindVerb") for e in extenders):
        yield Diagnosis(
            "error", "no extender has filterVerb and bindVerb", "Berth is never asked, or never binds", mend
        )
    for one in extenders:
        for field, wanted, why in (
            ("nodeCacheCapable", True, "whole Node objects are sent: bodies of tens of megabytes"),
            ("ignorable", False, "while Berth is away pods would be bound without devices"),
        ):
            if one.get(field, False) is not wanted:
                yield Diagnosis(
                    "error", f"extender {_told(one, 'urlPrefix')}: {field} is {_told(one, field)}", why, mend
                )
        timeout = _seconds(one.get("httpTimeout"))
        if one.get("filterVerb") and timeout < _SHORT_SECONDS:
            yield Diagnosis(
                "warning",
                f"extender {_told(one, 'urlPrefix')}: httpTimeout is {_told(one, 'httpTimeout')}",
                "a shape never seen takes Berth longer on thousands of nodes; the pod is then tried again",
                mend,
            )
        if one.get("filterVerb") and not one.get("prioritizeVerb"):
            yield Diagnosis(
                "warning",
                f"extender {_told(one, 'urlPrefix')} has no prioritizeVerb",
                "in-tree scores alone choose among Berth's short list",
                mend,
            )
        if one.get("managedResources"):
            yield Diagnosis(
                "error",
                f"extender {_told(one, 'urlPrefix')} has managedResources",
                "pods with claims name no resource and would skip Berth",
                mend,
            )


def _objects(obj: Json, key: str, where: str) -> tuple[tuple[Json, str], ...]:
    return many(obj, key, f"{where}: ", lambda item, path: (item, path))


def _disabled(plugins: Json, point: str, where: str) -> list[Json]:
    plan = get(plugins, point, dict, f"{where}: profiles.plugins", {})
    return [one for one, _ in _objects(plan, "disabled", f"{where}: profiles.plugins.{point}")]


def _told(obj: Json, field: str) -> str:
    return one_line(str(obj.get(field)))


def _seconds(text: object) -> float:
    """A Go duration of seconds or milliseconds; kube-scheduler's default is 5 s."""
    word = str(text or "5s")
    unit, digits = (0.001, word[:-2]) if word.endswith("ms") else (60.0 if word.endswith("m") else 1.0, word[:-1])
    plain = digits.isascii() and digits.replace(".", "", 1).isdecimal()
    return float(digits) * unit if plain else 5.0


def webhooks(configurations: list[Json]) -> Iterator[Diagnosis]:
    """Webhooks that every bind has to pass."""
    for config in configurations:
        for hook in config.get("webhooks") or ():
            asked = [
                resource
                for rule in hook.get("rules") or ()
                for group, resources in _WRITTEN.items()
                for resource in resources
                if {group, "*"} & set(rule.get("apiGroups") or ())
                and {resource, "*/*", f"{resource.partition('/')[0]}/*", *(() if "/" in resource else ("*",))}
                & set(rule.get("resources") or ())
            ]
            if asked and hook.get("failurePolicy", "Fail") == "Fail":
                yield Diagnosis(
                    "warning",
                    f"webhook {hook.get('name')} is asked about {', '.join(sorted(set(asked)))}",
                    "every bind waits for it, and fails while it is away",
                    f"kubectl edit {config.get('kind', 'webhookconfiguration').lower()} {config['metadata']['name']}",
                )


def quota_blocks(quotas: list[Json], pods: list[Json]) -> Iterator[Diagnosis]:
    """Quotas on devices that are used up, and pods that wait for claims nobody makes."""
    for quota in quotas:
        status = quota.get("status") or {}
        for name, hard in (status.get("hard") or {}).items():
            used = (status.get("used") or {}).get(name, "0")
            if name.endswith(_QUOTA) and parse_quantity(str(used)).nanos >= parse_quantity(str(hard)).nanos:
                where = quota["metadata"]["namespace"]
                yield Diagnosis(
                    "warning",
                    f"quota {where}/{quota['metadata']['name']}: {used} of {hard} devices of class {name.removesuffix(_QUOTA)} are used",
                    "no further claim of the class is created there, and its pods wait without a reason from any scheduler",
                    f"kubectl -n {where} edit resourcequota {quota['metadata']['name']}",
                )
    waiting_for = sorted(
        f"{p['metadata']['namespace']}/{p['metadata']['name']}"
        for p in pods
        for claim in (p.get("spec") or {}).get("resourceClaims") or ()
        if claim.get("resourceClaimTemplateName")
        and claim["name"] not in {c.get("name") for c in (p.get("status") or {}).get("resourceClaimStatuses") or ()}
    )
    if waiting_for:
        yield Diagnosis(
            "warning",
            f"{len(waiting_for)} waiting pods have no claim yet: {some(waiting_for)}",
            "a quota, a missing template or a controller manager that is away keeps it from being made",
            f"kubectl -n {waiting_for[0].partition('/')[0]} describe pod {waiting_for[0].partition('/')[2]}",
        )


def waiting(pods: list[Json]) -> Iterator[Diagnosis]:
    """Pods with claims that another scheduler is asked to place."""
    wrong = sorted(
        f"{p['metadata']['namespace']}/{p['metadata']['name']}"
        for p in pods
        if (p.get("spec") or {}).get("resourceClaims") and p["spec"].get("schedulerName") != SCHEDULER
    )
    if wrong:
        yield Diagnosis(
            "warning",
            f"{len(wrong)} waiting pods with claims name another scheduler: {some(wrong)}",
            "they are placed without regard to NVLink, beside Berth's picture",
            f"set schedulerName: {SCHEDULER} in their manifests",
        )
