"""The objects of a cluster, or of the files that commands read in its place. `berth snapshot` writes such a file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import orjson

from extender.allocation import Features, Snapshot
from extender.api.fields import Json, decode_readable, get, inner, many, need, string
from extender.api.pod_groups import LWS_EXCLUSIVE, READ_ANNOTATIONS, GroupKey, Membership, group_policy_of
from extender.api.pods import decode_bound_pod
from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line
from extender.cache import ClusterCache
from extender.cli.object_files import documents, policy_of
from extender.cli.options import Context, Kubeconfig
from extender.cli.output import Screen, say_content
from extender.cluster import (
    ApiClient,
    ClusterError,
    NotFound,
    NotServed,
    WatchedResource,
    is_absent,
    load_credentials,
    pages,
)
from extender.files import name_of
from extender.manifests import checked
from extender.policy import Policy, PolicyError, load_policy
from extender.runtime.gc_policy import collect_seldom
from extender.runtime.informers import object_appliers, watched_resources

_PAGE_OBJECTS = 500
_POD_SPEC = (  # the fields that decode_pod and requests_of read, besides containers
    "nodeName",
    "schedulerName",
    "resourceClaims",
    "schedulingGroup",
    "schedulingGates",
    "nodeSelector",
    "affinity",
    "tolerations",
    "priority",
    "resources",
    "overhead",
)
_CONTAINER = ("name", "resources", "restartPolicy")
_OF_SNAPSHOT = ("DeviceClass", "ResourceSlice", "Node", "DeviceTaintRule", "Namespace", "ResourceClaim")


def snapshot_command(
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Print the objects that Berth watches, as one JSON list.

    The file has no container environments and no secrets.

    Example: berth snapshot --kubeconfig ~/.kube/config > snapshot.json
    """
    with Screen(stderr=True).status("reading the cluster"):
        content = asyncio.run(take_dump(kubeconfig, context))
    say_content(content)


def load_dump(path: Path) -> tuple[ClusterCache, dict[GroupKey, Membership]]:
    """Return a cache with the objects of a dump file, and for each group what a bound pod that runs states about it.

    Raises WireError that names the document.
    """
    collect_seldom()
    objects = list(documents(path))
    if {*_OF_SNAPSHOT, "Pod"}.isdisjoint(str(obj.get("kind")) for obj in objects):
        raise WireError(name_of(path), "holds no objects that Berth reads: `berth snapshot` makes such files")
    pods, _ = decode_readable((obj for obj in objects if _is_bound(obj)), decode_bound_pod)
    cache = dump_of(objects, name_of(path))
    running = (cache.store.in_tree(pod).membership for pod in pods if not (pod.deleting or pod.ended))
    return cache, {membership.key: membership for membership in running if membership is not None}


def _is_bound(obj: Json) -> bool:
    spec = obj.get("spec")
    return obj.get("kind") == "Pod" and isinstance(spec, dict) and bool(spec.get("nodeName"))


def dump_of(objects: Iterable[Json], where: str = "") -> ClusterCache:
    """Return a cache with these objects. Of bound pods, it gets only which of them run for a group.

    Raises WireError that names the document.
    """
    cache, bound = ClusterCache(Features()), list[Json]()
    appliers = object_appliers(cache)
    for number, obj in enumerate(objects, 1):
        try:
            for key, policy in group_policy_of(obj).items():
                cache.apply_group_policy(key, policy)
            if _is_bound(obj):
                bound.append(obj)
            elif apply := appliers.get(str(obj.get("kind"))):
                apply(obj)
        except WireError as error:
            raise WireError(f"{where}, document {number}: {error.path}", error.problem) from error
    for group, members in cache.store.members_in_trees(_bound_members(bound)).items():
        cache.store.use_bound_members(group, members)
    return cache


def snapshot_of(objects: Sequence[Json]) -> tuple[Snapshot, bool]:
    """(a snapshot with these objects, whether it knows their nodes: else it has those that slices name).

    Raises WireError.
    """
    known = [obj for obj in objects if obj.get("kind") in _OF_SNAPSHOT]
    if any(obj["kind"] == "Node" for obj in known):
        return dump_of(known).snapshot(), True
    specs = (obj.get("spec") for obj in known if obj["kind"] == "ResourceSlice")
    names = sorted({str(spec["nodeName"]) for spec in specs if isinstance(spec, dict) and spec.get("nodeName")})
    nodes: list[Json] = [{"kind": "Node", "metadata": {"name": name}} for name in names]
    return dump_of([*nodes, *known]).snapshot(), False


