"""`berth lint` asks the classes and the drivers which claims ask for GPUs, and which need no container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice
from extender.vendors import DRIVERS, driver_of, driver_of_class
from tests.worlds.lint_worlds import CLEAN, Json, claim, class_, dra, exactly, lint, written

BESIDE, UNUSED = "asks for GPUs of the device plugin", "no container uses claim"


def template(*requests: Json, **more: Any) -> Json:
    return dra("ResourceClaimTemplate", "t", {"spec": claim(*requests, **more)["spec"]})


def pod(*, uses: bool, limits: str = "") -> Json:
    resources = {"claims": [{"name": "c"}] if uses else [], "limits": {limits: 8} if limits else {}}
    container = {"name": "main", "image": "i", "resources": resources}
    spec = {"containers": [container], "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def by_class(expression: str, **spec: Any) -> list[Json]:
    return [class_("x", expression, **spec), template(exactly("x"))]


DOMAIN = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "d"},
    "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "t"}}},
}
OPAQUE = {"config": [{"opaque": {"driver": "dra.net", "parameters": {}}}]}
FIRST = {"name": "gpu", "firstAvailable": [{"name": "a", **exactly("gpu.nvidia.com")["exactly"]}]}
# Objects beside the pod; the severity about GPUs of a device plugin beside the claim, and about a claim without user.
KINDS = {
    "a class that selects NICs": (by_class('device.driver == "dra.net"'), "", ""),
    "turned round": (by_class("'dra.net' == device.driver"), "", ""),
    "a class of an SR-IOV driver": (by_class("device.driver == 'sriovnetwork.k8snetworkplumbingwg.io'"), "", ""),
    "a class that reads a NIC": (by_class('device.attributes["dra.net"].rdma'), "", ""),
    "a class that reads a cloud's NIC": (by_class('has(device.attributes["gce.dra.net"].rack)'), "", ""),
    "a request that selects NICs": ([template(exactly("x", 'device.driver == "dra.net"'))], "", ""),
    "a configuration of a NIC": ([template(exactly("x"), **OPAQUE)], "", ""),
    "a class with a configuration of a NIC": (by_class("", **OPAQUE), "", ""),
    "a class that DRANET installs": ([template(exactly("dranet"))], "", ""),
    "a channel of a ComputeDomain": ([DOMAIN], "", "warning"),
    "a class of channels": ([template(exactly("compute-domain-default-channel.nvidia.com"))], "", "warning"),
    "CPUs": (by_class('device.driver == "dra.cpu"'), "", "warning"),
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
    "a driver that is not known": (by_class('device.driver == "d.io"'), "note", "note"),
    "a class with the name of NVIDIA's": ([template(exactly("gpu.nvidia.com"))], "warning", "warning"),
    "a class of MIG devices": ([template(exactly("mig.nvidia.com"))], "warning", "warning"),
    "a class that selects GPUs": (by_class("device.driver == 'gpu.amd.com'"), "warning", "warning"),
    "one of two drivers": (by_class('device.driver in ["gpu.intel.com", "gpu.amd.com"]'), "warning", "warning"),
    "the example driver": (by_class('device.driver == "gpu.example.com"'), "warning", "warning"),
    "an extended resource of GPUs": (by_class("", extendedResourceName="amd.com/gpu"), "warning", "warning"),
    "GPU and NIC": ([template(exactly("gpu.nvidia.com"), exactly("dranet", name="nic"))], "warning", "warning"),
    "an alternative of GPUs": ([template(FIRST)], "warning", "warning"),
}


def severity_of(output: str, words: str) -> str:
    return next((line.partition(":")[0] for line in output.splitlines() if words in line), "")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu"])
def test_gpus_beside_a_claim(tmp_path: Path, name: str, resource: str) -> None:
    objects, wanted, _ = KINDS[name]
    found = lint(tmp_path, *objects, pod(uses=True, limits=resource))
    assert severity_of(found.stdout, BESIDE) == wanted, found.stdout
    assert ("delete" in found.stdout, found.code) == ((True, 1) if wanted == "warning" else (False, 0))


@pytest.mark.parametrize("name", KINDS)
def test_a_claim_that_no_container_uses(tmp_path: Path, name: str) -> None:
    objects, _, wanted = KINDS[name]
    found = lint(tmp_path, *objects, pod(uses=False), options=("--fix",))
    assert severity_of(found.stderr, UNUSED) == {"warning": "fixed"}.get(wanted, wanted), found.stderr
    (container,) = list(yaml.safe_load_all(found.stdout))[-1]["spec"]["containers"]
    assert container["resources"]["claims"] == ([{"name": "c"}] if wanted == "warning" else [])


def test_the_classes_of_a_snapshot_count(tmp_path: Path) -> None:
    snapshot = written(tmp_path / "snapshot.yaml", class_("x", 'device.driver == "gpu.nvidia.com"'))
    asking = template(exactly("x")), pod(uses=True, limits="nvidia.com/gpu")
    assert severity_of(lint(tmp_path, *asking, options=("--snapshot", str(snapshot))).stdout, BESIDE) == "warning"


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "default-scheduler", "volcano", "runai-scheduler"])
def test_a_pod_of_another_scheduler_is_none_of_our_business(tmp_path: Path, scheduler: str) -> None:
    theirs = pod(uses=True)
    theirs["spec"]["schedulerName"] = scheduler
    assert lint(tmp_path, template(exactly("gpu.nvidia.com")), theirs).stdout == CLEAN


@pytest.mark.parametrize(("driver", "found"), [("dra.net", 0), ("gpu.nvidia.com", 1)])
def test_nvlink_joins_gpus_only(tmp_path: Path, driver: str, found: int) -> None:
    several = template(exactly("x", count=4))
    asking = pod(uses=True)
    asking["metadata"]["annotations"] = {"berth.dev/topology": "required"}
    asking["spec"]["schedulerName"] = "berth-scheduler"
    devices, agent = (make("n", carried_machines()["t4-4"]) for make in (gpu_slice, fabric_slice))
    devices["spec"]["driver"] = driver
    out = lint(tmp_path, class_("x", f'device.driver == "{driver}"'), several, asking, devices, agent).stdout
    assert out.count("no node has 4 free matching GPUs that links join") == found


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
    out = lint(tmp_path, class_("x", expression)).stdout
    assert ("reads the domain" in out) == (expression in VALUES), out
    assert (out == CLEAN) == (expression in DOMAINS), out


def test_a_domain_is_advised_that_the_expression_names(tmp_path: Path) -> None:
    selecting = class_("x", 'device.driver == "gpu.amd.com" && device.attributes["model"] == "x"')
    assert 'device.attributes["gpu.amd.com"].model' in lint(tmp_path, selecting).stdout


def test_the_table_of_drivers_knows_the_classes_of_its_drivers() -> None:
    for name, driver in DRIVERS.items():
        assert driver_of(name).kind == driver_of(f"some.{name}").kind == driver.kind
        for class_name in (name, f"some.{name}", *driver.classes):
            assert driver_of_class(class_name) == name
    assert driver_of_class("x") == ""
