"""What a user of kubectl types works: short options, KIND/NAME, forms of output, help and the completion of a shell."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from extender.cli import console_options
from extender.cli.main import commands
from extender.cli.output import Screen, table_screen
from extender.sandbox import write_kubeconfig
from tests.worlds.commands import berth, berth_beside
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import run_pod
from tests.worlds.process_starter import ROOT
from tests.worlds.running_berth import Berthing, berthing, claim, pod


async def ask(b: Berthing, *words: str) -> tuple[int, str, str]:
    return await berth_beside([*words, "--server", str(b.client.base_url).rstrip("/")])


async def test_top_goes_on_in_a_pipe_if_it_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(2))

    def sleep(_: float) -> None:
        if next(turns):
            raise KeyboardInterrupt

    monkeypatch.setattr("extender.cli.fleet_commands.time.sleep", sleep)
    async with berthing({"n1": "t4-4"}) as b:
        for words, pictures in (((), 1), (("-w",), 2)):
            code, out, _ = await ask(b, "top", *words)
            assert (code, out.count("1 node: 4 free")) == (0, pictures)


async def test_fabric_of_a_node_that_does_not_exist(tmp_path: Path) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        _, _, err = await berth_beside(["fabric", "nosuch", "--kubeconfig", str(write_kubeconfig(tmp_path, b.api))])
    assert err == "berth: nosuch: no ResourceSlice of the cluster names a node of this name"


WAYS = "name one of its pods (kubectl get pods lists them), or give its manifest with -f FILE"


NOT_EXPLAINED = {
    "deploy x": f"deploy x is no pod and no group: {WAYS}",
    "job/x": f"job x is no pod and no group: {WAYS}",
    "node/n1": "node n1 is no pod and no group: berth nodes n1 shows the node",
    "claim/c": "claim c is no pod and no group: name a pod that uses the claim; berth claims c lists it",
    "svc/x": "pod svc/x does not exist",
    "svc x": "NAMESPACE/NAME: must name one pod, is 'svc x'",
    "deployments.apps/x": f"deployments.apps x is no pod and no group: {WAYS}",
    "p -n Bad_Name": "--namespace: must be the name of a namespace, is 'Bad_Name'",
    "p -n a -A": "--all-namespaces: does not go with --namespace a",
    "a/p -n b": "--namespace: does not go with a name that has a namespace, is 'b'",
    "p --snapshot f -w": "--watch: does not go with --snapshot: the file does not change",
}


async def test_what_cannot_be_explained_is_said_in_one_sentence() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for words, sentence in NOT_EXPLAINED.items():
            assert await ask(b, "explain", *words.split()) == (2, "", f"berth: {sentence}")


async def test_names_and_forms_of_output() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        for namespace in ("default", "job"):
            one = {"metadata": {"name": "p", "namespace": namespace, "uid": namespace}}
            b.cluster.apply({**pod("p", "none"), **one})
        b.cluster.apply(claim("c", 1))
        await eventually(lambda: b.console.overview.fleet()["waiting"] == 2)
        code, out, _ = await ask(b, "explain", "p", "-n", "job", "-o", "yaml")
        assert (code, [one["pod"] for one in yaml.safe_load_all(out)]) == (0, ["job/p"])
        code, out, _ = await ask(b, "explain", "job/p", "-o", "json")
        assert json.loads(out)["pod"] == "job/p", "a namespace may be called as a kind is"
        code, out, _ = await ask(b, "explain", "po/p", "-n", "default", "-o", "json")
        assert json.loads(out)["pod"] == "default/p"
        assert (await ask(b, "nodes", "node/n2", "-o", "name"))[1] == "node/n2\n"
        assert [node["name"] for node in yaml.safe_load((await ask(b, "nodes", "-o", "yaml"))[1])] == ["n1", "n2"]
        assert (await ask(b, "claims", "c", "-o", "name"))[1] == "resourceclaim.resource.k8s.io/c\n"
        assert (await ask(b, "claims", "-n", "job"))[2] == "berth: no claim in namespace job; -A lists all namespaces\n"
        assert {one["pod"] for one in json.loads((await ask(b, "top", "-o", "json"))[1])["pending"]} == {
            "default/p",
            "job/p",
        }
        top = (await ask(b, "top", "--once", "-n", "job"))[1]
        assert ("job/p" in top, "default/p" in top) == (True, False)
        assert (await ask(b, "top", "-w", "--once"))[2] == "berth: --watch: does not go with --once"
        assert (await ask(b, "explain", "p", "-n", "job", "--free", "nosuch"))[2] == (
            "berth: free: no claim with devices is reserved for pod 'job/nosuch'"
        )
        assert yaml.safe_load((await ask(b, "policy", "status", "-o", "yaml"))[1])["problem"] == ""


async def test_what_is_printed_can_be_typed_again() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        for name in ("a", "b"):
            await run_pod(b, name, [claim(f"{name}-gpus", 4)])
        await run_pod(b, "p", [claim("p-gpus", 4)])
        _, out, _ = await ask(b, "explain", "p")
        holder = re.findall("held by (pod default/[ab]),", out)[0]
        for free in (holder.replace("pod ", ""), "pod/a", "a", "po/b"):
            code, out, _ = await ask(b, "explain", "p", "--free", free, "-o=json")
            assert (code, json.loads(out)["outcome"]) == (0, "fits"), free
        code, out, _ = await ask(b, "explain", "p", "--free", "a", "--free", "b", "--without", "node/n1", "-o", "json")
        assert [one["node"] for one in json.loads(out)["best"]] == ["n2"]
        for kind in ("pg", "gang", "podgroup"):
            assert "no pod that waits" in (await ask(b, "explain", f"{kind}/x", "-n", "default"))[2]


async def test_options_may_stand_before_the_command() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(claim("c", 1))
        await b.settled()
        name = "resourceclaim.resource.k8s.io/c\n"
        for words in ("-n default claims -o name", "--namespace=default -o=name claims", "-A claims c -o=name"):
            assert await ask(b, *words.split()) == (0, name, ""), words
        assert await ask(b, "-n", "top", "claims") == (
            0, "", "berth: no claim in namespace top; -A lists all namespaces\n"
        )  # fmt: skip
        assert "Usage: berth [OPTIONS] COMMAND" in berth(["-h", "claims"])[1]


async def test_a_name_that_matches_nothing_is_said_in_one_sentence() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        assert await ask(b, "nodes", "nope") == (1, "", "berth: no node has nope in its name\n")
        assert await ask(b, "claims", "claim/nope") == (1, "", "berth: no claim has the name nope\n")
        assert await ask(b, "claims", "nope", "-n", "a") == (
            1, "", "berth: no claim in namespace a has the name nope; -A lists all namespaces\n"
        )  # fmt: skip


async def test_a_watch_prints_what_changes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The second answer is that of the first again; then the claim gets a device; then Ctrl-C."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(claim("c", 1))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        loop, turns = asyncio.get_running_loop(), iter(range(3))

        async def bind() -> None:
            assert await b.bind("p", (await b.filter("p"))["NodeNames"][0]) == ""
            await b.settled()

        def sleep(_: float) -> None:
            turn = next(turns)
            if turn == 1:
                asyncio.run_coroutine_threadsafe(bind(), loop).result()
            if turn == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr("extender.cli.output.time.sleep", sleep)
        for command, most, after in (("nodes", 2, "fff"), ("claims", 1, "gpu.nvidia.com/")):
            turns = iter(range(3) if command == "nodes" else (0, 2))
            code, out, _ = await ask(b, command, "-w")
            shown = re.findall("(?:n1|default/c).*", out)
            assert (code, len(shown), after in shown[-1]) == (0, most, True), out


def test_the_help_has_groups_in_order() -> None:
    code, out, _ = berth(["-h"])
    panels = [list(lines) for is_in, lines in groupby(out.splitlines(), lambda line: line.startswith("│")) if is_in]
    names = [[line.split()[1] for line in panel if re.match("│ [a-z]", line)] for panel in panels]
    assert code == 0
    wanted = ("explain", "lint", "serve", "completion")
    assert [name in panel for name, panel in zip(wanted, names[1:], strict=True)] == [True] * 4
    assert all(panel == sorted(panel) for panel in names), names
    assert berth(["explain", "-h"])[1] == berth(["explain", "--help"])[1]


def test_a_program_reads_whole_cells_and_a_terminal_may_have_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table_screen().width > 5000
    for value, coloured in (("1", False), ("", True)):
        monkeypatch.setenv("NO_COLOR", value)
        screen = Screen(force_terminal=True, color_system="standard")
        with screen.capture() as found:
            screen.print("free", style="green")
        assert ("32m" in found.get()) == coloured


# -- completion ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    code, out, _ = berth(["completion", shell])
    assert (code, "_BERTH_COMPLETE" in out) == (0, True)
    assert "powershell" in berth(["completion", "powershell"])[2]


@pytest.mark.parametrize(
    ("line", "found"), [("berth exp", "explain\n"), ("berth nodes --berth", "--berth-namespace\n")]
)
def test_the_script_of_bash_gets_words(line: str, found: str) -> None:
    """As bash calls it, in a process of its own."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_BERTH_COMPLETE": "complete_bash"}
    assert _completed(["berth"], words) == found


