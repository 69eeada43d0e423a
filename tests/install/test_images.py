"""One file names the images: the manifests run the images that `make image push` builds and pushes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from extender import __version__
from tests.worlds.manifests import MANIFESTS, needs_kubectl, rendered

ROOT = MANIFESTS.parent
FILE = Path("manifests/images/kustomization.yaml")


def images(folder: Path) -> dict[str, dict[str, str]]:
    """The entries of a kustomization, by name."""
    return {entry["name"]: entry for entry in yaml.safe_load((folder / "kustomization.yaml").read_text())["images"]}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile with the file that it reads."""
    (tmp_path / FILE).parent.mkdir(parents=True)
    for name in ("Makefile", str(FILE)):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def rename(checkout: Path, text: str) -> None:
    path = checkout / FILE
    changed = re.sub(r"newName: berth,", f"newName: {text},", path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)


def make(checkout: Path, *words: str) -> tuple[int, str, list[str]]:
    """Run make with engines that write down their arguments. Returns the exit code, the errors and the calls."""
    engines, calls = checkout / "engines", checkout / "calls"
    engines.mkdir(exist_ok=True)
    for name in ("docker", "podman"):
        (engines / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n')
        (engines / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{engines}:{os.environ['PATH']}"}
    done = subprocess.run(["make", *words], cwd=checkout, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(("words", "engine"), [((), "docker"), (("ENGINE=podman",), "podman")])
def test_image_and_push(words: tuple[str, ...], engine: str, checkout: Path) -> None:
    rename(checkout, "registry.example.com/team/berth")
    image = f"registry.example.com/team/berth:{__version__}"
    code, errors, calls = make(checkout, "image", "push", *words)
    assert (code, errors) == (0, "")
    assert calls == [f"{engine} build --tag {image} .", f"{engine} push {image}"]


def test_push_without_a_registry_says_which_field_to_set(checkout: Path) -> None:
    code, errors, calls = make(checkout, "push")
    assert code != 0
    assert f"{FILE}: newName of berth names no registry: berth:{__version__}" in errors
    assert calls == []


def test_an_entry_that_make_cannot_read_is_an_error(checkout: Path) -> None:
    (checkout / FILE).write_text("images:\n- name: berth\n  newName: x\n")
    code, errors, calls = make(checkout, "image")
    assert code != 0
    assert f"{FILE} has no line {{name: berth" in errors
    assert calls == []


def test_the_version_is_the_packages() -> None:
    assert images(MANIFESTS / "images")["berth"]["newTag"] == __version__


@pytest.mark.parametrize(
    ("folder", "minor"),
    [("images", "1.36"), ("components/kubernetes-1.35", "1.35"), ("components/kubernetes-1.34", "1.34")],
)
def test_kube_scheduler_is_named_by_digest(folder: str, minor: str) -> None:
    (entry,) = [entry for name, entry in images(MANIFESTS / folder).items() if name != "berth"]
    assert entry.get("newName", entry["name"]) == "registry.k8s.io/kube-scheduler"
    assert entry["newTag"].startswith(f"v{minor}.")
    assert re.fullmatch("sha256:[0-9a-f]{64}", entry["digest"])


@needs_kubectl
@pytest.mark.parametrize("components", [(), ("kubernetes-1.34",), ("kubernetes-1.35", "separate")], ids=" ".join)
def test_every_container_runs_one_of_the_two_images(components: tuple[str, ...], tmp_path: Path) -> None:
    folder = f"components/{components[0]}" if components else "images"
    (scheduler,) = [entry for name, entry in images(MANIFESTS / folder).items() if name != "berth"]
    berth = images(MANIFESTS / "images")["berth"]
    objects = yaml.safe_load_all(rendered(tmp_path, *components))
    specs = [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"] in ("Deployment", "DaemonSet")]
    found = {container["image"] for spec in specs for container in spec["containers"]}
    assert found == {
        f"{berth['newName']}:{berth['newTag']}",
        f"registry.k8s.io/kube-scheduler:{scheduler['newTag']}@{scheduler['digest']}",
    }
