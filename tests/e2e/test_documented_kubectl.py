"""Every kubectl command in the documentation's blocks, on a real API server. Needs kubectl beside the other
binaries."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS
from tests.e2e.control_plane import ROOT, ControlPlane, needs

pytestmark = [needs("kubectl"), pytest.mark.timeout(300)]
# Commands that need a kubelet, and their result without one.
WITHOUT_KUBELET = {
    "rollout status": "Waiting for deployment",
    "port-forward": "pod is not running|unable to forward|no pods|timed out",
    "rollout undo": "no rollout history found|rolled back|not found|skipped",
    "kubectl wait": "timed out waiting for the condition",
}
LIMITS = {
    "rollout status": ["--timeout=2s"],
    "port-forward": ["--pod-running-timeout=2s"],
    "kubectl wait": ["--timeout=1s"],
    "kubectl delete -f": ["--wait=false"],
}


def commands(*pages: Path) -> list[str]:
    """The kubectl commands in the blocks of these pages, each once."""
    found: dict[str, None] = {}
    for page in pages:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            found.update(
                {line.split(" #")[0].strip(): None for line in block.splitlines() if line.startswith("kubectl")}
            )
    return list(found)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def run_documented(plane: ControlPlane, some: list[str]) -> None:
    """Run commands in their order. Each must succeed, or come as far as it can without a kubelet."""
    for command in some:
        words = [word for word in command.rstrip(" &").split() if not word.startswith("--timeout")]
        expected = next((words for name, words in WITHOUT_KUBELET.items() if name in command), None)
        limit = next((option for name, option in LIMITS.items() if name in command), [])
        kubectl = [str(plane.bin / "kubectl"), f"--kubeconfig={plane.kubeconfig}", *words[1:], *limit]
        if expected is not None:
            done = run(kubectl)
            assert re.search(expected, done.stdout + done.stderr), (command, done)
            continue
        # A namespace that was made a moment ago may not be ready for what belongs into it.
        plane.wait(lambda kubectl=kubectl: run(kubectl).returncode == 0, 30)
        print(command)


def test_documented_commands_in_their_order(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        run_documented(plane, commands(ROOT / "README.md", DOCS / "tune.md", DOCS / "quotas.md", DOCS / "install.md"))
