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
def test_every_threat_names_a_test_that_exists(threat: str) -> None:
    named = re.findall(r"`(test_\w+)` \(`(tests/[\w/]+\.py)`\)", threat)
    assert named, "the row names no test"
    for name, file in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {name}"
