"""How pods name their group and its sub-groups, and where the minimum of a gang comes from: cases as data."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.api.asked_subgroups import SubGroupIndex, subgroup_index_of
from extender.api.extender_v1 import ExtenderArgs
from extender.api.pod_groups import GROUP_OBJECTS, GroupKey, GroupSource, Membership, group_policy_of
from extender.api.pods import decode_pod
from extender.cache import ClusterCache
from extender.cli.cluster_objects import take_objects
from extender.cluster import ApiClient, Credentials
from extender.gangs.gang import gang_minimum
from extender.runtime import informers
from extender.runtime.informers import watched_resources
from extender.sandbox import Cluster

CASES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "pod_groups.yaml").read_text())
KINDS = {f"{of.kind} {of.api}": of for of in GROUP_OBJECTS}
SECRET = {"example.com/secret": "s"}
LEADER_WORKER_SET = "LeaderWorkerSet leaderworkerset.x-k8s.io"


def cache_with(objects: dict[str, dict[str, Any]]) -> ClusterCache:
    """A cache with these objects of groups in the namespace `default`: kind and name to spec."""
    cache = ClusterCache()
    apply = {kind.name: kind.apply for kind in watched_resources(cache)}
    for title, spec in objects.items():
        kind, _, name = title.rpartition(" ")
        apply[KINDS[kind].resource](
            f"default/{name}", {"metadata": {"namespace": "default", "name": name}, "spec": spec}
        )
    return cache


def pod_of(case: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "train-7", "namespace": "default", "uid": "u", **case["metadata"]}
    return {"metadata": metadata, "spec": case.get("spec", {})}


@pytest.mark.parametrize("title", CASES)
def test_recognised(title: str) -> None:
    """Attack: take part in another namespace's group."""
    case = CASES[title]
    found = decode_pod(pod_of(case)).membership
    if case.get("group") is None:
        assert found is None
        return
    assert found is not None
    assert found.problem == case.get("problem", "")
    if found.problem:
        return
    assert found.key == GroupKey("default", GroupSource(case["source"]), case["group"])
    snapshot = cache_with(case.get("objects", {})).snapshot()
    wanted = case.get("minimum", 0), case.get("rank", 7), case.get("topology", ""), case.get("timeout", 0)
    asked = found.topology
    assert (gang_minimum(found, snapshot), found.rank, asked.nearness, found.timeout_seconds) == wanted
    levels = [level and level.name for level in (asked.required, asked.preferred)]
    assert levels == [case.get("required"), case.get("preferred")]


@pytest.mark.parametrize("title", CASES)
def test_no_pod_of_a_gang_is_passed_undecoded(title: str) -> None:
    """The check that spares decoding most pods says True for every pod that is in a gang or has an invalid group."""
    case = CASES[title]
    if case.get("minimum", 0) > 1 or case.get("problem"):
        assert ExtenderArgs({"Pod": pod_of(case)}, None, ()).concerns_berth


