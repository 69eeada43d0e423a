"""`berth explain -f` evaluates with the DeviceClasses of the files, as if they were applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS
from tests.worlds.commands import berth, berth_beside
from tests.worlds.running_berth import berthing, claim, pod

Json = dict[str, Any]
H100, A100 = "hgx-h100-8", "a100-pcie-8-bridged"
FROM_FILES = "berth: the answer uses DeviceClass {} of the files: kubectl apply it before the pods"


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    """A snapshot file of two nodes and the class gpu.nvidia.com."""
    objects = [GPU_CLASS]
    for name, machine in (("n1", H100), ("n2", A100)):
        kind = carried_machines()[machine]
        objects += [node_object(name, kind, {}), gpu_slice(name, kind)]
    (tmp_path / "fleet.json").write_bytes(orjson.dumps({"kind": "List", "items": objects}))
    return str(tmp_path / "fleet.json")


def device_class(name: str, product: str, **spec: Any) -> Json:
    expression = f'device.attributes["gpu.nvidia.com"].productName.contains("{product}")'
    selectors = [{"cel": {"expression": expression}}]
    metadata = {"name": name}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": metadata,
        "spec": {"selectors": selectors, **spec},
    }


def asking(class_name: str) -> list[Json]:
    wanted = claim("c", 2)
    wanted["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = class_name
    return [wanted, {**pod("p", "c", schedulerName="berth-scheduler"), "apiVersion": "v1", "kind": "Pod"}]


def extended(resource: str) -> list[Json]:
    containers = [{"name": "main", "image": "i", "resources": {"requests": {resource: 1}, "limits": {resource: 1}}}]
    return [{**pod("p", schedulerName="berth-scheduler", containers=containers), "apiVersion": "v1", "kind": "Pod"}]


CASES = {
    "a new class": ([device_class("mine", "A100"), *asking("mine")], "n2"),
    "a changed class": ([device_class("gpu.nvidia.com", "A100"), *asking("gpu.nvidia.com")], "n2"),
    "an extended resource": (
        [
            device_class("mine", "A100", extendedResourceName="gpus.example.com/a100"),
            *extended("gpus.example.com/a100"),
        ],
        "n2",
    ),
    "a class that no device matches": ([device_class("mine", "B300"), *asking("mine")], ""),
}


@pytest.mark.parametrize(("objects", "node"), CASES.values(), ids=CASES)
def test_a_class_of_the_files_is_used(objects: list[Json], node: str, fleet: str, tmp_path: Path) -> None:
    (tmp_path / "given.yaml").write_text(yaml.safe_dump_all(objects))
    code, out, errors = berth(["explain", "-f", str(tmp_path / "given.yaml"), "--snapshot", fleet, "--output", "json"])
    assert code == (0 if node else 1), errors
    assert [one["node"] for one in orjson.loads(out)["best"]] == ([node] if node else [])
    name = objects[0]["metadata"]["name"]
    assert errors.splitlines()[-1] == FROM_FILES.format(name)


async def test_the_console_uses_a_class_of_the_question_for_that_question_alone(tmp_path: Path) -> None:
    async with berthing({"n1": H100, "n2": A100}) as b:
        server = ["--server", str(b.client.base_url), "--output", "json"]
        (tmp_path / "with.yaml").write_text(yaml.safe_dump_all(CASES["a new class"][0]))
        (tmp_path / "without.yaml").write_text(yaml.safe_dump_all(asking("mine")))
        code, out, _ = await berth_beside(["explain", "-f", str(tmp_path / "with.yaml"), *server])
        assert (code, [one["node"] for one in orjson.loads(out)["best"]]) == (0, ["n2"])
        code, out, _ = await berth_beside(["explain", "-f", str(tmp_path / "without.yaml"), *server])
        assert code == 1
        assert "device class mine does not exist" in orjson.loads(out)["sentence"]


def test_a_group_is_planned_with_a_class_of_the_files(fleet: str, tmp_path: Path) -> None:
    template: Json = {"metadata": {"name": "t"}, "spec": {"spec": asking("mine")[0]["spec"]}}
    template |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    notes = {"berth.dev/group": "g", "berth.dev/group-min": "2"}
    spec = {
        "schedulerName": "berth-scheduler",
        "containers": [{"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
    }
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": notes}, "spec": spec}
        for name in ("g-0", "g-1")
    ]
    (tmp_path / "given.yaml").write_text(yaml.safe_dump_all([device_class("mine", "A100"), template, *pods]))
    code, out, errors = berth(["explain", "-f", str(tmp_path / "given.yaml"), "--snapshot", fleet, "--output", "json"])
    assert code == 0, errors
    group = orjson.loads(out.splitlines()[0])
    assert group["outcome"] == "fits", group["sentence"]
