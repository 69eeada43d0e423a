"""Every command that the documentation shows is run as it stands there, against the sandbox; those of kubectl in
tests/e2e."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from extender.cli.main import commands
from extender.sandbox import carried_machines, write_kubeconfig
from extender.sandbox.machines import gpu_slice
from tests.worlds.commands import berth_beside
from tests.worlds.lint_worlds import class_, written
from tests.worlds.running_berth import berthing, claim, pod

pytestmark = pytest.mark.usefixtures("replays_in_turn")

app = commands()
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

# tests/docs/test_tutorials.py runs the commands of a tutorial in their order.
_IN_ORDER = set(DOCS.glob("tutorial-*.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
_BERTH = re.compile(r"^berth [a-z].*", re.DOTALL)


def blocks(pages: Sequence[Path] = PAGES) -> list[str]:
    """Commands in fenced console blocks, without comments."""
    found = []
    for page in pages:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            found += [
                line.split(" #")[0].strip() for line in block.splitlines() if line.strip() and not line.startswith("#")
            ]
    return sorted(set(found))


def inline() -> list[str]:
    """Commands in running text."""
    words = {word for page in PAGES for word in re.findall(r"`((?:berth|kubectl|make) [^`]+)`", page.read_text())}
    return sorted(words)


BERTH = [c for c in blocks([page for page in PAGES if page not in _IN_ORDER]) if _BERTH.match(c)]
# Placeholders for names of the reader.
NAMES = {
    "NAMESPACE/NAME": "training/llm-0",
    "POD": "training/llm-0",
    "NODE": "n1",
    "node-17": "n2",
    "FILE…": "claims.yaml",
    "FILE": "policy.yaml",
    "DIR": "cases",
}
UNTESTED = (
    *("kind", "minikube"),  # docs/kind.md says so
    "helm",  # tests/install/test_chart.py renders the chart with the values of each command
    "pipx",  # tests/install/test_packaging.py installs the wheel alone, as pipx does
)
# Exit code 1 is an answer.
MAY_FAIL = ("berth explain", "berth defrag", "berth doctor", "berth lint", "berth policy status", "berth allocate")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the documentation speaks of."""
    for name in ("docs", "examples", "manifests", "scheduler-config"):
        (tmp_path / name).symlink_to(ROOT / name)
    both = [class_("gpu.nvidia.com", ""), claim("c")]
    for name, objects in (
        ("slices.yaml", [gpu_slice("n1", carried_machines()["t4-4"])]),
        ("claim.yaml", both),
        ("claims.yaml", [claim("c")]),
        ("pods.yaml", [pod("p", "c")]),
        ("job.yaml", [claim("c"), pod("p", "c")]),
    ):
        written(tmp_path / name, *objects)
    (tmp_path / "policy.yaml").write_text("candidates: 8\n")
    (tmp_path / "cases").mkdir()
    case = {"name": "one", "node": {"metadata": {"name": "n1"}}, "claims": [claim("c")], "deviceClasses": both[:1]}
    (tmp_path / "cases" / "one.json").write_text(json.dumps(case))
    return tmp_path


@pytest.mark.parametrize("command", BERTH)
async def test_berth_command(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    async with berthing({"n1": "dgx1-v100", "n2": "t4-4"}) as b:
        waits = pod("llm-0", "c", annotations={"berth.dev/group": "llm", "berth.dev/group-min": "2"})
        waits["metadata"]["namespace"] = "training"
        claimed = claim("c", 20)
        claimed["metadata"]["namespace"] = "training"
        for obj in ({"kind": "Namespace", "metadata": {"name": "training"}}, claimed, waits):
            b.cluster.apply(obj)
        held = claim("held")
        held["metadata"] |= {"namespace": "training", "uid": "held"}
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n2", "device": "gpu-0"}
        held["status"] = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": name} for name in ("llm-0", "other-0")],
        }
        b.cluster.store.put("resourceclaims", ("training", "held"), held)
        node = b.cluster.store["nodes", ("", "n2")]
        labels = {**node["metadata"].get("labels", {}), "nvidia.com/gpu.clique": "c"}
        b.cluster.store.put("nodes", ("", "n2"), {**node, "metadata": {**node["metadata"], "labels": labels}})
        await b.settled()
        write_kubeconfig(folder, b.api)
        server = str(b.client.base_url).rstrip("/")
        for part in command.split("&&"):
            text = part.strip().replace("~/.kube/config", "kubeconfig").replace("http://127.0.0.1:8889", server)
            words = [NAMES.get(word, word) for word in shlex.split(text)]
            code, out = await run(words, folder, server)
            assert code == 0 or (code == 1 and text.startswith(MAY_FAIL)), (text, code, out)
            assert "Traceback" not in out


async def run(words: list[str], folder: Path, server: str) -> tuple[int, str]:
    target = words[words.index(">") + 1] if ">" in words else None
    words = words[: words.index(">")] if target else words
    if words[1:2] == ["top"]:
        words.append("--once")
    env = {"BERTH_SERVER": server, "KUBECONFIG": str(folder / "kubeconfig")}
    code, out, errors = await berth_beside(words[1:], env)
    if target:
        (folder / target).write_text(out)
    return code, out + errors


def test_every_other_command_in_a_block_is_known() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in blocks():
        if _BERTH.match(command):
            continue
        words = shlex.split(command)
        if words[0] == "make":
            assert words[1] in targets, command
        elif words[0] == "kubectl":
            for name in re.findall(r"manifests/\S*", command):
                assert (ROOT / name).exists(), command
        else:
            assert words[0] in ("export", *UNTESTED), command


def test_commands_in_running_text_exist() -> None:
    from typer.main import get_command

    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known_commands: Any = get_command(app)
    for command in inline():
        words = command.split()
        if words[0] == "make":
            assert words[1].rstrip("…") in targets, command
        elif words[0] == "berth":
            known = known_commands
            for word in words[1:]:
                if not hasattr(known, "commands"):
                    break
                assert word in known.commands, command
                known = known.commands[word]
            options = {option for param in known.params for option in param.opts}
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options | {"--help"}, command
