"""The objects that assess and defrag read: of files, or of the cluster, of all kinds that may be listed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from extender.api.fields import Json, inner, string
from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line
from extender.cache import ClusterCache
from extender.cli.object_files import documents, policy_of
from extender.cli.output import Screen
from extender.cli.snapshot_command import list_items, list_kind
from extender.cluster import ApiClient, ClusterError, NotFound, load_credentials
from extender.console import BUDGETS_PATH
from extender.files import name_of
from extender.policy import Policy, PolicyError, load_policy
from extender.runtime.gc_policy import collect_seldom
from extender.runtime.informers import watched_resources


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


def from_cluster(kubeconfig: Path | None, context: str = "", *, budgets: bool = False) -> Objects:
    """The objects of a cluster; `budgets`: the PodDisruptionBudgets, too."""
    collect_seldom()
    with Screen(stderr=True).status("reading the cluster"):
        return asyncio.run(_listed(kubeconfig, context, budgets=budgets))


async def _listed(kubeconfig: Path | None, context: str, *, budgets: bool) -> Objects:
    """The objects of all kinds that may be listed, and why each other one may not.

    Raises WireError that names the server if it lists none of them.
    """
    refused = dict[str, str]()
    objects = list[Json]()
    credentials, kinds = load_credentials(kubeconfig, context), watched_resources(ClusterCache())
    async with ApiClient(credentials) as client:
        for kind in kinds:
            try:
                objects += await list_kind(client, kind)
            except ClusterError as error:
                refused[kind.list_kind.removesuffix("List")] = str(error)
        if refused.keys() == {kind.list_kind.removesuffix("List") for kind in kinds}:
            raise WireError(f"API server {credentials.url}", f"lists nothing: {next(iter(refused.values()))}")
        if budgets:
            try:
                objects += await list_items(client, BUDGETS_PATH, "PodDisruptionBudgetList")
            except ClusterError as error:
                refused["PodDisruptionBudget"] = str(error)
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
