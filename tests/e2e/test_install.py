"""Installed as the manifests say, with their rights, the first pod is bound."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from benchmarks.install import install
from tests.e2e.control_plane import ControlPlane, needs

pytestmark = [needs("kubectl"), pytest.mark.timeout(300)]


def test_first_pod_is_bound_by_the_service_account(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        installed = install(plane, tmp_path)
        assert [name for name, _ in installed.steps][-1] == "the first pod is bound"
        found = plane.get("/api/v1/namespaces/default/pods/trial")
        assert found["metadata"]["annotations"]["berth.dev/decision"].startswith("score ")
        (claim,) = plane.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]
        assert len(claim["status"]["allocation"]["devices"]["results"]) == 4
        lines = "".join((tmp_path / f"{name}.log").read_text() for name in ("berth", "berth-console")).splitlines()
        assert not any('"level": "warning"' in line for line in lines), lines
        assert not any("forbidden" in line for line in lines), lines
        plane.wait(lambda: "berth_bandwidth_ratio_count 1.0" in page(installed.pages), 60)


def page(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        return str(response.read().decode())
