"""Each layer imports only those below it; the core has neither I/O nor threads of control; serve loads nothing of the
console; no file of the code, the tests, the benchmarks or .ci grows past 400 lines."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "extender"
LAYERS = [  # from below; docs/architecture.md draws them
    {"model"},
    {"wire", "cel", "fabric"},
    {"policy", "files", "sockets"},
    {"allocation"},
    {"scoring"},
    {"cache", "scheduling"},
    {"records", "diagnosis"},
    {"cluster"},
    {"runtime"},
    {"extension", "console"},
    {"web"},
    {"entry"},
    {"agent", "sandbox"},
    {"cli"},
    {"__main__"},
]
CORE = {
    "model",
    "policy",
    "wire",
    "cel",
    "fabric",
    "allocation",
    "scoring",
    "scheduling",
    "cache",
    "diagnosis",
    "records",
}
FORBIDDEN = {
    "asyncio", "time", "random", "logging", "socket", "aiohttp", "structlog", "subprocess",  # I/O and clocks
    "greenlet", "contextvars", "concurrent", "threading", "_thread", "multiprocessing",  # threads of control
}  # fmt: skip
SERVE = {"scheduling", "cache", "cluster", "runtime", "records", "extension"}
COLD = ("extender.console", "extender.diagnosis", "extender.web.console", "extender.entry.console_process", "fastapi")
FILES = sorted(ROOT.rglob("*.py"))
WRITTEN = [
    *FILES,
    *(path for folder in ("tests", "benchmarks", ".ci") for path in sorted((ROOT.parent / folder).rglob("*.py"))),
    ROOT.parent / ".ci" / "run",
]


def package(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def layer(name: str) -> int:
    return next(level for level, packages in enumerate(LAYERS) if name in packages)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    mine = package(path)
    if mine == "__init__":
        return
    for module in imports(path):
        if not module.startswith("extender."):
            continue
        theirs = module.split(".")[1]
        if theirs != mine:
            assert layer(theirs) < layer(mine), f"{mine} (layer {layer(mine)}) imports {theirs} (layer {layer(theirs)})"


@pytest.mark.parametrize("path", [p for p in FILES if package(p) in CORE], ids=lambda p: str(p.relative_to(ROOT)))
def test_core_has_no_io(path: Path) -> None:
    roots = {module.split(".")[0] for module in imports(path)}
    assert not roots & FORBIDDEN


def test_layers_are_drawn_as_they_are() -> None:
    drawing = (ROOT.parent / "docs" / "architecture.md").read_text().split("```")[1]
    rows = {int(line[:2]): set(line[4:28].split()) for line in drawing.strip("\n").splitlines()}
    assert rows == dict(enumerate(LAYERS))


def module(path: Path) -> str:
    return f"extender.{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}".removesuffix(".__init__")


def test_serve_loads_nothing_of_the_console() -> None:
    """The packages and the entry point of serve, and all that they import in turn."""
    serves = [p for p in FILES if package(p) in SERVE or (package(p) == "web" and "console" not in p.parts)]
    serves.remove(ROOT / "web" / "record_routes.py")  # where the console takes records
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    names = ["extender.entry.serve_process", *map(module, serves)]
    found = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    loaded = found.stdout.split()
    assert len(serves) > 50
    assert "extender.web.verbs" in loaded
    assert [name for name in loaded if name.startswith(COLD)] == []


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: str(p.relative_to(ROOT.parent)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


# Their modules are entry points of their own, or are loaded only where they are needed.
OPEN = {"cli", "entry", "web", "cel"}  # tests/test_cel_api.py has the rule for cel


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_other_packages_are_imported_by_their_api(path: Path) -> None:
    mine = path.relative_to(ROOT).parts[0]
    for module in imports(path):
        parts = module.split(".")
        if parts[0] == "extender" and len(parts) > 2 and parts[1] != mine and parts[1] not in OPEN:
            pytest.fail(f"{path}: import from extender.{parts[1]}, not from {module}")
