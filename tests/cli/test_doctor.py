"""`berth doctor` names each problem and its remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from extender.api.fields import Json
from extender.cli.cluster_objects import dump_of
from extender.cli.doctor_command import (
    cluster_findings,
    configuration_findings,
    quota_blocks,
    version_findings,
    waiting,
    webhooks,
)
from extender.policy import Policy
from extender.sandbox import Cluster, carried_machines, fabric_slice, listening, write_kubeconfig
from extender.sandbox.machines import gpu_slice, node_object
from tests.worlds.commands import berth_beside
from tests.worlds.running_berth import claim, pod

ROOT = Path(__file__).resolve().parents[2]
T4 = carried_machines()["t4-4"]
CONFIG = (ROOT / "scheduler-config" / "berth-scheduler.yaml").read_text()


def changed(edit: Callable[[dict], object]) -> str:
    config = yaml.safe_load(CONFIG)
    edit(config)
    return yaml.safe_dump(config)


def findings_for(*objects: Json, minute: int = 0) -> list[str]:
    """The problems of a cluster with these objects, Berth's class and node n1."""
    marker = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "berth.dev"}, "spec": {}}
    return [one.problem for one in cluster_findings(dump_of([marker, node_object("n1", T4, {}), *objects]), minute)]


def test_the_project_s_own_configuration_is_healthy() -> None:
    assert list(configuration_findings(CONFIG)) == []


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda c: c.pop("percentageOfNodesToScore"), "percentageOfNodesToScore is None"),
        (lambda c: c["profiles"][0]["plugins"].pop("filter"), "DynamicResources is on at filter"),
        (lambda c: c["extenders"].pop(), "filterVerb and bindVerb"),
        (lambda c: c["extenders"][0].update(nodeCacheCapable=False), "nodeCacheCapable is False"),
        (lambda c: c["extenders"][1].update(ignorable=True), "ignorable is True"),
        (lambda c: c["extenders"][0].update(httpTimeout="200ms"), "httpTimeout is 200ms"),
        (
            lambda c: c["extenders"][1].update(httpTimeout="29s"),
            "httpTimeout is 29s, shorter than 30s: binding_wait_seconds of the policy and 10 s",
        ),
        (lambda c: c["extenders"][1].pop("httpTimeout"), "httpTimeout is None, shorter than 30s"),
        (lambda c: c["extenders"][0].pop("prioritizeVerb"), "has no prioritizeVerb"),
        (lambda c: c["extenders"][0].update(managedResources=[{"name": "nvidia.com/gpu"}]), "managedResources"),
    ],
)
def test_traps_of_the_configuration(edit: Callable[[dict], object], words: str) -> None:
    (found,) = configuration_findings(changed(edit))
    assert words in found.problem
    assert found.effect
    assert found.remedy


def test_the_time_of_a_bind_is_compared_with_the_policy() -> None:
    def problems(timeout: str) -> list[str]:
        text = changed(lambda c: c["extenders"][1].update(httpTimeout=timeout))
        return [found.problem for found in configuration_findings(text, policy=Policy(binding_wait_seconds=600))]

    assert [problems(timeout) for timeout in ("610s", "10m10s", "1h")] == [[], [], []]
    (short,) = problems("10m9.9s")
    assert "httpTimeout is 10m9.9s, shorter than 610s" in short


async def test_the_policy_of_the_cluster_or_of_a_file_is_read(tmp_path: Path) -> None:
    cluster = Cluster()
    for key, name in (("berth-scheduler.yaml", "berth-scheduler-config"), ("policy.yaml", "berth-policy")):
        text = CONFIG if key == "berth-scheduler.yaml" else "binding_wait_seconds: 60"
        made = {"metadata": {"namespace": "berth-system", "name": name}, "data": {key: text}}
        cluster.store.put("configmaps", ("berth-system", name), made)
    (tmp_path / "policy").write_text("binding_wait_seconds: 15")
    async with cluster.serving() as api:
        words = ["doctor", "--kubeconfig", str(write_kubeconfig(tmp_path, api)), "--policy", str(tmp_path / "policy")]
        code, out, _ = await berth_beside(words[:3])
        assert code == 1
        assert "httpTimeout is 30s, shorter than 70s" in out
        code, out, _ = await berth_beside(words)
        assert "httpTimeout" not in out
        cluster.store.put(
            "configmaps", ("berth-system", "berth-policy"), {**made, "data": {"policy.yaml": "candidates: 0"}}
        )
        _, out, _ = await berth_beside(words[:3])
        assert "error: the ConfigMap berth-policy: candidates: must be at least" in out