def _bound_members(objects: Iterable[Json]) -> dict[GroupKey, dict[str, str]]:
    """By group, UID to node of the bound pods; '' for one that terminates or failed.

    A pod that succeeded counts while another pod of its group runs.
    """
    found = dict[GroupKey, dict[str, str]]()
    running = set[GroupKey]()
    pods, _ = decode_readable(objects, decode_bound_pod)
    for pod in pods:
        if pod.membership is not None:
            counts = not pod.deleting and pod.phase != "Failed"
            found.setdefault(pod.membership.key, {})[pod.uid] = pod.node_name if counts else ""
            running |= {pod.membership.key} if counts and not pod.ended else set()
    return {key: members if key in running else dict.fromkeys(members, "") for key, members in found.items()}


async def take_dump(kubeconfig: Path | None, context: str = "") -> bytes:
    """Read all objects that Berth watches and return them as one List in JSON.

    A pod keeps only the fields that allocation reads. Raises ClusterError.
    """
    async with ApiClient(load_credentials(kubeconfig, context)) as client:
        items = await take_objects(client)
    return orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items}, option=orjson.OPT_INDENT_2)


async def take_objects(client: ApiClient) -> list[Json]:
    """Read all objects that Berth watches. Raises ClusterError."""
    lists = await asyncio.gather(*(list_kind(client, kind) for kind in watched_resources(ClusterCache())))
    return [item for found in lists for item in found]


async def list_kind(client: ApiClient, kind: WatchedResource) -> list[Json]:
    """List a kind in the newest version that the server has. An optional kind that the server lacks has no objects.

    A 404 alone does not show that: a load balancer may have sent it. Raises ClusterError.
    """
    for path in kind.paths:
        try:
            return [reduced(item) for item in await list_items(client, path, kind.list_kind)]
        except (NotFound, NotServed) as error:
            if path == kind.paths[-1] and not kind.optional:
                raise NotServed(f"list {kind.name}: {error}") from error
    if await is_absent(client, kind.paths):
        return []
    raise NotServed(f"list {kind.name}: the server serves the kind, but answers 404")


async def list_items(client: ApiClient, path: str, kind: str, params: Mapping[str, str] | None = None) -> list[Json]:
    """The objects of a list of this kind, such as PodList, with kind and version. Raises ClusterError.

    Raises WireError if an object has no name.
    """
    found: list[Json] = []
    async for page in pages(client, path, kind, _PAGE_OBJECTS, params):
        version = {"kind": kind.removesuffix("List"), "apiVersion": page.get("apiVersion")}
        found += [{**item, **version} for item in many(page, "items", path, _named)]
    return found


def _named(item: Json, path: str) -> Json:
    need(get(checked(item, path), "metadata", dict, path, {}), "name", f"{path}.metadata")
    return item


def reduced(obj: Json) -> Json:
    """An object as a snapshot has it: of a pod only the fields that Berth reads, so no environments.

    Raises WireError, or the errors of values of another type, for an object of another form.
    """
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    if obj["kind"] == "LeaderWorkerSet":
        return _reduced_set({**obj, "metadata": metadata})
    if obj["kind"] != "Pod":
        return {**obj, "metadata": metadata}
    metadata["annotations"] = {
        key: text
        for key, text in (metadata.get("annotations") or {}).items()
        if key.startswith("berth.dev/") or key in READ_ANNOTATIONS
    }
    whole = get(obj, "spec", dict, "", {})
    spec = {k: v for k, v in whole.items() if k in _POD_SPEC}
    for field in ("containers", "initContainers"):
        spec[field] = list(many(whole, field, ".spec", lambda c, _: {k: c[k] for k in _CONTAINER if k in c}))
    return {**obj, "metadata": metadata, "spec": spec}


