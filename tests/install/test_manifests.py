"""Manifests agree with each other, with the commands' options and with the metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.worlds.manifests import MANIFESTS, container_of, objects_of, option, script, spec_labels, spec_of


def test_serve_and_console_read_the_same_policy() -> None:
    volumes = [
        next(v["configMap"] for v in spec_of(file, name)["volumes"] if v["name"] == "policy")
        for file, name in (("base/scheduler.yaml", "berth-scheduler"), ("base/console.yaml", "berth-console"))
    ]
    assert volumes[0] == volumes[1] == {"name": "berth-policy"}
    console = container_of("base/console.yaml", "berth-console", "console")
    assert option(console, "--policy-configmap") == "berth-system/berth-policy"


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("kustomization.yaml")), ids=lambda p: str(p.parent.name))
def test_kustomizations_name_files_that_exist(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    for name in [
        *found.get("resources", []),
        *(found.get("components") or []),
        *(p["path"] for p in found.get("patches", []) if "path" in p),
    ]:
        target = path.parent / name
        assert (target.is_dir() and (target / "kustomization.yaml").exists()) or target.exists(), name
        if target.is_file():
            assert all(o["kind"] and o["metadata"]["name"] for o in yaml.safe_load_all(target.read_text()))


def test_scheduler_configurations_are_one() -> None:
    written = yaml.safe_load((MANIFESTS.parent / "scheduler-config" / "berth-scheduler.yaml").read_text())
    (carried,) = [
        yaml.safe_load(o["data"]["berth-scheduler.yaml"])
        for o in yaml.safe_load_all((MANIFESTS / "base" / "scheduler-config.yaml").read_text())
    ]
    assert carried == written
    for component, host in (("mtls", "127.0.0.1"), ("separate", "berth-verbs.berth-system.svc")):
        (secured,) = [
            yaml.safe_load(o["data"]["berth-scheduler.yaml"])
            for o in yaml.safe_load_all((MANIFESTS / "components" / component / "scheduler-config.yaml").read_text())
        ]
        for extender in secured["extenders"]:
            assert extender.pop("enableHTTPS")
            assert extender.pop("tlsConfig")["caFile"]
            extender["urlPrefix"] = extender["urlPrefix"].replace("https", "http").replace(host, "127.0.0.1")
        assert secured == written


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(MANIFESTS.rglob("*.yaml")) if path.parent.name != "templates"],  # Helm's: not YAML yet
    ids=lambda p: str(p.relative_to(MANIFESTS)),
)
def test_no_key_stands_twice(path: Path) -> None:
    """PyYAML takes the last one silently."""

    class Strict(yaml.SafeLoader):
        def construct_mapping(
            self,
            node: yaml.MappingNode,
            deep: bool = False,  # noqa: FBT002 - as PyYAML has it
        ) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
            assert len(keys) == len(set(keys)), (
                f"{path}: {[k for k in keys if keys.count(k) > 1]} twice, line {node.start_mark.line + 1}"
            )
            return super().construct_mapping(node, deep)

    for document in yaml.load_all(path.read_text(), Strict):
        assert document


def test_the_component_separate_runs_the_same_berth() -> None:
    """A copy, because a patch cannot move a container: the test compares the parts that must be equal."""
    base = container_of("base/scheduler.yaml", "berth-scheduler", "berth")
    apart = container_of("components/separate/berth.yaml", "berth", "berth")
    secured = container_of("components/mtls/scheduler.yaml", "berth-scheduler", "berth")
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert all(apart[key] == base[key] for key in ("resources", "securityContext", *probes))
    assert not set(probes) & set(secured), "probes have an address of their own, without TLS"
    assert [a.replace("0.0.0.0:8888", "127.0.0.1:8888") for a in apart["args"]] == secured["args"]
    assert {a.replace("http:", "https:") for a in base["args"]} <= set(secured["args"])


def test_the_console_with_tls_is_the_same_console() -> None:
    base = container_of("base/console.yaml", "berth-console", "console")
    secured = container_of("components/mtls/console.yaml", "berth-console", "console")
    assert set(base["args"]) <= set(secured["args"])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert secured[probe] == {"httpGet": {"scheme": "HTTPS"}}
    secrets = {v["secret"]["secretName"] for v in spec_of("components/mtls/console.yaml", "berth-console")["volumes"]}
    assert secrets == {"berth-console-tls"}, "with the certificate of the verbs it could speak as kube-scheduler does"


def test_the_machines_make_the_trial_fleet() -> None:
    made = script("make_trial")
    assert made.FILE.read_text() == made.fleet(), "run .ci/make_trial.py"


def test_prometheus_asks_both_processes() -> None:
    """Monitors, containers, options and NetworkPolicies name the same ports; alerts name the jobs that these make."""
    monitors = {
        o["kind"]: o for o in yaml.safe_load_all((MANIFESTS / "components/prometheus/monitor.yaml").read_text())
    }
    (serve,) = monitors["PodMonitor"]["spec"]["podMetricsEndpoints"]
    selected = monitors["PodMonitor"]["spec"]["selector"]["matchExpressions"][0]["values"]
    for file, name in (("base/scheduler.yaml", "berth-scheduler"), ("components/separate/berth.yaml", "berth")):
        container = container_of(file, name, "berth")
        port = next(p["containerPort"] for p in container["ports"] if p["name"] == serve["port"])
        assert option(container, "--probes") == f"0.0.0.0:{port}"
        (policy,) = objects_of(file, "NetworkPolicy").values()
        assert {"port": serve["port"]} in [p for rule in policy["spec"]["ingress"] for p in rule["ports"]]
        assert spec_labels(file, name)["app"] in selected
    (console,) = monitors["ServiceMonitor"]["spec"]["endpoints"]
    (service,) = objects_of("base/console.yaml", "Service").values()
    assert (
        monitors["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    target = next(p["targetPort"] for p in service["spec"]["ports"] if p["name"] == console["port"])
    container = container_of("base/console.yaml", "berth-console", "console")
    port = next(p["containerPort"] for p in container["ports"] if p["name"] == target)
    assert option(container, "--listen") == f"0.0.0.0:{port}"
    alerts = (MANIFESTS / "components/prometheus/rules.yaml").read_text()
    pods = monitors["PodMonitor"]["metadata"]
    jobs = {f"{pods['namespace']}/{pods['name']}", service["metadata"]["name"]}  # as the operator names them
    assert set(re.findall(r'job="([^"]+)"', alerts)) == jobs


def test_every_port_is_open_to_named_clients_only() -> None:
    """No NetworkPolicy lets every pod in."""
    policies = [
        policy
        for file in ("base/scheduler.yaml", "base/console.yaml", "base/agent.yaml", "components/separate/berth.yaml")
        for policy in objects_of(file, "NetworkPolicy").values()
    ]
    assert len(policies) == 4
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        for rule in policy["spec"].get("ingress", ()):
            (source,) = rule["from"]
            assert all(selector for selector in source.values()), "an empty selector is every pod"


def test_the_pages_need_a_token_as_delivered() -> None:
    console = container_of("base/console.yaml", "berth-console", "console")
    mount = next(m for m in console["volumeMounts"] if m["name"] == "page-token")
    assert option(console, "--page-token-file") == f"{mount['mountPath']}/token"
    volumes = {v["name"]: v for v in spec_of("base/console.yaml", "berth-console")["volumes"]}
    assert volumes["page-token"]["secret"] == {"secretName": "berth-page-token", "optional": True}


def test_the_agent_is_probed_and_outlives_workloads() -> None:
    spec = objects_of("base/agent.yaml", "DaemonSet")["berth-agent"]["spec"]["template"]["spec"]
    (agent,) = spec["containers"]
    ports = {port["name"]: port["containerPort"] for port in agent["ports"]}
    assert option(agent, "--probes") == f"0.0.0.0:{ports[agent['livenessProbe']['httpGet']['port']]}"
    assert objects_of("base/agent.yaml", "PriorityClass")[spec["priorityClassName"]]["value"] >= 1_000_000_000


def test_the_policy_of_priority_classes_concerns_all_of_them() -> None:
    """A real API server applies it in tests/e2e/test_priority_classes.py."""
    (policy,) = objects_of("base/priority-classes.yaml", "ValidatingAdmissionPolicy").values()
    assert 'startsWith("berth-")' in policy["spec"]["matchConditions"][0]["expression"]
    classes = [name for path in MANIFESTS.glob("base/*.yaml") for name in objects_of(str(path), "PriorityClass")]
    assert len(classes) == 2
    assert all(name.startswith("berth-") for name in classes)


def test_the_admission_policies_start_with_warnings() -> None:
    """Nothing of the component rejects a request before the user says so."""
    bindings = objects_of("components/admission/policies.yaml", "ValidatingAdmissionPolicyBinding")
    assert [set(binding["spec"]["validationActions"]) for binding in bindings.values()] == [{"Warn", "Audit"}] * 2
    files = yaml.safe_load((MANIFESTS / "components/admission/kustomization.yaml").read_text())["resources"]
    texts = [(MANIFESTS / "components/admission" / file).read_text() for file in files]
    kinds = {obj["kind"] for text in texts for obj in yaml.safe_load_all(text)}
    assert kinds == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    kyverno = objects_of("components/admission/kyverno.yaml", "ClusterPolicy")
    assert {policy["spec"]["validationFailureAction"] for policy in kyverno.values()} == {"Audit"}


def test_every_container_is_confined() -> None:
    for file in ("base/scheduler.yaml", "base/console.yaml", "base/agent.yaml", "components/separate/berth.yaml"):
        for obj in yaml.safe_load_all((MANIFESTS / file).read_text()):
            if obj["kind"] not in ("Deployment", "DaemonSet"):
                continue
            spec = obj["spec"]["template"]["spec"]
            for container in spec["containers"]:
                confined = {**spec.get("securityContext", {}), **container["securityContext"]}
                assert confined["runAsNonRoot"]
                assert confined["readOnlyRootFilesystem"]
                assert not confined["allowPrivilegeEscalation"]
                assert confined["capabilities"] == {"drop": ["ALL"]}
                assert confined["seccompProfile"]["type"] == "RuntimeDefault"
                assert container["resources"]["requests"]
                assert container["resources"]["limits"]["memory"]


def test_the_quota_on_objects_leaves_room_in_the_memory_of_serve() -> None:
    """At the limits of one claim and one pod (docs/limits.md), one namespace takes less than half of it."""
    quotas = objects_of("components/admission/quota.yaml", "ResourceQuota")
    hard = quotas["berth-objects"]["spec"]["hard"]
    claims, pods = (int(hard[name]) for name in ("count/resourceclaims.resource.k8s.io", "count/pods"))
    (limit,) = re.findall(
        r"^(\d+)Mi$", container_of("base/scheduler.yaml", "berth-scheduler", "berth")["resources"]["limits"]["memory"]
    )
    assert claims * 256 + pods * 100 < int(limit) * 1024 / 2