def test_the_object_of_a_group_may_come_go_and_change() -> None:
    member = decode_pod(pod_of({"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}})).membership
    assert isinstance(member, Membership)
    cache = cache_with({})
    (apply,) = (k.apply for k in watched_resources(cache) if k.name == KINDS["PodGroup scheduling.x-k8s.io"].resource)
    for minimum, spec in ((0, None), (4, {"minMember": 4}), (6, {"minMember": 6}), (0, None)):
        apply("default/g", None if spec is None else {"metadata": {"name": "g"}, "spec": spec})
        assert gang_minimum(member, cache.snapshot()) == minimum


def test_a_leader_worker_set_with_an_exclusive_topology_is_no_gang() -> None:
    """Its controller creates the workers once the leader has a node: the leader must not wait for them."""
    spec = {"leaderWorkerTemplate": {"size": 4}}
    for notes, minimum in (({}, 4), ({"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}, 0)):
        metadata = {"namespace": "default", "name": "lws", "annotations": notes}
        cache = cache_with({})
        (apply,) = (kind.apply for kind in watched_resources(cache) if kind.name == KINDS[LEADER_WORKER_SET].resource)
        apply("default/lws", {"metadata": metadata, "spec": spec})
        key = "leaderworkerset.sigs.k8s.io/"
        labels = {f"{key}group-key": "h", f"{key}name": "lws"}
        member = decode_pod(pod_of({"metadata": {"labels": labels, "annotations": {f"{key}size": "4"}}})).membership
        assert isinstance(member, Membership)
        assert gang_minimum(member, cache.snapshot()) == minimum


def test_the_documentation_lists_every_source() -> None:
    text = (Path(__file__).parents[2] / "docs" / "gangs.md").read_text()
    cells = re.findall(r"^\| [0-9]+ \| ([^|]+)", text, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert named == [source.value for source in GroupSource], "add it to a row of docs/gangs.md, in this order"


def test_kinds_with_one_plural_have_watches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two watches with one name, the informers would keep one."""
    plugins = KINDS["PodGroup scheduling.x-k8s.io"]
    monkeypatch.setattr(informers, "GROUP_OBJECTS", (*GROUP_OBJECTS, replace(plugins, api="batch.example.com")))
    watches = watched_resources(ClusterCache())
    assert len({one.name for one in watches}) == len(watches)


async def test_a_snapshot_keeps_what_pods_and_objects_say_about_groups() -> None:
    """It drops other annotations, where users may keep secrets."""
    cluster, notes = Cluster(), {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack", **SECRET}
    lws = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "spec": {}}
    cluster.apply({**lws, "metadata": {"name": "lws", "annotations": notes}})
    for number, case in enumerate(CASES.values()):
        obj = pod_of(case)
        obj["metadata"] |= {"name": f"p-{number}", "annotations": {**obj["metadata"].get("annotations", {}), **SECRET}}
        cluster.apply({**obj, "kind": "Pod"})
    async with cluster.serving() as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        found = await take_objects(client)
    kept = {obj["metadata"]["name"]: decode_pod(obj).membership for obj in found if obj["kind"] == "Pod"}
    assert kept == {obj["metadata"]["name"]: decode_pod(obj).membership for obj in cluster.store.all("pods")}
    (late,) = (group_policy_of(obj) for obj in found if obj["kind"] == "LeaderWorkerSet")
    assert [policy.sequential for policy in late.values()] == [True]
    assert "secret" not in str(found)


def test_names_that_differ_only_at_their_end_are_not_one_group() -> None:
    """An annotation may be long: a name that is cut could be that of another group."""
    for length, problem in ((253, ""), (254, " has more than 253 characters")):
        notes = {"berth.dev/group": "a" * length, "berth.dev/group-min": "2"}
        found = decode_pod(pod_of({"metadata": {"annotations": notes}})).membership
        assert found is not None
        assert found.problem.endswith(problem)
        assert bool(found.problem) == bool(problem)


OF_SUBGROUPS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "asked_subgroups.yaml").read_text()
)


@pytest.mark.parametrize("title", OF_SUBGROUPS)
def test_the_parts_that_a_pod_asks_for(title: str) -> None:
    case = OF_SUBGROUPS[title]
    metadata = {"name": "job-7", "namespace": "default", "uid": "u", **case}
    found = decode_pod({"metadata": metadata, "spec": {}}).membership
    assert found is not None
    assert found.problem == case.get("problem", "")
    asked = found.subgroups
    assert asked.name == case.get("subgroup", "")
    assert asked.minimum == case.get("minimum", 0)
    assert (asked.required and asked.required.name) == case.get("required")
    assert [[layer.size, layer.level.name] for layer in asked.slices] == case.get("slices", [])
    assert (found.topology.required and found.topology.required.name) == case.get("group")


@pytest.mark.parametrize(
    "part",
    [
        SubGroupIndex("", 7, True),
        SubGroupIndex("workers", 1_000_003, True),
        SubGroupIndex("w", None, True),
        SubGroupIndex("l", None, False),
        SubGroupIndex("m/g", 1, True),
    ],
)
def test_a_claim_keeps_the_part_of_its_pod(part: SubGroupIndex) -> None:
    assert subgroup_index_of(str(part)) == part


@pytest.mark.parametrize("text", ["", "workers", "workers/x", "workers/-1", "workers/1/x"])
def test_what_a_tenant_writes_to_a_claim_is_no_part(text: str) -> None:
    assert subgroup_index_of(text) is None