def _reduced_set(obj: Json) -> Json:
    """A LeaderWorkerSet without its pod templates, which its annotations may have, too."""
    whole = get(obj, "spec", dict, "", {})
    workers = get(whole, "leaderWorkerTemplate", dict, ".spec", {})
    spec = {"startupPolicy": whole.get("startupPolicy"), "leaderWorkerTemplate": {"size": workers.get("size")}}
    notes = {k: v for k, v in (obj["metadata"].get("annotations") or {}).items() if k == LWS_EXCLUSIVE}
    return {**obj, "metadata": {**obj["metadata"], "annotations": notes}, "spec": spec}


# -- what assess and defrag read: all kinds that may be listed, and the policy -------------------------------------


class Objects(NamedTuple):
    """Objects, by kind why others may not be listed, and where they come from. For `files` see reading_of."""

    objects: list[Json]
    refused: dict[str, str]
    where: str
    is_live: bool = False
    files: Sequence[tuple[str, int]] = ()


class UsedPolicy(NamedTuple):
    """A policy. `source` is '' for the default one.

    `problem` says why the policy of the cluster cannot be used, `unread` why it is not known whether there is one.
    """

    policy: Policy
    source: str = ""
    problem: str = ""
    unread: str = ""


def from_files(files: Sequence[Path]) -> Objects:
    """The objects of files. Raises WireError."""
    collect_seldom()
    names = [name_of(path) for path in files]
    found = [list(documents(path)) for path in files]
    sizes = list(zip(names, map(len, found), strict=True))
    return Objects(list(chain.from_iterable(found)), {}, ", ".join(names), files=sizes)


def from_cluster(kubeconfig: Path | None, context: str = "", budgets: str = "") -> Objects:
    """The objects of a cluster; with the path `budgets` the PodDisruptionBudgets, too."""
    collect_seldom()
    with Screen(stderr=True).status("reading the cluster"):
        return asyncio.run(_listed(kubeconfig, context, budgets))


async def _listed(kubeconfig: Path | None, context: str, budgets: str) -> Objects:
    """The objects of all kinds that may be listed, and why each other one may not.

    Raises WireError that names the server if it lists none of them.
    """
    refused, objects, credentials = dict[str, str](), list[Json](), load_credentials(kubeconfig, context)
    async with ApiClient(credentials) as client:
        kinds = watched_resources(ClusterCache())
        asked = {kind.list_kind.removesuffix("List"): partial(list_kind, client, kind) for kind in kinds}
        if budgets:
            asked["PodDisruptionBudget"] = partial(list_items, client, budgets, "PodDisruptionBudgetList")
        for kind, listed in asked.items():
            try:
                objects += await listed()
            except ClusterError as error:
                refused[kind] = str(error)
    if refused.keys() >= asked.keys() - {"PodDisruptionBudget"}:
        raise WireError(f"API server {credentials.url}", f"lists nothing: {next(iter(refused.values()))}")
    where = f"the cluster of context {one_line(credentials.context)}" if credentials.context else "the cluster"
    return Objects(objects, refused, where, is_live=True)


def used_policy(
    file: Path | None, kubeconfig: Path | None, context: str, namespace: str, *, is_live: bool
) -> UsedPolicy:
    """The policy of a file; without one that of the cluster, or the default one if objects were read from files."""
    if file is not None:
        return UsedPolicy(policy_of(file), name_of(file))
    return _policy_of_cluster(kubeconfig, context, namespace) if is_live else UsedPolicy(Policy())


def _policy_of_cluster(kubeconfig: Path | None, context: str, namespace: str) -> UsedPolicy:
    """The policy of the Berth in this namespace; the default one if there is none, or if it cannot be read."""
    where = f"ConfigMap {namespace}/berth-policy"
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/berth-policy"
    try:
        found = asyncio.run(_got(kubeconfig, context, path))
        policy = load_policy(string(inner(found, "data", where), "policy.yaml", where) or "{}")
    except NotFound:
        return UsedPolicy(Policy())
    except ClusterError as error:
        return UsedPolicy(Policy(), unread=f"{where}: {error}: the default policy decides here")
    except (PolicyError, WireError) as error:
        return UsedPolicy(Policy(), problem=f"{where}: {error}: the default policy decides here")
    return UsedPolicy(policy, where if policy.digest != Policy().digest else "")


async def _got(kubeconfig: Path | None, context: str, path: str) -> Json:
    async with ApiClient(load_credentials(kubeconfig, context)) as client:
        return await client.get(path)
