"""Each layer imports only those below it; the core has neither I/O nor threads of control; serve loads nothing of the
console. In the code, the tests, the benchmarks and .ci a file has at most 700 lines, and a function at most 60.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

from tests.worlds.source_code import FILES, MODULES, ROOT, WRITTEN, facts, imports, module, package

LAYERS = [  # from below; docs/architecture.md draws them
    {"base"},
    {"api"},
    {"policy", "files"},
    {"vendors"},
    {"cel"},
    {"allocation", "api_schema"},
    {"topology"},
    {"cache", "scheduling"},
    {"gangs"},
    {"explain", "manifests"},
    {"cluster", "defrag", "lint"},
    {"runtime"},
    {"serve", "console"},
    {"web"},
    {"entry"},
    {"agent", "sandbox"},
    {"replay"},
    {"assess", "tune"},
    {"cli"},
    {"__main__"},
]
CORE = {
    "base", "lint", "manifests", "policy", "vendors", "api", "cel", "allocation", "topology", "scheduling", "gangs",
    "cache", "explain", "defrag",
}  # fmt: skip
# All that the core may import from outside: nothing here has I/O, a clock, randomness or threads of control.
ALLOWED = {
    "__future__", "abc", "base64", "binascii", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "difflib", "enum", "functools", "hashlib", "heapq", "ipaddress", "itertools", "math", "operator", "re",
    "reprlib", "struct", "sys", "types", "typing", "urllib.parse", "weakref", "zoneinfo",
    "extender.api_schema",  # the models of the official client as tables
    "cachetools", "orjson", "pydantic", "re2", "yaml",
}  # fmt: skip
DATA = {"vendors/vendor_files.py": {"importlib"}}  # reads files of the package, once, when it is imported
BUILTINS = {"open", "print", "input", "__import__"}
ATTRIBUTES = {"now", "utcnow", "today", "stdin", "stdout", "stderr"}  # of datetime and sys
SERVE = CORE - {"defrag", "explain", "lint", "manifests"} | {"cluster", "runtime", "serve"}
COLD = (
    "extender.console", "extender.defrag", "extender.explain", "extender.web.console", "extender.entry.console_process",
    "extender.entry.all_in_one", "extender.lint", "extender.manifests", "extender.cel.dra.terms", "fastapi",
    "starlette",
)  # fmt: skip
OF_SERVE = (
    "extender.serve", "extender.web.serve_app", "extender.web.serve_metrics",
    "extender.entry.serve_process", "extender.entry.all_in_one",
)  # fmt: skip
# cel/dra/terms.py explains selectors.
OTHERS = {ROOT / "cel" / "dra" / "terms.py"}
SERVES = [
    path
    for path in FILES
    if path not in OTHERS and (path.relative_to(ROOT).parts[0] in SERVE or path.parent == ROOT / "web")
]
CONSOLES = [
    *(path for path in FILES if path.parent in {ROOT / "console", ROOT / "explain", ROOT / "web" / "console"}),
    ROOT / "entry" / "console_process.py",
]


def layer(name: str) -> int:
    return next(level for level, packages in enumerate(LAYERS) if name in packages)


def test_imports_go_down() -> None:
    """Each file imports its own package and those of lower layers."""
    wrong = [
        (str(path), name)
        for path in FILES
        for name in imports(path)
        if (mine := package(path)) != "__init__" and name.startswith("extender.")
        if (theirs := name.split(".")[1]) != mine and layer(theirs) >= layer(mine)
    ]
    assert not wrong


def test_core_has_no_io() -> None:
    for path in FILES:
        if package(path) in CORE:
            name, found = str(path.relative_to(ROOT)), facts(path)
            known = ALLOWED | {f"extender.{package}" for package in CORE} | DATA.get(name, set())
            foreign = {one for one in imports(path) if not any(f"{one}.".startswith(f"{root}.") for root in known)}
            assert (name, foreign, found.awaiting) == (name, set(), [])
            assert (name, found.names & BUILTINS, found.attributes & ATTRIBUTES) == (name, set(), set())


def test_layers_are_drawn_as_they_are() -> None:
    drawing = (ROOT.parent / "docs" / "architecture.md").read_text().split("```")[1]
    rows = {int(line[:2]): set(line[4:28].split()) for line in drawing.strip("\n").splitlines()}
    assert rows == dict(enumerate(LAYERS))


def loaded_by(names: Iterable[str]) -> list[str]:
    """The modules that a new process has loaded after it imported these."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    command = [sys.executable, "-c", code, *names]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT.parent).stdout.split()


def test_serve_loads_nothing_of_the_console() -> None:
    """The packages and the entry point of serve, and all that they import in turn."""
    loaded = loaded_by(["extender.cli.serve_commands", "extender.entry.serve_process", *map(module, SERVES)])
    assert len(SERVES) > 50
    assert "extender.web.serve_app" in loaded
    assert [name for name in loaded if name.startswith(COLD)] == []


