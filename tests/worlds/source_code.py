"""The code of the package, the tests and the benchmarks, read once for the tests of its structure."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2] / "extender"


AWAITING = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)


FILES = sorted(ROOT.rglob("*.py"))


WRITTEN = [
    *FILES,
    *(path for folder in ("tests", "benchmarks", ".ci") for path in sorted((ROOT.parent / folder).rglob("*.py"))),
    ROOT.parent / ".ci" / "run",
]


def package(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def module(path: Path) -> str:
    return f"extender.{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}".removesuffix(".__init__")


MODULES = {module(path) for path in FILES}


def exported(path: Path) -> set[str]:
    """The names that an __init__ imports from its modules: a function there may have the name of its module."""
    found = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {f"{module(path)}.{alias.asname or alias.name}" for node in found for alias in node.names}


INITS = {path for path in FILES if path.name == "__init__.py"}
EXPORTED = {name for path in INITS for name in exported(path)}


class Facts(NamedTuple):
    """All that the tests need of a file: it is parsed once, and no tree is kept."""

    imports: set[str]
    functions: dict[int, int]  # lengths by first line
    awaiting: list[int]  # lines
    names: set[str]
    attributes: set[str]
    fields: dict[str, list[str]]  # of the classes, with their types
    imported: set[tuple[str, str]]  # (module, name) of each `from module import name`
    listed: set[str]  # the names in `__all__`


@cache
def facts(path: Path) -> Facts:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Facts(
        imports_of(nodes) if ROOT in path.parents else set(),
        {node.lineno: (node.end_lineno or 0) - node.lineno + 1 for node in functions},
        [node.lineno for node in nodes if isinstance(node, AWAITING)],
        {node.id for node in nodes if isinstance(node, ast.Name)},
        {node.attr for node in nodes if isinstance(node, ast.Attribute)},
        {node.name: fields_of(node) for node in nodes if isinstance(node, ast.ClassDef)} if path in FILES else {},
        {(str(one.module), alias.name) for one in nodes if isinstance(one, ast.ImportFrom) for alias in one.names},
        {name for node in nodes if isinstance(node, ast.Assign) for name in listed(node)} if path in INITS else set(),
    )


def listed(node: ast.Assign) -> list[str]:
    return ast.literal_eval(node.value) if ast.unparse(node.targets[0]) == "__all__" else []


def fields_of(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(field) for field in node.body if isinstance(field, ast.AnnAssign)]


def imports(path: Path) -> set[str]:
    return facts(path).imports


def imports_of(nodes: Iterable[ast.AST]) -> set[str]:
    """All that code imports, also within functions: `from a import b` is a.b if that is a module, else a."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module
            assert not node.level, "an import names its module in full"
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                found.add(name if name in MODULES and name not in EXPORTED else node.module)
    return found
