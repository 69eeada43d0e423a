"""The Helm chart holds what the manifests hold now. These tests need no Helm."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from extender import __version__
from tests.worlds.manifests import COMPONENTS, MANIFESTS, needs_kubectl, script

CHART = MANIFESTS / "helm" / "berth"
CASES = yaml.safe_load((MANIFESTS.parent / "tests" / "cases" / "chart_values.yaml").read_text())


@needs_kubectl
def test_the_files_are_what_kustomize_renders() -> None:
    made = script("make_chart").files()
    assert {path.name: path.read_text() for path in (CHART / "files").iterdir()} == made, "run make chart"


@needs_kubectl
def test_the_schema_has_the_fields_of_the_policy() -> None:
    made = script("make_chart")
    assert made.SCHEMA.read_text() == made.schema(), "run make chart"


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_every_component_is_a_value_of_the_chart() -> None:
    """`trial` is not: it is for a cluster without GPUs, and is applied beside either installation."""
    assert {*CASES["components"], "trial"} == set(COMPONENTS)


def paths(tree: dict, inner: str = "", path: str = "") -> set[str]:
    """The paths of the values in a tree, or of those whose parts are in the field `inner` of their parent."""
    found: set[str] = set()
    for name, value in tree.items():
        deeper = value.get(inner) if inner and isinstance(value, dict) else value
        if isinstance(deeper, dict) and name not in ("policy", "resources", "nodeSelector"):
            found |= paths(deeper, inner, f"{path}/{name}")
        else:
            found.add(f"{path}/{name}")
    return found


def test_schema_and_defaults_have_the_same_values() -> None:
    """A value without a default would be in no documentation; one without a schema would be rejected."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    del schema["global"]  # Helm's own, where the chart is a part of another
    assert paths(schema, "properties") == paths(defaults)


@pytest.mark.parametrize("path", sorted((CHART / "templates").iterdir()), ids=lambda path: path.name)
def test_templates_ask_no_cluster(path: Path) -> None:
    """`helm template` and tools that render offline give what an installation gives."""
    assert not re.search(r"\b(lookup|Capabilities|randAlphaNum|genCA)\b", path.read_text())
