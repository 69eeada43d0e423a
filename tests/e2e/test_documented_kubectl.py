"""Every kubectl command in the documentation's blocks, on a real API server. Needs kubectl beside the other
binaries."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.control_plane import ROOT, ControlPlane, needs
from tests.test_docs import DOCS

pytestmark = [needs("kubectl"), pytest.mark.timeout(300)]
# What needs a kubelet, and how far such a command gets without one.
WITHOUT_KUBELET = {
    "rollout status": "Waiting for deployment",
    "port-forward": "pod is not running|unable to forward|no pods|timed out",
    "rollout undo": "no rollout history found|rolled back|not found|skipped",
}


def commands() -> list[str]:
    found: dict[str, None] = {}
    for page in (ROOT / "README.md", DOCS / "install.md"):
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            found.update(
                {line.split(" #")[0].strip(): None for line in block.splitlines() if line.startswith("kubectl")}
            )
    return list(found)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_documented_commands_in_their_order(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        for command in commands():
            words = command.rstrip(" &").split()
            expected = next((words for name, words in WITHOUT_KUBELET.items() if name in command), None)
            limit = (
                ["--timeout=2s"]
                if "rollout status" in command
                else ["--pod-running-timeout=2s"]
                if "port-forward" in command
                else []
            )

            kubectl = [str(plane.bin / "kubectl"), f"--kubeconfig={plane.kubeconfig}", *words[1:], *limit]
            if expected is not None:
                done = run(kubectl)
                assert re.search(expected, done.stdout + done.stderr), (command, done)
                continue
            # A namespace that was made a moment ago may not be ready for what belongs into it.
            plane.wait(lambda kubectl=kubectl: run(kubectl).returncode == 0, 30)
            print(command)
