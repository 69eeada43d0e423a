"""`berth lint --fix` makes tutorials' manifests right or says why not; explain and allocate check manifests first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from tests.worlds.commands import berth
from tests.worlds.tutorials import CORRECTED, POD, REFUSED, claim

H100 = carried_machines()["h100-pcie-8-bridged"]


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """A node with eight GPUs and the classes of NVIDIA's driver, as a snapshot file."""
    classes = [
        {
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": f"{kind}.nvidia.com"},
            "spec": {"selectors": [{"cel": {"expression": f"device.attributes['gpu.nvidia.com'].type == '{kind}'"}}]},
        }
        for kind in ("gpu", "mig")
    ]  # fmt: skip
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all([node_object("n", H100, {}), gpu_slice("n", H100), *classes]))
    return str(path)


def written(folder: Path, text: str) -> str:
    path = folder / "tutorial.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", CORRECTED)
def test_lint_corrects_correctable_objects(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, CORRECTED[name])
    code, out, _ = berth(["lint", path])
    assert code == 1, out
    _, fixed, _ = berth(["lint", "--fix", path])
    again, out, _ = berth(["lint", written(tmp_path, fixed)])
    assert (again, out) == (0, "0 findings\n")


@pytest.mark.parametrize("name", REFUSED)
def test_lint_rejects_other_objects_with_the_reason(tmp_path: Path, name: str) -> None:
    text, reason = REFUSED[name]
    path = written(tmp_path, text)
    code, out, _ = berth(["lint", path])
    assert code == 1
    assert reason in out
    _, fixed, _ = berth(["lint", "--fix", path])
    assert berth(["lint", written(tmp_path, fixed)])[0] == 1, "it is not made into something else"


@pytest.mark.parametrize("name", [name for name in CORRECTED if "kind: Pod" in CORRECTED[name] and "MIG" not in name])
@pytest.mark.parametrize("command", ["explain", "allocate"])
def test_corrected_tutorials_are_explained_and_allocated(tmp_path: Path, cluster: str, name: str, command: str) -> None:
    path = written(tmp_path, CORRECTED[name])
    words = ["explain", "-f", path, "--snapshot", cluster] if command == "explain" else ["allocate", cluster, path]
    code, out, err = berth(words)
    assert code == 0, out + err
    assert ("fits" in out) or ("waits for pod" in out), out
    assert (
        "berth: the answer is for the corrected objects, which berth lint --fix prints" in err or "no container" in err
    )


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", ["explain", "allocate"])
def test_refused_tutorials_end_in_the_reason(tmp_path: Path, cluster: str, name: str, command: str) -> None:
    text, reason = REFUSED[name]
    path = written(tmp_path, text)
    words = ["explain", "-f", path, "--snapshot", cluster] if command == "explain" else ["allocate", cluster, path]
    code, out, err = berth(words)
    assert (code, out) == (1, "")
    assert reason in err


def test_lint_accepts_an_attribute_that_a_driver_publishes(tmp_path: Path) -> None:
    slice_ = gpu_slice("n", H100)
    slice_["spec"]["devices"][0]["attributes"]["memory"] = {"int": 80}
    text = CORRECTED["bytes"].replace("v1beta1", "v1").replace("deviceClassName: gpu.nvidia.com", "exactly:")
    text = text.replace("        selectors", "          deviceClassName: g\n          selectors")
    _, out, _ = berth(["lint", written(tmp_path, f"{text}\n---\n{yaml.safe_dump(slice_)}")])
    assert not re.search("^error", out, re.MULTILINE), out


def test_devices_of_older_slices_are_selected(tmp_path: Path) -> None:
    path = written(tmp_path, CORRECTED["slice of v1alpha3"])
    code, out, _ = berth(["select", 'device.capacity["gpu.example.com"].memory == quantity("80Gi")', "-f", path])
    assert (code, "matches 1 of 1 device" in out) == (0, True), out


def test_explain_of_files_leads_with_the_gang(tmp_path: Path, cluster: str) -> None:
    notes = "{name: pod1, annotations: {berth.dev/group: g, berth.dev/group-min: '2'}}"
    pod = POD.replace("{name: pod1}", notes)
    text = claim("exactly: {deviceClassName: gpu.nvidia.com}", "v1") + pod + pod.replace("pod1", "pod2")
    code, out, err = berth(["explain", "-f", written(tmp_path, text), "--snapshot", cluster])
    assert (code, err.count("the pod names no scheduler")) == (0, 2)
    assert out.startswith("group default/g fits: 2 pods on node n\n")
    assert "only with schedulerName berth-scheduler, which they lack" in out
    assert "default/pod2" in out
