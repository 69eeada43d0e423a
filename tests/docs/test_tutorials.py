"""Every command of the tutorials, in order, against `berth run`: with kubectl, and in every clone with its requests."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.worlds.commands import berth, berth_run_once
from tests.worlds.eventually import HANG_SECONDS
from tests.worlds.manifests import KUBECTL, NO_GC, needs_kubectl
from tests.worlds.process_starter import ROOT, start

TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))
_DEFAULT = "namespaces/default"
_PATHS = {
    "Pod": f"/api/v1/{_DEFAULT}/pods",
    "ResourceClaim": f"/apis/resource.k8s.io/v1/{_DEFAULT}/resourceclaims",
    "ResourceClaimTemplate": f"/apis/resource.k8s.io/v1/{_DEFAULT}/resourceclaimtemplates",
    "nodes": "/api/v1/nodes",
    "pod": f"/api/v1/{_DEFAULT}/pods",
    "pods": f"/api/v1/{_DEFAULT}/pods",
    "events": f"/api/v1/{_DEFAULT}/events",
    "resourceclaims": f"/apis/resource.k8s.io/v1/{_DEFAULT}/resourceclaims",
}
# Exit code 1: the pod waits, or the claims do not fit.
WAIT = re.compile(r"berth (explain pod default/(too-large|train-v100)$|allocate .*(third|large.*small))")


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    return [line.split(" #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


@dataclass
class Run:
    """A `berth run`, and the lines that it printed."""

    said: str

    @property
    def page(self) -> str:
        return self._printed(r"the page +open (\S+)")

    @property
    def kubeconfig(self) -> str:
        return self._printed(r"export KUBECONFIG=(\S+)")

    def _printed(self, pattern: str) -> str:
        found = re.search(pattern, self.said)
        assert found is not None, self.said
        return found[1]


@pytest.fixture
def run() -> Iterator[Run]:
    process = start("run", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0", stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as lines:
        said = ""
        for line in lines:
            said += line.decode()
            if b"Ctrl-C" in line:
                break
        yield Run(said)
        process.terminate()
        assert process.wait() == 0, "`berth run` ends in order"


Kubectl = Callable[[list[str]], str]


def real_kubectl(run: Run, home: Path) -> Kubectl:
    def kubectl(words: list[str]) -> str:
        env = {**os.environ, **NO_GC, "KUBECONFIG": run.kubeconfig, "HOME": str(home)}  # HOME: of its cache
        done = subprocess.run([str(KUBECTL), *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout + done.stderr)
        return done.stdout

    return kubectl


def requests_of_kubectl(run: Run) -> Kubectl:
    """The requests that the tutorials' kubectl commands make, without kubectl."""
    server = yaml.safe_load(Path(run.kubeconfig).read_text())["clusters"][0]["cluster"]["server"]

    def asked(method: str, path: str, **options: Any) -> str:
        reply = httpx.request(method, server + path, timeout=HANG_SECONDS, verify=False, **options)
        assert reply.is_success, (method, path, reply.text)
        return reply.text

    def kubectl(words: list[str]) -> str:
        match words:
            case ["apply", "-f", file]:
                for obj in yaml.safe_load_all((ROOT / file).read_text()):
                    asked("POST", _PATHS[obj["kind"]], json=obj, params={"fieldValidation": "Strict"})
                return ""
            case ["delete", "-f", file]:
                objects = list(yaml.safe_load_all((ROOT / file).read_text()))
                return "".join(asked("DELETE", f"{_PATHS[o['kind']]}/{o['metadata']['name']}") for o in objects)
            case ["delete", kind, name]:
                return asked("DELETE", f"{_PATHS[kind]}/{name}")
            case ["wait", "--for=condition=PodScheduled", pod, *_]:
                path = f"{_PATHS['pod']}/{pod.removeprefix('pod/')}"
                return _until(lambda: (text := asked("GET", path)) and '"nodeName"' in text and text)
            case ["get", kind, "--field-selector", selector]:
                return asked("GET", _PATHS[kind], params={"fieldSelector": selector})
            case ["get", kind, "-o", "wide"] | ["get", kind]:
                return asked("GET", _PATHS[kind])
            case ["get" | "describe", kind, name, *_]:
                return asked("GET", f"{_PATHS[kind]}/{name}")
        raise AssertionError(words)

    return kubectl


def _until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + HANG_SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, "never came true"
        time.sleep(0.05)
    return found


def _not_placed(kubectl: Kubectl, words: list[str]) -> str:
    """The output of `kubectl get events`; '' before it has an Event NotPlaced."""
    text = kubectl(words)
    return text if "NotPlaced" in text else ""


_WITHOUT_CLAIMS = ": score "  # in the explanation of a bound pod before the console's watch shows its claims