def test_the_node_agent_loads_no_cache_and_no_schema() -> None:
    """Each node has one: the cache and CEL take 12 MiB, pydantic as much."""
    agent = [name for name in imports(ROOT / "cli" / "serve_commands.py") if name.startswith("extender.agent.")]
    loaded = loaded_by(["extender.cli.serve_commands", "extender.entry.listening", *agent])
    assert "extender.agent.reader_process" in loaded
    assert [name for name in loaded if name.startswith(("extender.cache", "extender.cel", "pydantic", "fastapi"))] == []


# entry/serve_process.py imports the console within a function, for `berth serve --console` alone.
def test_no_function_of_serve_imports_the_console() -> None:
    assert [(path, name) for path in SERVES for name in imports(path) if name.startswith(COLD)] == []


def test_the_console_loads_nothing_of_serve() -> None:
    """The packages and the entry point of the console, all that they import in turn, and imports within functions."""
    loaded = loaded_by(["extender.cli.serve_commands", *map(module, CONSOLES)])
    assert len(CONSOLES) > 20
    assert "extender.web.console.console_app" in loaded
    assert [name for name in loaded if name.startswith(OF_SERVE)] == []
    assert [(path, name) for path in CONSOLES for name in imports(path) if name.startswith(OF_SERVE)] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also within functions, and for types alone. A module may import its own package, for other modules of it."""
    imported = {
        module(path): {name for name in imports(path) & MODULES if not module(path).startswith(name)} for path in FILES
    }
    TopologicalSorter(imported).prepare()


def test_files_stay_short() -> None:
    lengths = {str(path.relative_to(ROOT.parent)): len(path.read_text().splitlines()) for path in WRITTEN}
    long = {path: lines for path, lines in lengths.items() if lines > 700}
    assert not long, "split these files by subject: one idea, one file of 100 to 700 lines"


def behind_faces(path: Path) -> set[str]:
    """The modules that a file imports; of a face, those that define the names which it takes from there."""
    return {DEFINED_IN.get((face, name), face) for face, name in facts(path).imported} | imports(path)


def test_a_small_module_is_part_of_its_only_importer() -> None:
    importers = Counter(name for path in FILES if path.name != "__init__.py" for name in behind_faces(path))
    small = {path for path in FILES if path.name != "__init__.py" and len(path.read_text().splitlines()) < 80}
    alone = {str(path.relative_to(ROOT)) for path in small if importers[module(path)] == 1}
    assert not alone, "merge a small module into the one that imports it"


def test_no_test_module_imports_another() -> None:
    """What several need is in tests/worlds."""
    python = [path for path in WRITTEN if path.suffix == ".py" and ROOT not in path.parents]
    found = [(path.name, name) for path in python for name, _ in facts(path).imported if ".test_" in name]
    assert found == []


def test_no_two_modules_have_one_name() -> None:
    names = Counter(path.stem for path in ROOT.rglob("*.py"))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("__")] == []


def test_functions_stay_short() -> None:
    python = [path for path in WRITTEN if path.suffix == ".py"]
    functions = ((path.name, line, lines) for path in python for line, lines in facts(path).functions.items())
    long = [(name, line, lines) for name, line, lines in functions if lines > 60]
    assert not long, "split these functions: each may have 60 lines"


def test_values_that_are_not_frozen_have_final_fields() -> None:
    """Creating a frozen value costs 7 to 9 times as much. Mypy rejects an assignment to a Final field at no cost."""
    names = {"NodeInfo", "Snapshot", "PodRequirements", "EvaluationContext"}
    found = {name: fields for path in FILES for name, fields in facts(path).fields.items() if name in names}
    assert found.keys() == names
    open_ = [field for fields in found.values() for field in fields if ": Final[" not in field]
    assert not open_, "write Final[…] around the types of these fields"


# Their modules are entry points of their own, or are loaded only where they are needed.
# tests/cel/test_cel_api.py has the rule for cel.
OPEN = {"api", "base", "cli", "entry", "web", "cel", "agent", "gangs", "topology", "runtime"}


# Other packages may import these modules directly. The docstring of the package names them, as further faces.
SUBJECTS = {
    "extender.allocation.nodes.locality": "topology alone compares where devices are",
    "extender.allocation.what_if": "hypothetical nodes, which serve reads only for plans of gangs",
    "extender.assess.texts": "the command prints in the words of the page",
    "extender.assess.wanted_pods": "the command reads what defrag is asked for",
    "extender.explain.excluded_nodes": "what keeps a pod from nodes, with claims or a device plugin",
    "extender.explain.fleet_rows": "the rows and figures of the fleet, not of one question",
    "extender.explain.scenario": "what-if changes of a snapshot, before any question",
    "extender.replay.emptied_nodes": "nodes whose GPUs a device plugin offers",
    "extender.replay.published_traces": "one file format for each trace",
    "extender.replay.picture": "its elements are those of the picture of tune, too",
    "extender.sandbox.examples": "the workloads of `berth run` alone",
    "extender.scheduling.decision": "the annotation of a bound pod, which serve writes and the console reads",
    "extender.scheduling.running_domain": "only gangs run in a domain",
    "extender.scheduling.shortlist": "the nodes for filter and prioritize, after the ranking",
    "extender.scheduling.subgroup_tree": "only gangs have sub-groups",
    "extender.vendors.node_labels": "labels of nodes that clouds and device plugins set, which no DRA driver describes",
}
# And packages within packages.
ROOMS = {module(path) for path in FILES if path.name == "__init__.py"} | SUBJECTS.keys()
MAX_NAMES = 25


def test_a_face_can_be_listed() -> None:
    """Each module of SUBJECTS, and of the packages that export nothing; and what the others export."""
    faces = {path for path in FILES if module(path) in SUBJECTS or not API.get(module(path.parent / "__init__.py"))}
    defined = {
        module(path): [one for node in ast.parse(path.read_text()).body for one in names_of(node) if one[0] != "_"]
        for path in faces
    }
    assert {name: len(found) for name, found in defined.items() if len(found) > MAX_NAMES} == {}
    exported = {name: len(found) for name, found in API.items() if len(found) > MAX_NAMES}
    assert not exported, "make a module of the package a face by itself, in SUBJECTS, or delete names"


def test_no_name_has_two_faces() -> None:
    """A module that is a face is not exported by its package, too."""
    packages = [path for path in FILES if path.name == "__init__.py"]
    assert not SUBJECTS.keys() & {name for path in packages for name, _ in facts(path).imported}


def test_a_package_names_its_further_faces() -> None:
    for name in SUBJECTS:
        package_, _, stem = name.rpartition(".")
        said = ast.get_docstring(ast.parse((ROOT.parent / package_.replace(".", "/") / "__init__.py").read_text()))
        assert f"`{stem}`" in (said or ""), package_


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def test_other_packages_are_imported_by_their_api() -> None:
    found = [(path.relative_to(ROOT), name, name.split(".")) for path in FILES for name in imports(path)]
    bypassing = [
        (str(path), name)
        for path, name, parts in found
        if parts[0] == "extender" and len(parts) > 2 and name not in ROOMS
        if parts[1] != path.parts[0] and parts[1] not in OPEN
    ]
    assert not bypassing, "import these from the package, not from its module"


API = {module(path): facts(path).listed for path in FILES if path.name == "__init__.py"}
DEFINED_IN = {
    (module(path), name): source
    for path in FILES
    if path.name == "__init__.py"
    for source, name in facts(path).imported
}
PYTHON = [path for path in WRITTEN if path.suffix == ".py"]


def test_exported_names_are_imported_from_their_package() -> None:
    bypassing = [
        (path.name, module_, name)
        for path in PYTHON
        for module_, name in facts(path).imported
        if module_ not in API and name in API.get(module_.rpartition(".")[0], ())
        if path not in FILES or module(path).split(".")[1] != module_.split(".")[1]
    ]
    assert not bypassing, "import these from the package, not from its module"


def test_every_export_is_imported_by_another_package() -> None:
    """Tests and benchmarks count. `cel` exports the whole language, see tests/cel/test_cel_api.py."""
    found = {f"{package}.{name}" for path in PYTHON for package, name in facts(path).imported}
    exports = {f"{package}.{name}" for package, names in API.items() for name in names if package != "extender.cel"}
    assert exports <= found, "no other package needs these: delete them from the __init__"


# Where tasks are made beside the supervisor, and why it need not know them.
TASKS = {
    "extender/runtime/supervisor.py": "it is the supervisor",
    "extender/entry/listening.py": "serve_all awaits its servers",
    "extender/web/http_server.py": "a handshake ends with its connection, and at most 256 last at once",
    "extender/sandbox/scheduler.py": "the sandbox's scheduler",
    "extender/cluster/port_forward.py": "it sends one connection, and ends with it",
}


def test_no_task_is_made_beside_the_supervisor() -> None:
    found = set()
    for path in FILES:
        if facts(path).attributes & {"create_task", "ensure_future", "TaskGroup"}:
            found.add(str(path.relative_to(ROOT.parent)))
    assert found == set(TASKS)


def test_the_core_names_no_vendor() -> None:
    """What a vendor's driver is called, and what it labels, is in the vendor's file."""
    neutral = {"allocation", "topology", "scheduling", "gangs", "explain", "cel", "api", "cache", "serve"}
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] in neutral]
    assert {path.relative_to(ROOT).parts[0] for path in files} == neutral
    vendor = re.compile(r"nvidia|\b(amd|intel)\b", re.IGNORECASE)
    assert not [(path.name, found[0]) for path in files if (found := vendor.search(path.read_text()))]
