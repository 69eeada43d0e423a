"""Writes what the Helm chart takes from elsewhere: the objects as kustomize renders them, the tested versions of
kube-scheduler, and the schema of the policy. Needs kubectl."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

from extender.policy import Policy
from tests.worlds.manifests import MANIFESTS, rendered

CHART = MANIFESTS / "helm" / "berth"
SCHEMA = CHART / "values.schema.json"
VERBS: dict[str, tuple[str, ...]] = {"loopback": (), "mtls": ("mtls",), "separate": ("separate",)}
OPTIONS = ("admission", "mutating", "prometheus")  # components that add objects only
HEAD = "# Made by .ci/make_chart.py from manifests/base and manifests/components.\n"


def files() -> dict[str, str]:
    """Text of each file in the chart's folder `files`, by name."""
    variants = {mode: _objects(*components) for mode, components in VERBS.items()}
    base = variants["loopback"]
    common = [text for text in base if all(text in objects for objects in variants.values())]
    parts = {"common": common}
    parts |= {mode: [text for text in objects if text not in common] for mode, objects in variants.items()}
    parts |= {name: [text for text in _objects(name) if text not in base] for name in OPTIONS}
    found = {f"{name}.yaml": HEAD + "---\n".join(texts) for name, texts in parts.items()}
    return {**found, "kube-scheduler.yaml": HEAD + yaml.safe_dump(versions(), sort_keys=True)}


def _objects(*components: str) -> list[str]:
    """The objects as kubectl prints them, without the namespace, which is the release's."""
    with tempfile.TemporaryDirectory() as folder:
        found = rendered(Path(folder), *components).split("\n---\n")
    return [text.strip("\n") + "\n" for text in found if "\nkind: Namespace\n" not in text]


def versions() -> dict[str, dict[str, str]]:
    """Tag and digest of kube-scheduler by the cluster's minor version."""
    found = {}
    for path in (MANIFESTS / "images", *sorted((MANIFESTS / "components").glob("kubernetes-*"))):
        (image,) = [
            entry
            for entry in yaml.safe_load((path / "kustomization.yaml").read_text())["images"]
            if entry["name"].endswith("kube-scheduler")
        ]
        found[".".join(image["newTag"].removeprefix("v").split(".")[:2])] = {
            "tag": image["newTag"],
            "digest": image["digest"],
        }
    return found


def schema() -> str:
    """values.schema.json with the policy's fields as extender/policy.py has them, and the versions."""
    found: dict[str, Any] = json.loads(SCHEMA.read_text())
    policy = _shape(Policy.model_json_schema())
    found["$defs"] = policy.pop("$defs")
    found["properties"]["policy"] = policy
    found["properties"]["scheduler"]["properties"]["version"]["enum"] = sorted(versions())
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _shape(schema: Any) -> Any:
    """A schema without its texts and defaults, which the documentation has."""
    if isinstance(schema, list):
        return [_shape(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _shape(part) for key, part in schema.items() if key not in ("default", "description", "title")}


if __name__ == "__main__":
    (CHART / "files").mkdir(exist_ok=True)
    for name, text in files().items():
        (CHART / "files" / name).write_text(text)
    SCHEMA.write_text(schema())