async def test_the_configuration_is_in_the_namespace_of_berth(tmp_path: Path) -> None:
    cluster = Cluster()
    made = {
        "metadata": {"namespace": "gpu", "name": "berth-scheduler-config"},
        "data": {"berth-scheduler.yaml": CONFIG},
    }
    cluster.store.put("configmaps", ("gpu", "berth-scheduler-config"), made)
    async with cluster.serving() as api:
        words = ["doctor", "--kubeconfig", str(write_kubeconfig(tmp_path, api))]
        _, out, _ = await berth_beside(words)
        assert "the ConfigMap berth-scheduler-config is not in namespace berth-system\n" in out
        assert "  remedy: berth doctor --berth-namespace NAMESPACE, or --scheduler-config FILE\n" in out
        _, out, _ = await berth_beside([*words, "--berth-namespace", "gpu"])
        assert out == "0 findings\n"


def test_pods_that_name_another_scheduler() -> None:
    mine, other = pod("a", "c"), pod("b", "c", schedulerName="default-scheduler")
    (found,) = waiting([mine, other])
    assert "default/b" in found.problem
    assert "default/a" not in found.problem


@pytest.mark.parametrize(
    ("groups", "resources", "policy", "asked"),
    [
        ([""], ["pods"], "Fail", ""),
        ([""], ["pods/binding"], "Fail", "pods/binding"),
        (["*"], ["*/*"], "Fail", "pods/binding, pods/status, resourceclaims, resourceclaims/status"),
        (["resource.k8s.io"], ["*"], "Fail", "resourceclaims"),
        (["resource.k8s.io"], ["resourceclaims/*"], "Fail", "resourceclaims, resourceclaims/status"),
        ([""], ["pods/binding"], "Ignore", ""),
        (["apps"], ["*"], "Fail", ""),
    ],
)
def test_webhooks_in_the_way_of_binds(groups: list[str], resources: list[str], policy: str, asked: str) -> None:
    hook = {"name": "h.example.com", "failurePolicy": policy, "rules": [{"apiGroups": groups, "resources": resources}]}
    found = list(webhooks([{"kind": "ValidatingWebhookConfiguration", "metadata": {"name": "h"}, "webhooks": [hook]}]))
    assert [f.problem for f in found] == ([f"webhook h.example.com is asked about {asked}"] if asked else [])
    assert all(f.remedy == "kubectl edit validatingwebhookconfiguration h" for f in found)


