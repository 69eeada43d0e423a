"""The release workflow, without a runner: its steps, and those of its commands that need no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender import __version__
from tests.worlds.manifests import KUBECTL, MANIFESTS, needs_kubectl, script

ROOT = MANIFESTS.parent
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {
    step.get("name", step.get("uses")): step for step in WORKFLOW["jobs"]["release"]["steps"]
}
CHART = Path("manifests/helm/berth")
IMAGE, DIGEST = "registry.example.com/team/berth", f"sha256:{'a' * 64}"


def ran(name: str, folder: Path, **env: str) -> None:
    """Run the commands of a step as a runner does."""
    command = ["bash", "-e", "-c", STEPS[name]["run"]]
    path = f"{folder}:{KUBECTL.parent}:{os.environ['PATH']}"
    done = subprocess.run(command, cwd=folder, env={**env, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    (tmp_path / "extender").mkdir()
    shutil.copy(ROOT / "extender" / "__init__.py", tmp_path / "extender")
    (tmp_path / "dist").mkdir()
    return tmp_path


def test_image_bill_and_manifests_are_those_of_one_digest() -> None:
    """The workflow signs, attaches and renders the pushed images, and releases nothing before it is signed.

    The signed bills are those of the scanner: the bill of the wheel's packages lacks those of the base image.
    """
    digest = "${{ steps.image.outputs.digest }}"
    signed = [step for step in STEPS.values() if "subject-digest" in step.get("with", {})]
    assert [step["with"]["subject-digest"] for step in signed] == [digest] * 3
    bills = [f"dist/image-{platform}.spdx.json" for platform in ("amd64", "arm64")]
    assert [step["with"]["sbom-path"] for step in signed[1:]] == bills
    assert "linux/amd64,linux/arm64" in STEPS["Build and push"]["run"]
    assert STEPS["Render the manifests"]["env"]["DIGEST"] == digest
    assert list(STEPS)[-1] == "Release"
    for file in (*bills, "dist/sbom.json", "dist/licences.txt", "dist/berth.yaml", "dist/berth-*"):
        assert file in STEPS["Release"]["run"]


def test_wheel_and_chart_are_signed_before_they_are_released() -> None:
    """`dist/berth-*` is the wheel and the chart's archive; cosign signs what is in the registry, by digest."""
    names = list(STEPS)
    assert STEPS["Sign the provenance of wheel and chart"]["with"] == {"subject-path": "dist/berth-*"}
    sign = STEPS["Sign image and chart"]
    assert sign["run"] == 'cosign sign --yes "$IMAGE" "$CHART"'
    assert sign["env"] == {
        "IMAGE": "${{ vars.IMAGE }}@${{ steps.image.outputs.digest }}",
        "CHART": "${{ steps.chart.outputs.name }}",
    }
    order = ["Build the wheel", "Package and push the chart", "Sign the provenance of wheel and chart", "Release"]
    assert sorted(order, key=names.index) == order
    assert names.index("Name the image in the chart") < names.index("Package and push the chart")


def test_the_released_chart_names_the_pushed_image(checkout: Path) -> None:
    before = yaml.safe_load((checkout / CHART / "values.yaml").read_text())
    ran("Name the image in the chart", checkout, IMAGE=IMAGE, DIGEST=DIGEST)
    after = yaml.safe_load((checkout / CHART / "values.yaml").read_text())
    assert after == {**before, "image": {**before["image"], "repository": IMAGE, "digest": DIGEST}}


HELM = """#!/bin/sh
echo "$@" >> calls
[ "$1" != push ] || printf 'Pushed: x\nDigest: %s\n' "$ANSWER" >&2
"""


def test_the_chart_is_pushed_beside_the_image(checkout: Path) -> None:
    """With a Helm that writes down its arguments, and says what Helm says: its digest is what cosign signs."""
    (checkout / "helm").write_text(HELM)
    (checkout / "helm").chmod(0o755)
    words = {
        "IMAGE": IMAGE, "REGISTRY": "registry.example.com", "REGISTRY_USER": "u", "REGISTRY_TOKEN": "t",
        "GITHUB_REF_NAME": f"v{__version__}", "GITHUB_OUTPUT": "output",
    }  # fmt: skip
    ran("Package and push the chart", checkout, **words, ANSWER=DIGEST)
    assert (checkout / "calls").read_text().splitlines() == [
        "registry login registry.example.com --username u --password-stdin",
        f"package {CHART} --destination dist",
        f"push dist/berth-{__version__}.tgz oci://registry.example.com/team/charts",
    ]
    assert (checkout / "output").read_text() == f"name=registry.example.com/team/charts/berth@{DIGEST}\n"
    with pytest.raises(AssertionError):
        ran("Package and push the chart", checkout, **words, ANSWER="none")


def test_the_engine_that_tests_the_chart_is_pinned() -> None:
    pin = (ROOT / ".ci" / "helm.txt").read_text()
    assert re.search(r"^helm-python-sdk==[\d.]+ --hash=sha256:[0-9a-f]{64}$", pin, re.MULTILINE)
    assert "--require-hashes --no-deps -r .ci/helm.txt" in STEPS["Test the chart with Helm's engine"]["run"]


def test_actions_and_the_images_that_they_run_are_pinned() -> None:
    """Each of these tags may get other content: the emulator, the builder, and the scanner that reads all layers."""
    for step in STEPS.values():
        assert re.search(r"@[0-9a-f]{40}$", step.get("uses", f"@{'0' * 40}"))
    build = STEPS["Build and push"]
    (emulator,) = [step["with"]["image"] for step in STEPS.values() if "setup-qemu" in step.get("uses", "")]
    for image in (emulator, build["env"]["BUILDKIT"], build["env"]["SCANNER"]):
        assert re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image)
    assert '--driver-opt "image=$BUILDKIT"' in build["run"]
    assert '"--sbom=generator=$SCANNER"' in build["run"]


def test_a_tag_that_is_not_the_version_ends_the_release(checkout: Path) -> None:
    ran("The tag is the version", checkout, GITHUB_REF_NAME=f"v{__version__}")
    with pytest.raises(AssertionError):
        ran("The tag is the version", checkout, GITHUB_REF_NAME="v9.9.9")


@needs_kubectl
def test_the_released_manifests_name_the_pushed_image(checkout: Path) -> None:
    ran("Name the registry", checkout, IMAGE=IMAGE)
    ran("Render the manifests", checkout, DIGEST=DIGEST)
    objects = list(yaml.safe_load_all((checkout / "dist" / "berth.yaml").read_text()))
    specs = [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"] in ("Deployment", "DaemonSet")]
    images = {container["image"] for spec in specs for container in spec["containers"]}
    assert {image for image in images if "kube-scheduler" not in image} == {f"{IMAGE}:{__version__}@{DIGEST}"}


def test_the_bill_of_materials_can_be_signed() -> None:
    """actions/attest takes a CycloneDX file with these three fields only."""
    made = script("release_check")
    bill = made.bill([{"type": "library", "name": "x", "version": "1"}])
    assert all(bill[field] for field in ("bomFormat", "serialNumber", "specVersion"))
    assert bill == made.bill([{"type": "library", "name": "x", "version": "1"}]), "the same bill for the same parts"
    assert bill["serialNumber"] != made.bill([])["serialNumber"]
