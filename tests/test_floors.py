"""Each floor sees only those below it; the core has no I/O; no file grows past 400 lines."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "extender"
FLOORS = [
    {"model"},
    {"wire", "cel", "fabric"},
    {"policy", "files", "sockets"},
    {"allocation"},
    {"scoring"},
    {"verdict", "mirror"},
    {"records"},
    {"cluster"},
    {"service"},
    {"web", "agent", "cli", "sandbox"},
    {"serve", "__main__"},
]
CORE = {"model", "policy", "wire", "cel", "fabric", "allocation", "scoring", "verdict", "mirror"}
FORBIDDEN = {"asyncio", "time", "random", "logging", "socket", "threading", "aiohttp", "structlog", "subprocess"}
# The command line starts what it names: it is the door that may open the others.
DOORS = {("cli", "sandbox"), ("cli", "serve"), ("cli", "agent"), ("sandbox", "serve")}
FILES = sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def floor(name: str) -> int:
    return next(level for level, rooms in enumerate(FLOORS) if name in rooms)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    mine = room(path)
    if mine == "__init__":
        return
    for module in imports(path):
        if not module.startswith("extender."):
            continue
        theirs = module.split(".")[1]
        if theirs != mine and (mine, theirs) not in DOORS:
            assert floor(theirs) < floor(mine), f"{mine} (floor {floor(mine)}) imports {theirs} (floor {floor(theirs)})"


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in CORE], ids=lambda p: str(p.relative_to(ROOT)))
def test_core_has_no_io(path: Path) -> None:
    roots = {module.split(".")[0] for module in imports(path)}
    assert not roots & FORBIDDEN


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
