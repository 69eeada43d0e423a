"""The wheel works in a clean environment: the same steps as the Dockerfile."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(400)
def test_wheel_installs_and_runs_away_from_the_sources(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    (wheel,) = tmp_path.glob("*.whl")
    pip = [python, "-m", "pip"]
    pins = ["--require-hashes", "--no-deps", "-r", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "download", "-q", *pins, "-d", str(tmp_path / "wheels")], check=True, capture_output=True)
    install = ["install", "-q", "--no-index", "--find-links", str(tmp_path / "wheels"), str(wheel)]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    berth = tmp_path / "venv" / "bin" / "berth"
    command = [berth, "run", "--once", "--listen", "127.0.0.1:0", "--examples", str(ROOT / "examples")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_pin_has_hashes() -> None:
    pins = re.split(r"\n(?=[A-Za-z0-9])", (ROOT / "constraints.txt").read_text())
    named = [pin for pin in pins if re.match(r"[A-Za-z0-9_.-]+==", pin)]
    assert len(named) > 50
    assert not [pin for pin in named if not re.search(r"--hash=sha256:[0-9a-f]{64}", pin)]


def test_what_is_fetched_is_named_by_digest() -> None:
    images = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert images and all(re.search(r"@sha256:[0-9a-f]{64}$", image) for image in images)
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    actions = re.findall(r"uses: (\S+)", workflow)
    assert actions and all(re.search(r"@[0-9a-f]{40}$", action) for action in actions)
