"""The Helm chart as Helm's own engine renders it. Without the engine, the tests that import this module skip."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.manifests import MANIFESTS, by_kind_and_name

# 75 MB of Helm's Go code, for Linux x86-64, macOS and Windows: too large for the extra `dev`.
helm = pytest.importorskip("helm_python", reason="Helm's engine is absent: .venv/bin/pip install helm-python-sdk")
CHART = MANIFESTS / "helm" / "berth"
NAMESPACE = "berth-system"
Values = dict[str, Any]
Objects = dict[tuple[str, str], dict]


def objects_of_chart(values: Values, namespace: str = NAMESPACE) -> Objects:
    """The objects by kind and name, without the labels that the chart adds.

    Raises what Helm raises for values that the schema forbids."""
    return without_labels(rendered_chart(values, namespace)["berth/templates/objects.yaml"])


def rendered_chart(values: Values, namespace: str = NAMESPACE) -> dict[str, str]:
    """The text of each template, rendered without a cluster."""
    with helm.Chart.load(CHART) as chart:
        found: dict[str, str] = chart.render(values, name="berth", namespace=namespace)
    return found


def without_labels(text: str) -> Objects:
    """The objects of a text without the labels of Helm. Fails if these are on some objects only."""
    found = by_kind_and_name(text)
    assert len({_without_labels_of_helm(obj) for obj in found.values()}) == 1
    return found


def _without_labels_of_helm(obj: dict) -> bool:
    """Remove the labels that only the chart has. Returns whether all of them were there."""
    labels = obj["metadata"].get("labels", {})
    names = ("app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "helm.sh/chart")
    removed = [labels.pop(name) for name in names if name in labels]
    if not labels:
        obj["metadata"].pop("labels", None)
    return len(removed) == len(names)


def merged(*some: Values) -> Values:
    """Values merged as Helm merges files: maps by key, the later one wins."""
    found: Values = {}
    for values in some:
        for key, value in values.items():
            both = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = merged(found[key], value) if both else value
    return found
