"""The wheel holds all that Berth needs, and its metadata names every package that Berth imports.

`make release-check` installs the wheel into an empty environment, too; that takes most of a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from tests.worlds.eventually import HANG_SECONDS
from tests.worlds.source_code import FILES, imports

ROOT = Path(__file__).resolve().parents[2]
RUN_ONCE = ("run", "--once", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")


def built(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def ran(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_runs_away_from_the_sources(tmp_path: Path) -> None:
    """The wheel is unpacked, which is all that an installation of it does; the test's environment has the rest."""
    wheel, site = built(tmp_path), str(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": site}
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
    assert ran([sys.executable, "-c", "import extender; print(extender.__file__)"], tmp_path, environment).startswith(
        site
    )
    ran([sys.executable, "-m", "extender", *RUN_ONCE], tmp_path, environment)


@pytest.mark.skipif(
    "BERTH_CLEAN_INSTALL" not in os.environ, reason="takes most of a minute: `make release-check` runs it"
)
def test_the_wheel_runs_in_an_empty_environment(tmp_path: Path) -> None:
    """The test takes the same steps as the Dockerfile."""
    wheel, wheels = built(tmp_path), str(tmp_path / "wheels")
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [str(tmp_path / "venv" / "bin" / "python"), "-m", "pip"]
    pins = ["--require-hashes", "--no-deps", "-r", str(ROOT / "constraints.txt")]
    ran([*pip, "download", "-q", *pins, "-d", wheels], tmp_path, dict(os.environ))
    ran([*pip, "install", "-q", "--no-index", "--find-links", wheels, str(wheel)], tmp_path, dict(os.environ))
    ran([str(tmp_path / "venv" / "bin" / "berth"), *RUN_ONCE], tmp_path, dict(os.environ))


def imported() -> set[str]:
    """Top-level names of what the package imports."""
    found = {name.partition(".")[0] for path in FILES for name in imports(path)}
    return found - set(sys.stdlib_module_names) - {"extender"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_import_belongs_to_a_dependency_that_is_declared() -> None:
    declared = {
        canonical(re.findall(r"^[\w.-]+", line)[0])
        for line in requires("berth") or ()
        if "extra ==" not in line or "traces" in line
    }
    owners = packages_distributions()
    undeclared = {name for name in imported() if not {canonical(owner) for owner in owners.get(name, [])} & declared}
    assert not undeclared


def test_every_pin_has_hashes() -> None:
    """Attack: a dependency or a build tool is replaced."""
    pins = re.split(r"\n(?=[A-Za-z0-9])", (ROOT / "constraints.txt").read_text())
    named = [pin for pin in pins if re.match(r"[A-Za-z0-9_.-]+==", pin)]
    assert len(named) > 50
    assert not [pin for pin in named if not re.search(r"--hash=sha256:[0-9a-f]{64}", pin)]


def test_images_and_actions_are_pinned_by_digest() -> None:
    images = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert images
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", image) for image in images)
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    actions = re.findall(r"uses: (\S+)", workflow)
    assert actions
    assert all(re.search(r"@[0-9a-f]{40}$", action) for action in actions)
