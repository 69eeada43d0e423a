"""The wheel works in a clean environment: the same steps as the Dockerfile."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(400)
def test_wheel_installs_and_runs_away_from_the_sources(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True, capture_output=True)
    berth = tmp_path / "venv" / "bin" / "berth"
    command = [berth, "run", "--once", "--listen", "127.0.0.1:0", "--examples", str(ROOT / "examples")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
