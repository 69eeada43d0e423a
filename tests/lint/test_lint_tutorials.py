"""`berth lint --fix` makes tutorials' manifests right or says why not; explain and allocate check manifests first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from tests.worlds.commands import berth
from tests.worlds.lint_worlds import CLEAN, class_, lint, written
from tests.worlds.tutorials import CORRECTED, POD, REFUSED, claim

H100 = carried_machines()["h100-pcie-8-bridged"]


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """A node with eight GPUs and the classes of NVIDIA's driver, as a snapshot file."""
    classes = [
        class_(f"{kind}.nvidia.com", f"device.attributes['gpu.nvidia.com'].type == '{kind}'") for kind in ("gpu", "mig")
    ]
    return str(written(tmp_path / "cluster.yaml", node_object("n", H100, {}), gpu_slice("n", H100), *classes))


@pytest.mark.parametrize("name", CORRECTED)
def test_lint_corrects_correctable_objects(tmp_path: Path, name: str) -> None:
    assert lint(tmp_path, CORRECTED[name]).code == 1
    again = lint(tmp_path, lint(tmp_path, CORRECTED[name], options=("--fix",)).stdout)
    assert (again.code, again.stdout) == (0, CLEAN)


@pytest.mark.parametrize("name", REFUSED)
def test_lint_rejects_other_objects_with_the_reason(tmp_path: Path, name: str) -> None:
    text, reason = REFUSED[name]
    found = lint(tmp_path, text)
    assert (found.code, reason in found.stdout) == (1, True), found.stdout
    fixed = lint(tmp_path, text, options=("--fix",)).stdout
    assert lint(tmp_path, fixed).code == 1, "it is not made into something else"


def asked(command: str, text: str, cluster: str, folder: Path) -> tuple[int, str, str]:
    path = str(written(folder / "tutorial.yaml", text))
    return berth(
        ["explain", "-f", path, "--snapshot", cluster] if command == "explain" else ["allocate", cluster, path]
    )


@pytest.mark.parametrize("name", [name for name in CORRECTED if "kind: Pod" in CORRECTED[name] and "MIG" not in name])
@pytest.mark.parametrize("command", ["explain", "allocate"])
def test_corrected_tutorials_are_explained_and_allocated(tmp_path: Path, cluster: str, name: str, command: str) -> None:
    code, out, err = asked(command, CORRECTED[name], cluster, tmp_path)
    assert code == 0, out + err
    assert ("fits" in out) or ("waits for pod" in out), out
    assert (
        "berth: the answer is for the corrected objects, which berth lint --fix prints" in err or "no container" in err
    )


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", ["explain", "allocate"])
def test_refused_tutorials_end_in_the_reason(tmp_path: Path, cluster: str, name: str, command: str) -> None:
    text, reason = REFUSED[name]
    code, out, err = asked(command, text, cluster, tmp_path)
    assert (code, out) == (1, "")
    assert reason in err


def test_lint_accepts_an_attribute_that_a_driver_publishes(tmp_path: Path) -> None:
    slice_ = gpu_slice("n", H100)
    slice_["spec"]["devices"][0]["attributes"]["memory"] = {"int": 80}
    text = CORRECTED["bytes"].replace("v1beta1", "v1").replace("deviceClassName: gpu.nvidia.com", "exactly:")
    text = text.replace("        selectors", "          deviceClassName: g\n          selectors")
    out = lint(tmp_path, text, slice_).stdout
    assert not re.search("^error", out, re.MULTILINE), out


def test_devices_of_older_slices_are_selected(tmp_path: Path) -> None:
    path = str(written(tmp_path / "slice.yaml", CORRECTED["slice of v1alpha3"]))
    code, out, _ = berth(["select", 'device.capacity["gpu.example.com"].memory == quantity("80Gi")', "-f", path])
    assert (code, "matches 1 of 1 device" in out) == (0, True), out


def test_explain_of_files_leads_with_the_gang(tmp_path: Path, cluster: str) -> None:
    notes = "{name: pod1, annotations: {berth.dev/group: g, berth.dev/group-min: '2'}}"
    pod = POD.replace("{name: pod1}", notes)
    text = claim("exactly: {deviceClassName: gpu.nvidia.com}", "v1") + pod + pod.replace("pod1", "pod2")
    code, out, err = asked("explain", text, cluster, tmp_path)
    assert (code, err.count("the pod names no scheduler")) == (0, 2)
    assert out.startswith("group default/g fits: 2 pods on node n\n")
    assert "only with schedulerName berth-scheduler, which they lack" in out
    assert "default/pod2" in out
