"""Alerts and the Grafana dashboard: their metrics exist, the dashboard can be imported, the links lead to pages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.web.console.console_metrics import METRICS as OF_CONSOLE
from extender.web.metrics import HISTOGRAM, SUMMARY, MetricSource
from extender.web.serve_metrics import METRICS as OF_SERVE
from tests.worlds.manifests import MANIFESTS, kustomized, needs_kubectl, objects_of

FOLDER = MANIFESTS / "components" / "prometheus"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
(RULES,) = objects_of("components/prometheus/rules.yaml", "PrometheusRule").values()
ALERTS = [rule for group in RULES["spec"]["groups"] for rule in group["rules"]]


def test_dashboard_and_alerts_use_metrics_that_exist() -> None:
    by_family = {SUMMARY: ("count", "sum"), HISTOGRAM: ("bucket", "count", "sum")}
    readings: tuple[MetricSource[Any], ...] = (*OF_SERVE, *OF_CONSOLE)
    parts = {r.name: by_family[r.family] for r in readings if r.family in by_family}
    known = {reading.name for reading in readings} | {f"{name}_{part}" for name, some in parts.items() for part in some}
    for file in ("rules.yaml", "dashboard.json"):
        text = (FOLDER / file).read_text()
        used = set(re.findall(r"\bberth_[a-z_]+", text))
        assert used, used - known
        assert used <= known, used - known


def test_the_dashboard_asks_the_data_source_that_the_user_chooses() -> None:
    """Without a variable, Grafana asks its default source, or one whose id only the author's Grafana has."""
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    chosen = {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
    assert [part["datasource"] for panel in PANELS for part in (panel, *panel["targets"])] == [chosen] * sum(
        1 + len(panel["targets"]) for panel in PANELS
    )


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert all(legends)
    assert len(set(legends)) == len(legends)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_no_series_hides_another(panel: dict[str, Any]) -> None:
    """`a or b` drops each series of `b` that has the labels of one of `a`: two metrics need two queries."""
    assert not [target["expr"] for target in panel["targets"] if " or " in target["expr"]]


def test_panels_neither_overlap_nor_share_an_id() -> None:
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in PANELS
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24, "Grafana's grid has 24 columns"
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_the_link_of_an_alert_leads_to_a_page(alert: dict[str, Any]) -> None:
    assert (MANIFESTS.parent / alert["annotations"]["page"]).is_file()
    assert "runbook_url" not in alert["annotations"], "no address of the documentation is known: a link would be dead"


@needs_kubectl
def test_each_alert_gets_a_link_to_the_documentation_of_the_user(tmp_path: Path) -> None:
    """The dashboard is applied as it can be imported, and the object that carries the address is not applied."""
    written, address = "https://HOST/OWNER/berth/blob/main/docs", "https://example.com/a/docs"
    folder = tmp_path / "manifests"
    shutil.copytree(MANIFESTS, folder)
    file = folder / "runbook-links" / "kustomization.yaml"
    file.write_text(file.read_text().replace(f"[address={written}]", f"[address={address}]"))
    (tmp_path / "kustomization.yaml").write_text("components: [manifests/runbook-links]")
    objects = list(yaml.safe_load_all(kustomized(tmp_path)))
    assert {obj["metadata"]["name"] for obj in objects} == {"berth", "berth-console", "berth-dashboard"}
    (rules,) = [obj for obj in objects if obj["kind"] == "PrometheusRule"]
    found = [rule["annotations"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    pages = [alert["annotations"]["page"].removeprefix("docs") for alert in ALERTS]
    assert [one["runbook_url"] for one in found] == [f"{address}{page}" for page in pages]
    assert not any("page" in one for one in found)
    (shown,) = [obj for obj in objects if obj["kind"] == "ConfigMap"]
    assert json.loads(shown["data"]["berth.json"]) == DASHBOARD
