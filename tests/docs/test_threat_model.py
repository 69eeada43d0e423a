"""The threat model names, for every class of attacks, files of tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
CLASSES = [
    line
    for line in (ROOT / "docs" / "threat-model.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| attack |", "| event |"))
]


def test_there_are_classes() -> None:
    assert len(CLASSES) > 20


def test_every_class_names_files_with_tests() -> None:
    for row in CLASSES:
        named = re.findall(r"`(test_\w+\.py)`", row.split("|")[3])
        assert named, f"the row names no file of tests: {row}"
        for name in named:
            assert name in FILES, f"no tests in {name}"
            assert re.search(r"^(async )?def test_", FILES[name].read_text(), re.MULTILINE), f"no tests in {name}"
