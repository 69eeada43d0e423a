"""`berth lint` asks the classes and the drivers which claims ask for GPUs, and which need no container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from extender.cli.main import commands
from extender.model import DRIVERS, driver_of, driver_of_class
from extender.sandbox import carried_machines, fabric_slice

app = commands()
RUNNER = CliRunner()
BESIDE, UNUSED = "asks for GPUs of the device plugin", "no container uses claim"
API = "resource.k8s.io/v1"


def class_(name: str, expression: str, **spec: Any) -> dict[str, Any]:
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {**selectors, **spec}}


def template(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = [{"name": f"r{i}", **request} for i, request in enumerate(requests)]
    spec = {"spec": {"devices": {"requests": named, **more}}}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": spec}


def exactly(name: str, expression: str = "") -> dict[str, Any]:
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"exactly": {"deviceClassName": name, **selectors}}


def pod(*, uses: bool, limits: str = "") -> dict[str, Any]:
    resources = {"claims": [{"name": "c"}] if uses else [], "limits": {limits: 8} if limits else {}}
    container = {"name": "main", "image": "i", "resources": resources}
    spec = {"containers": [container], "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


DOMAIN = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "d"},
    "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "t"}}},
}
OPAQUE = {"config": [{"opaque": {"driver": "dra.net", "parameters": {}}}]}
FIRST = {"firstAvailable": [{"name": "a", **exactly("gpu.nvidia.com")["exactly"]}]}
# Objects beside the pod; the severity about GPUs of a device plugin beside the claim, and about a claim without user.
KINDS = {
    "a class that selects NICs": ([class_("x", 'device.driver == "dra.net"'), template(exactly("x"))], "", ""),
    "turned round": ([class_("x", "'dra.net' == device.driver"), template(exactly("x"))], "", ""),
    "a class of an SR-IOV driver": (
        [class_("x", "device.driver == 'sriovnetwork.k8snetworkplumbingwg.io'"), template(exactly("x"))],
        "",
        "",
    ),
    "a class that reads a NIC": ([class_("x", 'device.attributes["dra.net"].rdma'), template(exactly("x"))], "", ""),
    "a class that reads a cloud's NIC": (
        [class_("x", 'has(device.attributes["gce.dra.net"].rack)'), template(exactly("x"))],
        "",
        "",
    ),
    "a request that selects NICs": ([template(exactly("x", 'device.driver == "dra.net"'))], "", ""),
    "a configuration of a NIC": ([template(exactly("x"), **OPAQUE)], "", ""),
    "a class with a configuration of a NIC": ([class_("x", "", **OPAQUE), template(exactly("x"))], "", ""),
    "a class that DRANET installs": ([template(exactly("dranet"))], "", ""),
    "a channel of a ComputeDomain": ([DOMAIN], "", "warning"),
    "a class of channels": ([template(exactly("compute-domain-default-channel.nvidia.com"))], "", "warning"),
    "CPUs": ([class_("x", 'device.driver == "dra.cpu"'), template(exactly("x"))], "", "warning"),
    "CPUs that have attributes of a NIC": (
        [
            class_("x", 'device.driver == "dra.cpu"'),
            template(exactly("x", 'device.attributes["dra.net"].numaNode == 0')),
        ],
        "",
        "warning",
    ),
    "a class that is not known": ([template(exactly("x"))], "note", "note"),
    "a template that is not known": ([], "note", "note"),
    "a driver that is not known": ([class_("x", 'device.driver == "d.io"'), template(exactly("x"))], "note", "note"),
    "a class with the name of NVIDIA's": ([template(exactly("gpu.nvidia.com"))], "warning", "warning"),
    "a class of MIG devices": ([template(exactly("mig.nvidia.com"))], "warning", "warning"),
    "a class that selects GPUs": (
        [class_("x", "device.driver == 'gpu.amd.com'"), template(exactly("x"))],
        "warning",
        "warning",
    ),
    "one of two drivers": (
        [class_("x", 'device.driver in ["gpu.intel.com", "gpu.amd.com"]'), template(exactly("x"))],
        "warning",
        "warning",
    ),
    "the example driver": (
        [class_("x", 'device.driver == "gpu.example.com"'), template(exactly("x"))],
        "warning",
        "warning",
    ),
    "an extended resource of GPUs": (
        [class_("x", "", extendedResourceName="amd.com/gpu"), template(exactly("x"))],
        "warning",
        "warning",
    ),
    "GPU and NIC": ([template(exactly("gpu.nvidia.com"), exactly("dranet"))], "warning", "warning"),
    "an alternative of GPUs": ([template(FIRST)], "warning", "warning"),
}


def severity_of(output: str, words: str) -> str:
    return next((line.partition(":")[0] for line in output.splitlines() if words in line), "")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu"])
def test_gpus_beside_a_claim(tmp_path: Path, name: str, resource: str) -> None:
    objects, wanted, _ = KINDS[name]
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump_all([*objects, pod(uses=True, limits=resource)]))
    result = RUNNER.invoke(app, ["lint", str(path)])
    assert severity_of(result.output, BESIDE) == wanted, result.output
    assert ("delete" in result.output, result.exit_code) == ((True, 1) if wanted == "warning" else (False, 0))


@pytest.mark.parametrize("name", KINDS)
def test_a_claim_that_no_container_uses(tmp_path: Path, name: str) -> None:
    objects, _, wanted = KINDS[name]
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump_all([*objects, pod(uses=False)]))
    result = RUNNER.invoke(app, ["lint", "--fix", str(path)])
    assert severity_of(result.output, UNUSED) == {"warning": "fixed"}.get(wanted, wanted), result.output
    (container,) = list(yaml.safe_load_all(result.stdout))[-1]["spec"]["containers"]
    assert container["resources"]["claims"] == ([{"name": "c"}] if wanted == "warning" else [])


def test_the_classes_of_a_snapshot_count(tmp_path: Path) -> None:
    path, snapshot = tmp_path / "x.yaml", tmp_path / "snapshot.yaml"
    path.write_text(yaml.safe_dump_all([template(exactly("x")), pod(uses=True, limits="nvidia.com/gpu")]))
    snapshot.write_text(yaml.safe_dump(class_("x", 'device.driver == "gpu.nvidia.com"')))
    result = RUNNER.invoke(app, ["lint", "--snapshot", str(snapshot), str(path)])
    assert severity_of(result.output, BESIDE) == "warning", result.output


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "default-scheduler", "volcano", "runai-scheduler"])
def test_a_pod_of_another_scheduler_is_none_of_our_business(tmp_path: Path, scheduler: str) -> None:
    path, theirs = tmp_path / "x.yaml", pod(uses=True)
    theirs["spec"]["schedulerName"] = scheduler
    path.write_text(yaml.safe_dump_all([template(exactly("gpu.nvidia.com")), theirs]))
    assert RUNNER.invoke(app, ["lint", str(path)]).output == "0 findings\n"


@pytest.mark.parametrize(("driver", "found"), [("dra.net", 0), ("gpu.nvidia.com", 1)])
def test_nvlink_joins_gpus_only(tmp_path: Path, driver: str, found: int) -> None:
    several = template({"exactly": {"deviceClassName": "x", "count": 4}})
    asking = pod(uses=True)
    asking["metadata"]["annotations"] = {"berth.dev/topology": "required"}
    asking["spec"]["schedulerName"] = "berth-scheduler"
    agent = fabric_slice("n", carried_machines()["t4-4"])
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump_all([class_("x", f'device.driver == "{driver}"'), several, asking, agent]))
    assert RUNNER.invoke(app, ["lint", str(path)]).output.count("no node joins 4 GPUs by NVLink") == found


VALUES = [
    'device.attributes["model"] == "x"',
    '"x" == device.attributes["model"]',
    'device.attributes["model"].startsWith("A")',
    'device.attributes["model"] in ["a", "b"]',
    'device.attributes["model"].string == "x"',
    '!device.attributes["model"]',
]
DOMAINS = [
    'device.driver == "composite.example.io" && device.attributes["composite"].name == "pair"',
    'device.attributes["composite"]["name"] == "pair"',
    'device.attributes["composite"].?name.orValue("") == "pair"',
    'has(device.attributes["composite"].name)',
    '"name" in device.attributes["composite"]',
    'device.attributes["composite"].exists(name, name == "pair")',
    'cel.bind(a, device.attributes["composite"], a.name == "pair")',
    'device.capacity["composite"].bandwidth.compareTo(quantity("1")) >= 0',
    'device.attributes["composite"].version.isGreaterThan(semver("1.0.0"))',
    'device.attributes["driver.example.io"].version.isGreaterThan(semver("1.0.0"))',
]


@pytest.mark.parametrize("expression", [*VALUES, *DOMAINS])
def test_a_name_without_a_dot_is_a_domain_unless_it_is_read_as_a_value(tmp_path: Path, expression: str) -> None:
    path = tmp_path / "class.yaml"
    path.write_text(yaml.safe_dump(class_("x", expression)))
    result = RUNNER.invoke(app, ["lint", str(path)])
    assert ("reads the domain" in result.output) == (expression in VALUES), result.output
    assert (result.output == "0 findings\n") == (expression in DOMAINS), result.output


def test_a_domain_is_advised_that_the_expression_names(tmp_path: Path) -> None:
    path = tmp_path / "class.yaml"
    path.write_text(yaml.safe_dump(class_("x", 'device.driver == "gpu.amd.com" && device.attributes["model"] == "x"')))
    assert 'device.attributes["gpu.amd.com"].model' in RUNNER.invoke(app, ["lint", str(path)]).output


def test_the_table_of_drivers_knows_the_classes_of_its_drivers() -> None:
    for name, driver in DRIVERS.items():
        assert driver_of(name) == driver_of(f"some.{name}") == driver
        for class_name in (name, f"some.{name}", *driver.classes):
            assert driver_of_class(class_name) == name
    assert driver_of_class("x") == ""
