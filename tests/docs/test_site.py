"""The web site of the documents has every page, and each link of a page leads to a file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.worlds.manifests import script

ROOT = Path(__file__).parents[2]


def test_every_page_can_be_reached_from_the_first_one() -> None:
    site = script("make_site")
    reached = site.linked_files()
    pages = {*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")}
    assert sorted(page.name for page in pages - reached) == []
    named = {page for group in site.GROUPS.values() for page in group}
    assert sorted(page.stem for page in (ROOT / "docs").glob("*.md") if page.stem not in named) == []


def test_a_link_to_no_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = script("make_site")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("[here](docs/absent.md)\n")
    with pytest.raises(FileNotFoundError, match=r"README\.md links to docs/absent\.md, which is no file"):
        site.linked_files(tmp_path / "README.md")


def test_a_warning_of_mkdocs_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to an anchor that does not exist is one. With --quiet, --strict counted none."""
    site, commands = script("make_site"), list[tuple[str, ...]]()
    monkeypatch.setattr(site, "BUILD", tmp_path)

    def run(command: tuple[str, ...], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(site.subprocess, "run", run)
    with pytest.raises(SystemExit, match="1"):
        site.main()
    (command,) = commands
    assert ("--strict" in command, "--quiet" in command) == (True, False)
    assert yaml.safe_load((tmp_path / "mkdocs.yml").read_text())["validation"]["links"]["anchors"] == "warn"
    assert "](0001-own-allocation.md)\n" in (tmp_path / "pages/docs/decisions/index.md").read_text()