def test_used_up_quotas_and_claims_that_are_never_created() -> None:
    name = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"

    def quota(used: str, name: str = name) -> dict:
        return {"metadata": {"name": "q", "namespace": "team"}, "status": {"hard": {name: "8"}, "used": {name: used}}}

    waits = pod("p")
    waits["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    assert [f.problem for f in quota_blocks([quota("7")], [])] == []
    full, claimless = quota_blocks([quota("8")], [waits])
    assert full.problem == "quota team/q: devices of class gpu.nvidia.com: 8 of 8 used"
    (claims,) = quota_blocks([quota("8", "count/resourceclaims.resource.k8s.io"), quota("8", "count/pods")], [])
    assert claims.problem == "quota team/q: claims: 8 of 8 used"
    assert claimless.problem == "1 waiting pod has no claim yet: default/p"
    assert claimless.remedy == "kubectl -n default describe pod p"
    waits["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]}
    assert list(quota_blocks([], [waits])) == []


def test_an_agent_that_disagrees_with_the_driver() -> None:
    driver, agent = gpu_slice("n1", T4), fabric_slice("n1", T4)
    assert findings_for(driver, agent) == []
    driver["spec"]["devices"].pop()
    assert findings_for(driver, agent) == ["agent and GPU driver name different GPUs on 1 node: n1"]


def test_an_agent_agrees_with_a_driver_that_publishes_mig_devices() -> None:
    for parts in (1, 4):
        driver, agent = gpu_slice("n1", T4), fabric_slice("n1", T4)
        for device in driver["spec"]["devices"][:parts]:
            attributes = device["attributes"]
            attributes |= {"type": {"string": "mig"}, "parentUUID": attributes["uuid"], "uuid": {"string": "MIG-1"}}
        assert findings_for(driver, agent) == []
        driver["spec"]["devices"][0]["attributes"]["parentUUID"] = {"string": "GPU-other"}
        assert findings_for(driver, agent) == ["agent and GPU driver name different GPUs on 1 node: n1"]


NO_AGENT, NO_DRIVER = (
    "no fresh agent on 1 of 1 GPU node: n1",
    "the agent finds GPUs, but no driver publishes any on 1 node: n1",
)


@pytest.mark.parametrize(
    ("kind", "read_at", "agent", "problems"),
    [
        ("gpu", 985, True, []),
        ("gpu", 984, True, ["no news of the agent on 1 node: n1 (16 min ago)"]),
        ("gpu", 1200, True, []),  # a clock is wrong
        ("gpu", None, True, []),
        ("gpu", None, False, [NO_AGENT]),
        ("mig", 1000, True, []),
        ("mig", 0, False, [NO_AGENT]),
        ("vfio", 1000, True, []),
        ("vfio", 0, False, []),
        ("nic", 1000, True, [NO_DRIVER]),
        ("nic", 0, False, []),
        (None, 1000, True, [NO_DRIVER]),
        (None, 984, True, ["no news of the agent on 1 node: n1 (16 min ago)", NO_DRIVER]),
        (None, 0, False, []),
    ],
)
def test_an_agent_or_a_driver_that_is_gone(
    kind: str | None, read_at: int | None, agent: bool, problems: list[str]
) -> None:
    """`kind` is the type of the devices that a driver publishes on the node."""
    driver, berth = gpu_slice("n1", T4), fabric_slice("n1", T4)
    for device in driver["spec"]["devices"]:
        device["attributes"]["type"] = {"string": kind}
        if kind == "mig":
            device["attributes"]["parentUUID"] = {"string": "GPU-0"}
    if kind == "nic":
        driver["spec"]["driver"] = "dra.net"
    for device in berth["spec"]["devices"] if read_at is not None else ():
        device["attributes"]["readAt"] = {"int": read_at}
    published = [*([driver] if kind else []), *([berth] if agent else [])]
    assert findings_for(*published, minute=1000) == problems


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("v1.33.4", "error: the API server is 1.33.4"),
        ("v1.34.0", ""),
        ("v1.36.2", ""),
        ("v1.37.0", ""),
        ("v1.37.1-gke.100", ""),
        ("v1.38.0-alpha.2", "warning: the API server is 1.38.0-alpha.2"),
    ],
)
def test_versions_that_berth_knows(version: str, words: str) -> None:
    texts = [f"{found.severity}: {found.problem}" for found in version_findings({"gitVersion": version})]
    assert texts == ([words] if words else [])


def test_devices_that_are_never_offered() -> None:
    published = gpu_slice("n1", T4)
    published["spec"]["devices"][1]["nodeAllocatableResources"] = {"cpu": {"mapping": {"quantity": "1"}}}
    found = findings_for(published, fabric_slice("n1", T4))
    assert found == ["devices with nodeAllocatableResources on 1 node: n1"]


def test_labels_of_a_cloud_that_the_policy_does_not_name() -> None:
    level = "topology.k8s.aws/network-node-layer-3"
    cluster = dump_of([node_object("n1", T4, {level: "nn-1"}), gpu_slice("n1", T4), fabric_slice("n1", T4)])
    found = [one.remedy for one in cluster_findings(cluster) if "group_levels" in one.problem]
    assert found == [f"write into the policy: group_levels: [{level}]"]
    assert not [one for one in cluster_findings(cluster, levels=[level]) if "group_levels" in one.problem]


