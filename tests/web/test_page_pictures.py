"""The pictures of the page in the documents are of the page as it is."""

from __future__ import annotations

from pathlib import Path

from tests.worlds.manifests import script

ROOT = Path(__file__).parents[2]


def test_the_pictures_are_of_this_page() -> None:
    noted = (ROOT / "docs" / "img" / "page.sha256").read_text()
    made = script("make_page_pictures").digests()
    assert noted == made, "run `make page-pictures`, and look at docs/img/page.png and page-pod.png"
