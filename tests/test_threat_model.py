"""The threat model names, for every threat, a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
THREATS = [
    line
    for section in PAGE.split("\n## ")[1:]
    if section.splitlines()[0] not in ("Assets", "Actors", "Accepted risks")
    for line in section.splitlines()
    if line.startswith("| ") and not line.startswith(("| attack |", "| event |", "|---"))
]


def test_there_are_threats() -> None:
    assert len(THREATS) > 25


@pytest.mark.parametrize("threat", THREATS, ids=[threat.split("|")[1].strip()[:60] for threat in THREATS])
def test_every_threat_names_tests_that_exist(threat: str) -> None:
    """A file in brackets follows one test or several."""
    named = re.findall(r"((?:`test_\w+`(?:, )?)+) \(`(tests/[\w/]+\.py)`\)", threat)
    assert named, "the row names no test"
    assert sum(names.count("`test_") for names, _ in named) == threat.count("`test_"), "a test without its file"
    for names, file in named:
        for name in re.findall(r"test_\w+", names):
            assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}: no {name}"
