"""The web site of the documents has every page, and each link of a page leads to a file."""

from __future__ import annotations

from pathlib import Path

import pytest

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
