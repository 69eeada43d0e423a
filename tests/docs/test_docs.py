"""The documentation names only existing things, and its examples work."""

from __future__ import annotations

import io
import re
import tokenize
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import yaml

from extender import __version__
from extender.cache.allocated_devices import TRANSITIONS
from extender.web.console.console_metrics import METRICS as OF_CONSOLE
from extender.web.serve_metrics import METRICS as OF_SERVE
from tests.e2e.control_plane import DOCS
from tests.worlds.commands import berth
from tests.worlds.source_code import FILES, WRITTEN

ROOT = Path(__file__).resolve().parents[2]
ALL_PAGES = [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]


def test_life_cycle_is_drawn_from_the_table() -> None:
    text = (DOCS / "architecture.md").read_text()
    table = text.split("## The life of a reservation")[1].split("##")[0]
    rows = re.findall(r"^\| ([a-z, ]+) \| ([^|]+) \| ([a-z]+) \|$", table, re.MULTILINE)
    drawn = {(state, event, after) for states, event, after in rows[1:] for state in states.split(", ")}
    assert drawn == {(state.value, event.value, after.value) for (state, event), after in TRANSITIONS.items()}


def test_all_pages_together_stay_short() -> None:
    pages = {*ALL_PAGES, *ROOT.glob("manifests/**/*.md"), *ROOT.glob("tests/**/*.md")}
    assert sum(len(page.read_text().split()) for page in pages) <= 47_000, "cut as many words as you add"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"]({page.name}" not in index and page.name != "README.md"] == []


def anchors(page: Path) -> set[str]:
    """The headings as GitHub names them in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for page in ALL_PAGES:
        for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
            target = page.parent / path if path else page
            assert target.exists(), f"{page}: {path}"
            assert not anchor or anchor in anchors(target), f"{page}: {path}#{anchor}"


def yaml_of(page: Path) -> list[Any]:
    """The objects in a page's blocks of YAML."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [obj for block in blocks for obj in yaml.safe_load_all(block)]


def test_the_page_on_quotas_shows_the_files_that_it_names() -> None:
    named = (ROOT / "manifests/components/admission/quota.yaml", DOCS / "tutorials/kueue/pods.yaml")
    objects = [obj for path in named for obj in yaml.safe_load_all(path.read_text())]
    assert all(obj in objects for obj in yaml_of(DOCS / "quotas.md"))


def test_lint_finds_nothing_in_the_pod_of_the_readme(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump_all(yaml_of(ROOT / "README.md")))
    assert berth(["lint", str(tmp_path / "pod.yaml")])[:2] == (0, "0 findings\n")


