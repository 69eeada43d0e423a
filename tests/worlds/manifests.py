"""Readers of the manifests, and of the scripts that write parts of them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest
import yaml

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
# The kubectl of BERTH_KUBE_BIN, or that on the PATH.
KUBECTL = Path(shutil.which("kubectl", path=os.environ.get("BERTH_KUBE_BIN") or None) or "kubectl")
NO_GC = {"GOGC": "off"}  # of kubectl: it ends before it needs memory back, and a third of its CPU is this work
needs_kubectl = pytest.mark.skipif(not KUBECTL.is_file(), reason="install kubectl: there is none on the PATH")
COMPONENTS = sorted(path.parent.name for path in (MANIFESTS / "components").glob("*/kustomization.yaml"))
# Of these a cluster takes one: the versions of a cluster and of an API.
ALTERNATIVES = ({"kubernetes-1.34", "kubernetes-1.35"}, {"mutating", "mutating-v1beta1"})
PAIRS = [pair for pair in combinations(COMPONENTS, 2) if set(pair) not in ALTERNATIVES]


def rendered(folder: Path, *components: str) -> str:
    """The base with these components in this order, as kubectl renders it. `folder` is for its kustomization."""
    names = [os.path.relpath(MANIFESTS / "components" / name, folder) for name in components]
    base = os.path.relpath(MANIFESTS / "base", folder)
    made = {"kind": "Kustomization", "resources": [base], "components": names}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(made))
    return kustomized(folder)


def kustomized(folder: Path) -> str:
    """What kubectl renders of a folder's kustomization."""
    command = [str(KUBECTL), "kustomize", str(folder)]
    done = subprocess.run(command, env={**os.environ, **NO_GC}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{(folder / 'kustomization.yaml').read_text()}: {done.stderr}"
    return done.stdout


def by_kind_and_name(text: str) -> dict[tuple[str, str], dict]:
    """The objects of a text. Fails if two have the same kind and name."""
    objects = [obj for obj in yaml.load_all(text, yaml.CSafeLoader) if obj]
    found = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}
    assert len(found) == len(objects)
    return found


def script(name: str) -> ModuleType:
    """A script of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, MANIFESTS.parent / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[name] = importlib.util.module_from_spec(spec)  # where pydantic looks for types
    spec.loader.exec_module(made)
    return made


def rules(file: str, name: str) -> list[dict]:
    return next(
        o["rules"]
        for o in yaml.safe_load_all((MANIFESTS / "base" / file).read_text())
        if o["kind"] == "ClusterRole" and o["metadata"]["name"] == name
    )


def objects_of(file: str, kind: str) -> dict[str, dict]:
    """Objects of a kind in a manifest, by name."""
    found = yaml.safe_load_all((MANIFESTS / file).read_text())
    return {obj["metadata"]["name"]: obj for obj in found if obj["kind"] == kind}


def spec_of(file: str, name: str) -> dict:
    """The pod's spec of a Deployment."""
    return objects_of(file, "Deployment")[name]["spec"]["template"]["spec"]


def container_of(file: str, deployment: str, name: str) -> dict:
    return next(c for c in spec_of(file, deployment)["containers"] if c["name"] == name)


def option(container: dict, name: str) -> str:
    """The value of an option of a container's command."""
    return next(arg.partition("=")[2] for arg in container["args"] if arg.startswith(f"{name}="))


def spec_labels(file: str, name: str) -> dict[str, str]:
    return objects_of(file, "Deployment")[name]["spec"]["template"]["metadata"]["labels"]
