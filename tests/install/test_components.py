"""The components of the manifests combine in any order. kubectl renders them; tests/e2e asks a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.worlds.manifests import COMPONENTS, MANIFESTS, PAIRS, by_kind_and_name, needs_kubectl, rendered

GIVEN = {"berth-tls", "berth-console-tls", "berth-page-token", "kube-root-ca.crt"}  # made by the user or the cluster
TOGETHER = [name for name in COMPONENTS if name not in ("kubernetes-1.34", "mutating")]
# Every two components that a cluster can have together are in one of these: kubectl takes long for each pair alone.
SETS = [
    "default-runtime kubernetes-1.34 mutating prometheus separate",
    "admission kubernetes-1.35 mutating-v1beta1 prometheus trial",
    "admission default-runtime kubernetes-1.34 mtls mutating-v1beta1",
    "kubernetes-1.35 mtls mutating separate trial",
    "default-runtime kubernetes-1.35 mtls prometheus trial",
    "admission kubernetes-1.34 mutating-v1beta1 separate trial",
    "admission kubernetes-1.35 mutating prometheus trial",
    " ".join(TOGETHER),
]
Json = dict


def pods(objects: dict[tuple[str, str], Json]) -> Iterator[tuple[str, Json]]:
    """Names and pod templates of the workloads."""
    for (kind, name), obj in objects.items():
        if kind in ("Deployment", "DaemonSet"):
            yield name, obj["spec"]["template"]


def volume_faults(objects: dict[tuple[str, str], Json]) -> Iterator[str]:
    """Mounts without a volume, volumes of objects that nothing makes, accounts that do not exist."""
    names = {name for _, name in objects} | GIVEN
    for pod, template in pods(objects):
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        mounts = {mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts", ())}
        yield from (f"{pod}: no volume {name}" for name in mounts - volumes.keys())
        yield from (f"{pod}: no mount of {name}" for name in volumes.keys() - mounts)
        sources = [volume.get("configMap", {}).get("name") for volume in volumes.values()]
        sources += [volume.get("secret", {}).get("secretName") for volume in volumes.values()]
        yield from (f"{pod}: nothing makes {name}" for name in {*sources, spec["serviceAccountName"]} - names - {None})


def port_faults(objects: dict[tuple[str, str], Json]) -> Iterator[str]:
    """Probes and Services that name a port which no container has."""
    for pod, template in pods(objects):
        for container in template["spec"]["containers"]:
            ports = {port["name"] for port in container.get("ports", ())}
            probes = [probe for key, probe in container.items() if key.endswith("Probe")]
            yield from (f"{pod}: no port {p['httpGet']['port']}" for p in probes if p["httpGet"]["port"] not in ports)
    for (kind, name), obj in objects.items():
        if kind != "Service":
            continue
        selected = [t for _, t in pods(objects) if obj["spec"]["selector"].items() <= t["metadata"]["labels"].items()]
        ports = {port["name"] for t in selected for c in t["spec"]["containers"] for port in c.get("ports", ())}
        yield from (
            f"{name}: no pod has {p['targetPort']}" for p in obj["spec"]["ports"] if p["targetPort"] not in ports
        )


def verb_faults(objects: dict[tuple[str, str], Json]) -> Iterator[str]:
    """A scheduler that calls Berth at another place or by another protocol than Berth listens."""
    config = yaml.safe_load(objects["ConfigMap", "berth-scheduler-config"]["data"]["berth-scheduler.yaml"])
    urls = {urlsplit(extender["urlPrefix"]) for extender in config["extenders"]}
    serving = {pod: c for pod, t in pods(objects) for c in t["spec"]["containers"] if c["name"] == "berth"}
    (pod, berth), (url,) = *serving.items(), urls
    if (url.hostname == "127.0.0.1") != (pod == "berth-scheduler"):
        yield f"Berth runs in {pod}, the scheduler calls {url.hostname}"
    secured = any(arg.startswith("--tls-cert=") for arg in berth["args"])
    if (url.scheme == "https") != secured:
        yield f"Berth serves {berth['args']}, the scheduler calls {url.scheme}"
    console = objects["Deployment", "berth-console"]["spec"]["template"]["spec"]["containers"][0]
    secured = any(arg.startswith("--tls-cert=") for arg in console["args"])
    labels = objects["Service", "berth-console"]["metadata"]["labels"]
    if (labels.get("berth.dev/metrics-scheme") == "https") != secured:
        yield "Prometheus would call the console by the wrong protocol"


def faults(text: str) -> list[str]:
    objects = by_kind_and_name(text)
    return [*volume_faults(objects), *port_faults(objects), *verb_faults(objects)]


@needs_kubectl
@pytest.mark.parametrize("name", ["", *COMPONENTS])
def test_a_component_alone(name: str, tmp_path: Path) -> None:
    assert faults(rendered(tmp_path, *[name] if name else [])) == []


@needs_kubectl
@pytest.mark.parametrize("names", SETS)
def test_components_together_in_both_orders(names: str, tmp_path: Path) -> None:
    text = rendered(tmp_path, *names.split())
    assert faults(text) == []
    assert by_kind_and_name(text) == by_kind_and_name(rendered(tmp_path, *reversed(names.split())))


def test_every_pair_of_components_is_tried() -> None:
    assert {frozenset(pair) for names in SETS for pair in combinations(names.split(), 2)} >= set(map(frozenset, PAIRS))


def test_the_kustomization_offers_every_component() -> None:
    text = (MANIFESTS / "kustomization.yaml").read_text()
    offered = yaml.safe_load(text.replace("# - ", "- "))["components"]
    assert {name.removeprefix("components/") for name in offered} | {"mutating-v1beta1"} == set(COMPONENTS)
    assert yaml.safe_load(text)["components"] is None, "nothing is on as delivered"


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_component_is_documented(name: str) -> None:
    table = (MANIFESTS.parent / "docs" / "install.md").read_text().split("## Components")[1].split("\n## ")[0]
    assert f"`{name}`" in table