def test_kubectl_gets_words_and_a_directive() -> None:
    assert _completed(["/usr/bin/kubectl_complete-berth", "explain", "--name"], {}) == "--namespace\n:4\n"


def _completed(argv: list[str], env: dict[str, str]) -> str:
    code = f"import sys; sys.argv = {argv!r}; from extender.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PATH": "", "HOME": "/", **env}, capture_output=True, check=True
    )
    assert done.stderr == b""
    return done.stdout.decode()


async def test_names_are_those_of_the_console() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4", "x": "t4-4"}) as b:
        b.cluster.apply(pod("p", "none"))
        await eventually(lambda: b.console.overview.fleet()["waiting"] == 1)
        command = typer.main.get_command(commands(["explain"]))
        context: Any = typer.Context(command)
        context.params = {"server": str(b.client.base_url).rstrip("/")}
        found = asyncio.to_thread
        assert await found(console_options.node_names, context, "n") == ["n1", "n2"]
        assert await found(console_options.pod_names, context, "def") == ["default/p"]
        context.params |= {"namespace": "default"}
        assert await found(console_options.pod_names, context, "p") == ["p"]


def test_a_completion_is_quiet_if_no_console_answers(capsys: pytest.CaptureFixture[str]) -> None:
    context: Any = typer.Context(typer.main.get_command(commands(["explain"])))
    context.params = {"server": "http://127.0.0.1:9"}
    assert console_options.node_names(context, "") == []
    assert capsys.readouterr() == ("", "")
