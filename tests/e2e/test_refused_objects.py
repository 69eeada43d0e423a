"""A real API server says of these objects what the sandbox says (tests/cli/test_sandbox_objects.py)."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.e2e.control_plane import ControlPlane, kubectl, on_real_server

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "refused_objects.yaml").read_text())
pytestmark = on_real_server("kubectl", seconds=300)


def test_a_real_server_refuses_the_same_objects(tmp_path: Path) -> None:
    other: dict[str, str] = {}
    with ControlPlane(tmp_path) as plane:
        plane.wait(lambda: kubectl(plane, "create", "serviceaccount", "default").returncode == 0, 60)
        for case in CASES:
            done = kubectl(plane, "create", "--dry-run=server", "-f", "-", body=case["object"])
            if bool(done.returncode) != bool(case["refused"]) or case["refused"] not in done.stderr:
                other[case["object"]["metadata"]["name"]] = done.stderr
    assert not other
