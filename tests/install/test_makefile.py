"""What the Makefile says before it does anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# As in a shell: `make test` tells the makes that it starts how deep they are.
ENV = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
SAYS_ITS_VERSION = "import sys\nsys.version_info = {version}\nexec(sys.argv[2])\n"


def python(path: Path, version: tuple[int, int, int]) -> Path:
    """An interpreter that takes itself for one of this version. It runs `-c CODE` and nothing else."""
    path.write_text(f"#!{sys.executable}\n{SAYS_ITS_VERSION.format(version=version)}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target", ["check", "docs", "pins"])
def test_a_wrong_python_is_named_before_anything_else(tmp_path: Path, target: str) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    old = python(tmp_path / "python3.10", (3, 10, 13))
    for interpreter in (str(old), str(tmp_path / "absent")):
        command = ["make", target, f"PYTHON={interpreter}"]
        done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
        sentence, *rest = done.stderr.splitlines()
        name = f"{interpreter} is not. Name another: make PYTHON=python3.13"
        assert sentence == f"Berth needs Python 3.11 or newer, and {name}"
        assert [line.partition(":")[0] for line in rest] == ["make"]
        assert done.stdout == ""
        assert not (tmp_path / ".venv").exists()
    new = python(tmp_path / "python3.11", (3, 11, 0))
    command = ["make", target, f"PYTHON={new}"]
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert "needs Python" not in done.stderr
    assert done.stdout  # it goes on, to make an environment
