"""Builds the documents as a web site with search, in build/site: `make docs`. A broken link fails it.

The site has README.md as its first page, each Markdown file that a page links to, and the other files that they link
to, at the same relative places. So a link that works in the repository works in the site.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "docs"
_LINK = re.compile(r"\]\(([^)#\s]+)")
GROUPS = {
    "Try": (
        "tutorial-your-own-pod",
        "tutorial-nvlink",
        "tutorial-gang",
        "tutorial-mig",
        "tutorial-share-a-gpu",
        "kind",
    ),
    "Use": ("concepts", "assess", "defrag", "explain", "gangs", "near-devices", "quotas", "replay", "faq"),
    "Run": ("install", "migrate", "tune", "troubleshoot", "compatibility", "limits", "performance", "quality"),
    "Look up": ("policy", "reasons", "metrics", "cli", "http-api", "cel", "allocation"),
    "Understand": ("architecture", "threat-model", "comparison", "README"),
}


def linked_files(first: Path = ROOT / "README.md") -> set[Path]:
    """The files that the pages link to, from page to page. Raises FileNotFoundError for a link to no file."""
    found, waiting = {first}, [first]
    while waiting:
        page = waiting.pop()
        for target in _LINK.findall(page.read_text()):
            if "://" in target or target.startswith("mailto:"):
                continue
            file = (page.parent / target).resolve()
            files = sorted(file.glob("*.md")) if file.is_dir() else [file]
            for one in files:
                if not one.is_file():
                    raise FileNotFoundError(f"{page.relative_to(ROOT)} links to {target}, which is no file")
                if one not in found:
                    found.add(one)
                    waiting += [one] if one.suffix == ".md" else []
    return found


def title(page: Path) -> str:
    return page.read_text().partition("\n")[0].lstrip("# ")


def config(files: set[Path]) -> dict[str, object]:
    """The configuration of MkDocs. Pages that no group names come last, so that none is lost."""
    paths = {file.relative_to(ROOT).as_posix(): file for file in files if file.suffix == ".md"}
    nav: list[dict[str, object]] = [{"Berth": "README.md"}]
    used = {"README.md"}
    for group, names in GROUPS.items():
        pages = [path for name in names if (path := f"docs/{name}.md") in paths]
        nav.append({group: [{title(paths[path]): path} for path in pages]})
        used |= {*pages}
    decisions = sorted(path for path in paths if path.startswith("docs/decisions/"))
    rest = sorted(paths.keys() - used - {*decisions})
    nav += [{"Decisions": [{title(paths[path]): path} for path in decisions]}]
    nav += [{"More": [{title(paths[path]): path} for path in rest]}]
    return {
        "site_name": "Berth",
        "site_description": "Topology- and memory-aware scheduling of GPU claims for Kubernetes",
        "docs_dir": "pages",
        "site_dir": "../site",
        "use_directory_urls": False,  # the site works from a folder, too
        "nav": nav,
        "theme": {
            "name": "material",
            "font": False,  # nothing is loaded from other servers
            "features": ["navigation.tabs", "navigation.top", "search.suggest", "content.code.copy"],
            "palette": [
                {"media": f"(prefers-color-scheme: {scheme})", "scheme": name, "primary": "indigo"}
                for scheme, name in (("light", "default"), ("dark", "slate"))
            ],
        },
        "plugins": ["search"],
        "markdown_extensions": ["tables", "admonition", {"toc": {"permalink": True}}, "pymdownx.superfences"],
        # "unrecognized" are links to folders; linked_files has found their files.
        "validation": {"links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "info"}},
    }


def main() -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    files = linked_files()
    for file in files:
        copy = BUILD / "pages" / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    decisions = sorted(file for file in files if file.parent.name == "decisions")
    listed = "".join(f"* [{title(file)}]({file.name})\n" for file in decisions)
    (BUILD / "pages" / "docs" / "decisions" / "index.md").write_text(f"# Decisions\n\n{listed}")
    (BUILD / "mkdocs.yml").write_text(yaml.safe_dump(config(files), sort_keys=False))
    # Without --quiet, which drops the warnings, so that --strict does not count them.
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(BUILD / "mkdocs.yml"))
    sys.exit(subprocess.run(command, cwd=BUILD, check=False).returncode)  # noqa: S603 - our own command


if __name__ == "__main__":
    main()