def test_version_is_the_changelogs_newest() -> None:
    assert re.findall(r"^## (?!Unreleased)(\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == __version__


PATHS = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")


def test_files_that_pages_name_exist() -> None:
    named = {(page.name, name) for page in ALL_PAGES for name in PATHS.findall(page.read_text())}
    assert not [one for one in named if not ((ROOT / one[1]).exists() or (ROOT / "extender" / one[1]).exists())]


DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
STATUS = re.compile(r"^\*\*Status\*\*: (accepted|superseded by \[(\d{4})\]\(\2-[a-z-]+\.md\)$)", re.MULTILINE)
NAMES = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`")
# Names in decisions that belong to Kubernetes, CEL, NVML or a library.
FOREIGN = {
    "Any", "DynamicResources", "FailedAndUnresolvableNodes", "FailedNodes",
    "distinctAttribute", "extendedResourceClaimStatus",
    "matchAttribute", "multiPoint", "nominatedNodeName", "nvmlDeviceGetNumaNodeId", "readAt",
    "reservedFor", "resourceSliceCount",
}  # fmt: skip


@cache
def python_names() -> set[str]:
    """The names in the code, without the words of its comments and texts."""
    found, left = set[str](), [compile(path.read_text(), path, "exec") for path in WRITTEN if path.suffix == ".py"]
    while left:
        code = left.pop()
        found |= {code.co_name, *code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
        left += [one for one in code.co_consts if isinstance(one, CodeType)]
    return found


def status_of(decision: Path) -> str:
    found = STATUS.search(decision.read_text())
    assert found is not None, "a decision is accepted, or superseded by another one"
    return found[1]


def names_in(decision: Path) -> set[str]:
    """The words in backticks with a capital letter or an underscore, without metrics."""
    words = {word for name in NAMES.findall(decision.read_text()) for word in name.split(".")}
    metrics = {reading.name for reading in OF_SERVE} | {reading.name for reading in OF_CONSOLE}
    return {word for word in words if "_" in word or word.lower() != word} - metrics


def test_names_in_the_decisions_in_force_exist() -> None:
    named = {decision.stem: names_in(decision) for decision in DECISIONS if status_of(decision) == "accepted"}
    assert {
        stem: names - FOREIGN - python_names() for stem, names in named.items() if names - FOREIGN - python_names()
    } == {}


def test_names_in_the_recipes_exist() -> None:
    assert names_in(ROOT / "CONTRIBUTING.md") - {"SECURITY", "_total"} <= python_names()  # a page, the end of a name


def test_foreign_names_are_in_decisions() -> None:
    assert set().union(*map(names_in, DECISIONS)) >= FOREIGN


# Names in comments that belong to Python or a library, or are examples.
FOREIGN_IN_CODE = {"__set_name__", "limit_concurrency", "SSLSocket", "getpeercert", "r1", "b1", "b2"}


def words_of(path: Path) -> tuple[set[str], set[str]]:
    """(names that the comments and docstrings of a module say, names in its code and in its other strings)."""
    comments, code, begins = list[str](), list[str](), True  # whether a statement begins: a text there is a docstring
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        is_doc = begins and token.type == tokenize.STRING
        (comments if is_doc or token.type == tokenize.COMMENT else code).append(token.string)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    said = {part for comment in comments for name in NAMES.findall(comment) for part in name.split(".")}
    files = {name for comment in comments for name in re.findall(r"\b\w+\.py\b", comment)}
    return (said - {"py"}) | files, {word for one in code for word in re.findall(r"\w+", one)}


def test_names_in_the_comments_of_the_code_exist() -> None:
    modules = {path: words_of(path) for path in FILES}
    known = set[str]().union(*(code for _, code in modules.values()), *(path.with_suffix("").parts for path in modules))
    known |= {path.name for path in CODE} | FOREIGN_IN_CODE
    wrong = {path.name: said - known for path, (said, _) in modules.items() if said - known}
    assert not wrong, "these comments name what does not exist"
    assert set[str]().union(*(said for said, _ in modules.values())) >= FOREIGN_IN_CODE


PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "Makefile", "Dockerfile", "pyproject.toml")
FOLDERS = ("manifests", "scheduler-config", "examples", "tests/cases", "extender/sandbox/machines")
LONG = {"fleet.yaml"}  # written by .ci/make_trial.py
RENDERED = ROOT / "manifests" / "helm" / "berth" / "files"  # as kubectl prints it; written by .ci/make_chart.py
CODE = [
    page
    for folder in ("extender", "tests", "benchmarks", ".ci", ".github")
    for page in sorted((ROOT / folder).rglob("*"))
    if page.suffix in {".py", ".js", ".css", ".html", ".yml"}
]
LINED = [
    *CODE,
    *(ROOT / name for name in PAGES),
    *sorted(DOCS.rglob("*.md")),
    *sorted(
        page
        for folder in FOLDERS
        for page in (ROOT / folder).rglob("*.yaml")
        if page.name not in LONG and page.parent != RENDERED
    ),
]


def test_lines_are_short() -> None:
    """Rows of tables may be longer."""
    lines = ((page, line) for page in LINED for line in page.read_text().splitlines() if len(line) > 120)
    assert not [(page, line) for page, line in lines if not line.lstrip().startswith("|")], "wrap at 120 characters"


MAX_WORDS = 35


def sentences(text: str) -> list[str]:
    """The sentences of a page, without its tables, headings and blocks of code. A span of code is one word."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *[|#].*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[*-]|\d+\.) ", text)
    return [sentence for paragraph in paragraphs for sentence in re.split(r"(?<=[.!?])\)?\s+", paragraph)]


def test_sentences_are_short() -> None:
    found = ((page.name, sentence) for page in ALL_PAGES for sentence in sentences(page.read_text()))
    long = [(name, sentence) for name, sentence in found if len(re.findall(r"\S*\w\S*", sentence)) > MAX_WORDS]
    assert not long, f"split these sentences: each may have {MAX_WORDS} words"
