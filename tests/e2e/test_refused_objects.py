"""A real API server says of these objects what the sandbox says (tests/cli/test_sandbox_objects.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.control_plane import ControlPlane, kubectl, minor_version, on_real_server
from tests.worlds.refused_objects import RefusedObject, refused_objects

pytestmark = on_real_server("kubectl", seconds=300)


def said(plane: ControlPlane, case: RefusedObject) -> str:
    """What the server says of the object, or of its change; '' if it takes it."""
    if case.change is None:
        done = kubectl(plane, "create", "--dry-run=server", "-f", "-", body=case.obj)
    else:
        assert not kubectl(plane, "create", "-f", "-", body=case.obj).returncode
        change, named = json.dumps(case.change), (case.obj["kind"], case.obj["metadata"]["name"])
        done = kubectl(plane, "patch", "--dry-run=server", "--type=merge", "-p", change, *named)
    return done.stderr if done.returncode else ""


def test_a_real_server_refuses_the_same_objects(tmp_path: Path) -> None:
    if minor_version() != 36:
        pytest.skip("the sandbox answers as 1.36 does; the rules and their words differ between versions")
    other: dict[str, str] = {}
    with ControlPlane(tmp_path) as plane:
        plane.wait(lambda: kubectl(plane, "create", "serviceaccount", "default").returncode == 0, 60)
        for case in refused_objects():
            answer = said(plane, case)
            if bool(answer) != bool(case.words) or case.words not in answer:
                other[case.name] = answer
    assert not other