def follow(page: Path, run: Run, kubectl: Kubectl) -> dict[str, list[str]]:
    """Run the commands of a tutorial in order; return the outputs of each."""
    said: dict[str, list[str]] = {}
    for command in commands(page):
        words = shlex.split(command)
        if words[:3] == ["kubectl", "get", "events"]:
            out = _until(partial(_not_placed, kubectl, words[1:]))
        elif words[0] == "kubectl":
            out = kubectl(words[1:])
        elif words[:3] == ["berth", "run", "--once"]:
            code, out, errors = berth_run_once(*words[3:])
            assert code == 1, (command, out + errors)
        elif words[0] == "berth":
            code, out, errors = berth(words[1:], {"BERTH_SERVER": run.page})
            while _WITHOUT_CLAIMS in out:
                code, out, errors = berth(words[1:], {"BERTH_SERVER": run.page})
            assert code == 0 or (code == 1 and WAIT.match(command)), (command, out + errors)
        else:
            assert command in ("make run", "export PATH=$PWD/.venv/bin:$PATH")
            continue
        said.setdefault(command, []).append(" ".join(out.split()))
    return said


def check_your_own_pod(said: dict[str, list[str]]) -> None:
    assert "hgx-h100-8-2" in said["kubectl get pods -o wide"][0]
    placed = said["berth explain pod default/own-pod"][0]
    assert re.search(r"was bound to \S+ .*; predicted 240 GB/s, the best for this pod", placed)
    assert "berth.dev/decision" in said["kubectl describe pod own-pod"][0]
    for command in (
        "berth explain pod default/too-large",
        "kubectl get events --field-selector involvedObject.name=too-large",
    ):
        assert "matches none of 140 devices; 32 have 185Gi" in said[command][0]
    (once,) = (out for command, out in said.items() if "--once" in command)
    assert "✗ too-large" in once[0]
    assert re.search(r"✓ own-pod │ \S+━", once[0])


def check_nvlink(said: dict[str, list[str]]) -> None:
    board, crowded = said["berth fabric dgx1-v100 --count 4"], said["berth fabric dgx1-v100 --count 4 --free 0,2,3,4"]
    assert "predicted ring 80 GB/s" in board[0]
    assert "by PCIe, predicted ring 10 GB/s" in crowded[0]
    waiting, placed = said["berth explain pod default/train-v100"]
    assert "fits nowhere" in waiting
    assert "held by pod default/running-dgx1-v100-1" in waiting
    assert "fits" in said["berth explain pod default/train-v100 --free default/train-four-b"][0]
    assert "was bound to" in placed
    assert "predicted 80 GB/s, the best for this pod" in placed


def check_gang(said: dict[str, list[str]]) -> None:
    waits, runs = said["berth explain group default/pipeline"]
    assert "waits for 1 pod: 1 of at least 2 exist" in waits
    assert re.search(r"runs: 2 pods bound on node l40s-8-pix-\d", runs)
    assert "was bound to l40s" in said["berth explain pod default/pipeline-0"][0]


def check_share(said: dict[str, list[str]]) -> None:
    why = said["berth explain pod default/tensorboard"][0]
    bound = re.search(r"was bound to (\S+) .*gpu.nvidia.com/\1/gpu-\d", why)
    assert bound, why
    assert said["kubectl get pods -o wide"][0].count(bound[1]) >= 2, "both pods are on one node"
    two, three = (out for command, (out,) in said.items() if command.startswith("berth allocate"))
    assert two.count("gpu.example.com/node-a/gpu-0") == 2
    assert "asks for 4Gi, has 2Gi of 80Gi" in three


def check_mig(said: dict[str, list[str]]) -> None:
    large, small, both = (out for command, (out,) in said.items() if command.startswith("berth allocate"))
    assert large.startswith("node-a: fits")
    assert small.count("1g-10gb") == 5
    assert "its shared counters are used up" in both
    assert "0 findings" in said["berth lint docs/tutorials/mig/pod.yaml"][0]


CHECKS = {
    "tutorial-your-own-pod": check_your_own_pod,
    "tutorial-nvlink": check_nvlink,
    "tutorial-gang": check_gang,
    "tutorial-share-a-gpu": check_share,
    "tutorial-mig": check_mig,
}


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_command_as_requests(page: Path, run: Run) -> None:
    CHECKS[page.stem](follow(page, run, requests_of_kubectl(run)))


@needs_kubectl
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_command_with_kubectl(page: Path, run: Run, tmp_path: Path) -> None:
    CHECKS[page.stem](follow(page, run, real_kubectl(run, tmp_path)))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_shows_the_file_that_it_applies(page: Path) -> None:
    shown = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    assert shown
    assert set(shown) <= {path.read_text() for path in (ROOT / "docs" / "tutorials").rglob("*.yaml")}


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "tutorials").rglob("*.yaml")), ids=lambda path: path.stem)
def test_lint_finds_no_error_in_the_files_of_the_tutorials(path: Path) -> None:
    _, out, _ = berth(["lint", str(path)])
    assert "error: " not in out
