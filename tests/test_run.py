"""The main job as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.commands import berth
from tests.eventually import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[1]


ONCE = ("run", "--once", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")


def test_every_example_lands_as_its_file_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "extender", *ONCE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train-eight" in done.stdout
    assert "✗" not in done.stdout
    # First fit is worse where the numbering misleads it: the table shows both.
    assert "247" in done.stdout
    assert " 30 " in done.stdout


def test_an_example_that_lands_elsewhere_fails_the_run(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "06-one-small.yaml").read_text().replace('"t4-4"', '"hgx-h100-8"')
    (tmp_path / "wrong.yaml").write_text(text)
    code, out, _ = berth([*ONCE, "--examples", str(tmp_path)])
    assert code == 1
    assert "expected on hgx-h100-8" in " ".join(out.split())


def test_a_folder_without_examples_is_told(tmp_path: Path) -> None:
    code, _, errors = berth([*ONCE, "--examples", str(tmp_path)])
    assert code == 2
    assert "holds no .yaml files" in errors
