"""Installed as the manifests say, with their rights, the first pod is bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.install import install
from tests.e2e.control_plane import ControlPlane, needs

pytestmark = [needs("kubectl"), pytest.mark.timeout(300)]


def test_first_pod_is_bound_by_the_service_account(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        assert [name for name, _ in install(plane, tmp_path)][-1] == "the first pod is bound"
        found = plane.get("/api/v1/namespaces/default/pods/trial")
        assert found["metadata"]["annotations"]["berth.dev/decision"].startswith("score ")
        (claim,) = plane.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]
        assert len(claim["status"]["allocation"]["devices"]["results"]) == 4
        log = (tmp_path / "berth.log").read_text()
        assert "forbidden" not in log and "warning" not in log, log