async def test_a_cluster_with_troubles(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.add_node("n1", T4)
    cluster.apply(node_object("n2", T4, {}))
    cluster.apply(gpu_slice("n2", T4))
    for name in ("x", "y"):
        one = claim(name)
        one["metadata"]["uid"] = name
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
        one["status"] = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
        }
        cluster.store.put("resourceclaims", ("default", name), one)
    async with cluster.serving() as api:
        (tmp_path / "s").write_text(CONFIG)
        files = ["--kubeconfig", str(write_kubeconfig(tmp_path, api)), "--scheduler-config", str(tmp_path / "s")]
        code, out, err = await berth_beside(["doctor", *files, "--output", "json"])
    found = [orjson.loads(line)["problem"] for line in out.splitlines()]
    assert code == 1, err
    assert len(found) == 3, found
    assert "no fresh agent on 1 of 2 GPU nodes: n2" in found[0]
    assert "2 claims were allocated by another scheduler" in found[1]
    assert "gpu-0 is allocated to default/x, default/y" in found[2]


@pytest.mark.parametrize(
    "version", ["v1.²", "v1.²36", f"v1.{'1' * 5000}", "v", "", "vx.y", "1", "v-1.-1", "v1.٣٦", None, 5, ["v1.36"]]
)
def test_a_version_that_is_none_is_a_finding(version: object) -> None:
    (found,) = version_findings({"gitVersion": version})
    assert found.severity == "warning"
    assert "no version" in found.problem
    assert len(found.problem) < 200


class Answering:
    """The sandbox, but each path that contains `part` answers with success and this content."""

    def __init__(self, cluster: Cluster, part: str, content: bytes) -> None:
        self._api, self._part, self.content = cluster.api, part, content

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        if self._part not in scope["path"]:
            await self._api(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.content})


PARTS = (
    "/version",
    "selfsubjectaccessreviews",
    "/api/v1/pods",
    "webhookconfigurations",
    "resourcequotas",
    "configmaps/berth-policy",
    "configmaps/berth-scheduler-config",
    "resourceslices",
    "nodes",
    "resourceclaims",
    "deviceclasses",
    "leaderworkersets",
)
ITEMS = (
    "5",
    "[null]",
    "[{}]",
    '[{"metadata": {"name": "x"}}]',
    '[{"metadata": {"name": ["x"], "namespace": 5}}]',
    '[{"metadata": {"name": "x"}, "webhooks": 5, "status": [1], "spec": [1]}]',
    '[{"metadata": {"name": "x"}, "webhooks": [{"rules": [{"apiGroups": [[]], "resources": [{}]}]}], "kind": 5}]',
    '[{"metadata": {"name": "x"}, "webhooks": [5]}, {"metadata": {"name": "x"}, "webhooks": [{"rules": [5]}]}]',
    '[{"metadata": {"name": "x"}, "status": {"hard": {"a.deviceclass.resource.k8s.io/devices": "²"}, "used": [1]}}]',
    '[{"metadata": {"name": "x"}, "status": {"hard": {"a.deviceclass.resource.k8s.io/devices": "1"}, "used": {}}}]',
    '[{"metadata": {"name": "x"}, "spec": {"resourceClaims": [{}]}}]',
    '[{"metadata": {"name": "x"}, "spec": {"resourceClaims": 5}}]',
    '[{"metadata": {"name": "x"}, "spec": {"resourceClaims": [{"resourceClaimTemplateName": "t"}]}}]',
)
GARBAGE = (
    "[]",
    "null",
    "<html>",
    '{"gitVersion": "v1.²"}',
    '{"gitVersion": {"a": 1}}',
    '{"status": [1], "data": [1]}',
    '{"data": {"policy.yaml": 5, "berth-scheduler.yaml": [5]}}',
    '{"data": {"policy.yaml": "a: &a [*a]", "berth-scheduler.yaml": "kind: x"}}',
    *(f'{{"items": {items}}}' for items in ITEMS),
)


@pytest.mark.parametrize("part", PARTS)
async def test_no_answer_of_the_server_is_a_fault_of_berth(part: str, tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.add_node("n1", T4)
    answering = Answering(cluster, part, b"")
    async with listening(answering, "127.0.0.1", 0) as api:
        words = ["doctor", "--kubeconfig", str(write_kubeconfig(tmp_path, api))]
        found = []
        for content in GARBAGE:
            answering.content = content.encode()
            found.append((content, await berth_beside(words)))
    for content, (code, out, err) in found:
        assert (code in (0, 1) and out) or (code == 2 and err.startswith("berth: ") and "\n" not in err), content
