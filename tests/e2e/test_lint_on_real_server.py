"""A real API server takes what `berth lint --fix` makes of tutorials' manifests."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.control_plane import ControlPlane, kubectl, on_real_server
from tests.worlds.commands import berth
from tests.worlds.tutorials import CORRECTED

pytestmark = on_real_server("kubectl", seconds=300)


def dry_run(plane: ControlPlane, text: str) -> subprocess.CompletedProcess[str]:
    return kubectl(plane, "create", "--validate=strict", "--dry-run=server", "-f", "-", text=text)


def test_the_server_takes_every_corrected_tutorial(tmp_path: Path) -> None:
    refused: dict[str, str] = {}
    with ControlPlane(tmp_path) as plane:
        plane.wait(lambda: dry_run(plane, berth(["lint", "--fix", "examples/01-eight.yaml"])[1]).returncode == 0, 60)
        for name, text in CORRECTED.items():
            path = tmp_path / "tutorial.yaml"
            path.write_text(text)
            done = dry_run(plane, berth(["lint", "--fix", str(path)])[1])
            if done.returncode != 0:
                refused[name] = done.stderr
    assert not refused
