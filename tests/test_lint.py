"""`berth lint` names object, field and cause."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from extender.cli.main import app
from extender.sandbox.machines import carried_machines, gpu_slice

RUNNER = CliRunner()
ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'


def world(tmp_path: Path, *, class_selector: str = "true", selector: str = "true", class_name: str = "gpu", **edit: object) -> str:
    """A class, a claim and a slice in one file."""
    slice_ = gpu_slice("n", carried_machines()["t4-4"])
    slice_["spec"].update(edit)
    objects = [
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": class_selector}}]}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "ns"}, "spec": {"devices": {"requests": [
            {"name": "gpus", "exactly": {"deviceClassName": class_name, "selectors": [{"cel": {"expression": selector}}]}}]}}},
        slice_,
    ]
    path = tmp_path / "world.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def test_nothing_to_find(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["lint", world(tmp_path, selector=f'{ATTRIBUTES}.productName == "Tesla T4"')])
    assert (result.exit_code, result.output) == (0, "0 findings\n")


@pytest.mark.parametrize(("changes", "exit_code", "words"), [
    ({"class_selector": "device.drivr == 'x'"}, 1, "DeviceClass gpu, spec.selectors[0]: compilation failed: ERROR: <input>:1:7: undefined field 'drivr'"),
    ({"selector": "1"}, 1, "ResourceClaim ns/c, request gpus, selectors[0]: must evaluate to bool"),
    ({"class_name": "gpuu"}, 1, "request gpus, deviceClassName: no DeviceClass 'gpuu'"),
    ({"selector": f'{ATTRIBUTES}.vendor == "x"'}, 0, "`gpu.nvidia.com/vendor` is published by 0 of 4 devices"),
    ({"selector": 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("1Ti")) > 0'}, 0, "matches 0 of 4 devices"),
    ({"selector": f'{ATTRIBUTES}.vendor == "x"'}, 0, "first error: gpu.nvidia.com device"),
    ({"devices": [{"name": "g", "attributes": {"a": {"int": "x"}}}]}, 1, "error: ResourceSlice"),
])
def test_findings_name_object_field_and_cause(tmp_path: Path, changes: dict, exit_code: int, words: str) -> None:
    result = RUNNER.invoke(app, ["lint", world(tmp_path, **changes)])
    assert words in result.output and result.exit_code == exit_code, result.output


def test_cost_is_judged_for_new_expressions_only(tmp_path: Path) -> None:
    path = world(tmp_path, selector=f"{ATTRIBUTES}.all(a, {ATTRIBUTES}.all(b, {ATTRIBUTES}.all(c, {ATTRIBUTES}.all(d, a != b || c != d))))")
    assert RUNNER.invoke(app, ["lint", path]).exit_code == 0
    result = RUNNER.invoke(app, ["lint", path, "--as-new", "1.36", "--output", "json"])
    assert result.exit_code == 1 and "exceeds cost limit" in result.output
