"""Every kubectl command in the documentation's blocks, on a real API server. Needs kubectl beside the other
binaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.control_plane import DOCS, ROOT, ControlPlane, commands, needs, run_documented

pytestmark = [needs("kubectl"), pytest.mark.timeout(300)]
# Commands that need a kubelet, and their result without one.


def test_documented_commands_in_their_order(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        run_documented(plane, commands(ROOT / "README.md", DOCS / "tune.md", DOCS / "quotas.md", DOCS / "install.md"))
