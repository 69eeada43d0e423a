"""Readers of the manifests, and of the scripts that write parts of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import yaml

MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"


def script(name: str) -> ModuleType:
    """A script of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, MANIFESTS.parent / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
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
