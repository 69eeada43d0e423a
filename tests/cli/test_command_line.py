"""Unusable input to `berth` gives one line that names the input, exit code 2, and shows no secret."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from extender.agent.slice_publisher import slice_body
from extender.api.documents import MAX_YAML, Document, documents_of, values_of
from extender.base.berth_errors import WireError
from extender.cli.main import commands
from extender.cluster import load_credentials
from extender.files import read_file
from extender.policy import Policy, load_policy
from extender.sandbox import write_kubeconfig
from tests.worlds.bad_values import honest
from tests.worlds.commands import berth
from tests.worlds.process_starter import ROOT

URL = "must be http://HOST:PORT or https://HOST:PORT with a port from 1 to 65535, is "
NAME = "must be a DNS-1123 name of at most {} characters: lower-case letters, digits, '-' and '.', is "
LINES: dict[str, str] = {
    # usage, reported by typer before any command runs
    "--nope": "No such option: --nope",
    "nosuch": "No such command 'nosuch'",
    "policy nosuch": "No such command 'nosuch'",
    "version x": "Got unexpected extra argument(s) (x)",
    "fabric": "Missing argument 'target'",
    "agent": "Missing option '--node' (env var: 'NODE_NAME')",
    "fabric t4-4 --count": "Option '--count' requires an argument",
    "fabric t4-4 --count 99": "Invalid value for '--count': must be at most 16 (is '99')",
    "fabric t4-4 --count x": ("Invalid value for '--count': must be an integer (is 'x')"),
    "fabric t4-4 --output xml": "Invalid value for '-o' / '--output': 'xml' is not one of 'table', 'json'",
    "top --seconds nan": "Invalid value for '--seconds': must be at most 60 (is 'nan')",
    "top --once=x": "Option '--once' does not take a value",
    # addresses
    "nodes --server http://127.0.0.1:65536": f"--server: {URL}'http://127.0.0.1:65536'",
    "nodes --server http://127.0.0.1:0": f"--server: {URL}'http://127.0.0.1:0'",
    "nodes --server http://[::1": f"--server: {URL}'http://[::1'",
    "nodes --server http://": f"--server: {URL}'http://'",
    "nodes --server 127.0.0.1:80": f"--server: {URL}'127.0.0.1:80'",
    "nodes --server ftp://x": f"--server: {URL}'ftp://x'",
    "nodes --server http://x/?y": f"--server: {URL}'http://x/?y'",
    "nodes --server http://u:SECRET@x": "--server: must not hold a user name or password",
    "serve --traces http://[::1": f"--traces: {URL}'http://[::1'",
    "serve --traces http://x:99999": f"--traces: {URL}'http://x:99999'",
    "serve --traces ": f"--traces: {URL}''",
    "serve --listen [::1:80": "--listen: must be HOST:PORT with a port below 65536, is '[::1:80'",
    "serve --listen [:80": "--listen: must be HOST:PORT with a port below 65536, is '[:80'",
    "serve --probes :65536": "--probes: must be HOST:PORT with a port below 65536, is ':65536'",
    "run --api-port 65536": "--api-port: must be a port below 65536, is 65536",
    "serve --probes nowhere": "--probes: must be HOST:PORT with a port below 65536, is 'nowhere'",
    "serve --console nowhere": "--console: must be HOST:PORT with a port below 65536, is 'nowhere'",
    "console --listen nowhere": "--listen: must be HOST:PORT with a port below 65536, is 'nowhere'",
    # options that need others
    "serve --tls-cert x": "--tls-cert: goes with --tls-key",
    "serve --client-ca x": "--client-ca: goes with --tls-cert",
    "serve --tls-cert x --tls-key y --client-name x": "--client-name: goes with --client-ca",
    "serve --page-token-file x": "--page-token-file: goes with --console",
    "serve --page-host x": "--page-host: goes with --console",
    "console --tls-key y": "--tls-key: goes with --tls-cert",
    # names
    "agent --node A_B": f"--node: {NAME.format(236)}'A_B'",
    "agent --node a/b": f"--node: {NAME.format(236)}'a/b'",
    "agent --node ": f"--node: {NAME.format(236)}''",
    "fabric ../secrets --kubeconfig x": f"TARGET: {NAME.format(253)}'../secrets'",
    "console --policy-configmap x": "--policy-configmap: must be NAMESPACE/NAME, is 'x'",
    "console --policy-configmap a/b/c": "--policy-configmap: must be NAMESPACE/NAME, is 'a/b/c'",
    "explain a/b/c": "NAMESPACE/NAME: must name one pod, is 'a/b/c'",
    "explain a b": "NAMESPACE/NAME: must name one pod, is 'a b'",
    "explain": "NAMESPACE/NAME: is missing: name a pod, or give -f FILE",
    "explain a/b -f {objects}": "NAMESPACE/NAME: does not go with -f FILE, is 'a/b'",
    "explain p --without nosuch --snapshot {objects}": "--without: node 'nosuch' is not known",
    "allocate": "FILE: is missing: give files, or --cases DIR",
    "allocate {objects} --node ": "nodes: none named ''",
    "fabric t4-4 --count 3 --free 0,1": "--count: asks for 3 GPUs where 2 are free",
    # files
    "fabric ": "TARGET: must not be empty",
    "policy show ": ".: is the current folder, not a file",
    "run --examples {folder}/nowhere": "{folder}/nowhere: does not exist",
    "allocate --cases {folder}/nowhere": "{folder}/nowhere: does not exist",
    "select --cases {secret}": "{secret}: is not JSON: unexpected character, expected a JSON value (line 1, column 1)",
    "select --cases {map}": "{map}: must hold a list of cases",
    "select true -f {comments}": "{comments}: holds no Kubernetes objects",
    "allocate {empty}": "{empty}: holds no Kubernetes objects",
    "explain a/b --snapshot {empty}": "{empty}: holds no Kubernetes objects",
    "explain a/b --snapshot {other}": "{other}: holds no objects that Berth reads: `berth snapshot` makes such files",
    "lint {other} --snapshot {other}": (
        "{other}: holds none of DeviceClass, ResourceSlice: `berth snapshot` makes such files"
    ),
    "explain a/b --snapshot {objects} --policy {secret}": (
        "{secret}: the policy has none of a policy's fields: is it the right file?"
    ),
    "doctor --scheduler-config {map}": "{map}: must be a KubeSchedulerConfiguration",
    "doctor --scheduler-config {comments}": "{comments}: is empty",
    # expressions
    "select ": (
        "EXPRESSION: compilation failed: Syntax error: mismatched input '<EOF>' expecting an expression "
        "(line 1, column 1)"
    ),
    "select device.nope": "EXPRESSION: compilation failed: undefined field 'nope' (line 1, column 7)",
    "select 1": "EXPRESSION: must evaluate to bool or the unknown type, not int",
    "select true -f {other}": "--file: the files hold no ResourceSlice",
    "select": "EXPRESSION: is missing: give it, or --cases FILE",
}
SECRETS: dict[str, str] = {
    "shadow": "root:$6$SECRET$SECRET:19000:0:99999:7:::\n",
    "a mapping": "password: SECRET\n",
    "a number": "password: 9999999999999999999\nSECRET: 99999999999999999999\n",
    "a tag": "password: !SECRET x\n",
    "an alias": "password: *SECRET\n",
    "keys twice": "SECRET: 1\nSECRET: 2\n",
    "a key of another type": "[SECRET]: 1\n",
    "JSON": '{"auths": {"SECRET": "SECRET"}}',
    "JSON that is none": '{"auths": SECRET',
    "a list": "[SECRET, {SECRET: SECRET}]",
    "one word": "SECRET",
    "a text": "SECRET = 1\n[SECRET]\nSECRET: SECRET: SECRET\n",
    "an object of another kind": "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: {a: SECRET}\n",
    "a kind that is none": "kind: [SECRET]\nspec: SECRET\n",
    "no kind": "spec: SECRET\nmetadata: SECRET\n",
}
READERS = (
    "policy show {}", "policy check {}", "fabric {}", "select true -f {}", "select --cases {}", "lint {}",
    "allocate {}",
    "lint {objects} --snapshot {}", "explain a/b --snapshot {}", "explain a/b --snapshot {objects} --policy {}",
    "explain -f {}",
    "doctor --scheduler-config {}", "doctor --kubeconfig {}", "snapshot --kubeconfig {}",
    "agent --node n --kubeconfig {}",
    "serve --kubeconfig {}", "serve --kubeconfig {kubeconfig} --policy {}",
    "serve --kubeconfig {kubeconfig} --tls-cert {} --tls-key {}",
)  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files by name, as lines above name them."""
    folder = tmp_path_factory.mktemp("files")
    texts = {name: yaml.safe_dump(value) for name, value in honest().items()} | {
        "comments": "# nothing\n", "empty": '{"kind": "List", "items": []}', "map": '{"name": "x"}',
        "secret": SECRETS["shadow"],
        "other": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: str(folder / name) for name in texts} | {"folder": str(folder)}


@pytest.mark.parametrize("line", LINES)
def test_an_error_is_one_line_that_names_option_and_value(line: str, files: dict[str, str]) -> None:
    code, _, stderr = berth([word.format(**files) for word in line.split(" ")])
    assert (code, stderr) == (2, f"berth: {LINES[line].format(**files)}")


@pytest.mark.parametrize("command", ["snapshot", "doctor", "serve", "console"])
def test_outside_a_pod_the_option_for_credentials_is_named(command: str, tmp_path: Path) -> None:
    code, _, stderr = berth([command], {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": "", "HOME": str(tmp_path)})
    assert code == 2
    assert stderr.startswith("berth: cannot read credentials from the pod's service account: ")
    assert stderr.endswith("; outside a pod, give --kubeconfig FILE or set KUBECONFIG")


@pytest.mark.parametrize("line", ["snapshot", "doctor", "serve", "console", "agent --node n", "fabric node-1"])
def test_every_command_reads_the_kubeconfig_that_kubectl_would(line: str, tmp_path: Path) -> None:
    home = {"KUBECONFIG": "", "HOME": str(tmp_path)}
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("a: [")
    (tmp_path / "other").write_text("b: [")
    words, problem = line.split(), "is not YAML or JSON"
    code, _, stderr = berth(words, home)
    assert (code, problem in stderr) == (2, True)
    assert stderr.startswith(f"berth: {tmp_path}/.kube/config: ")
    code, _, stderr = berth(words, {**home, "KUBECONFIG": f"/nowhere:{tmp_path}/other"})
    assert (code, problem in stderr) == (2, True)
    assert stderr.startswith(f"berth: {tmp_path}/other: ")
    code, _, stderr = berth(words, {**home, "KUBECONFIG": "/nowhere"})
    assert (code, stderr) == (2, "berth: $KUBECONFIG: names no file that exists: '/nowhere'")
    code, _, stderr = berth([*words, "--kubeconfig", "/nowhere"], {**home, "KUBECONFIG": f"{tmp_path}/other"})
    assert (code, stderr) == (2, "berth: /nowhere: does not exist")


def test_files_of_kubeconfig_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "a": {"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}], "current-context": "c"},
        "b": {"clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:9"}}],
              "users": [{"name": "u", "user": {"token": "t"}}]},
    }  # fmt: skip
    for name, content in parts.items():
        (tmp_path / name).write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a:{tmp_path}/b")
    found = load_credentials(None)
    assert (found.url, found.token()) == ("http://127.0.0.1:9", "Bearer t")


@pytest.mark.parametrize("content", SECRETS)
@pytest.mark.parametrize("line", READERS)
def test_no_error_shows_the_content_of_a_file_of_others(
    line: str, content: str, files: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "given"
    target.write_text(SECRETS[content])
    code, out, stderr = berth([word.format(str(target), **files) for word in line.split()])
    assert code in (0, 1, 2), out + stderr
    assert "SECRET" not in out + stderr, out + stderr
    assert code != 0 or line.startswith(("lint", "select --cases")), "it was taken for something"


def test_an_error_shows_the_wrong_value_of_a_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / "policy").write_text("weights: {lnk: 3}\nwrong: yes\n")
    code, _, stderr = berth(["policy", "show", str(tmp_path / "policy")])
    assert code == 2
    assert "weights.lnk: is no known field (is 3, line 1, column 11)" in stderr
    assert "wrong: is no known field (is true, line 2, column 1)" in stderr
    for text, words in (("[1]", "must be a mapping"), ("a: [", "not YAML"), ("headroom: big", "headroom: ")):
        (tmp_path / "policy").write_text(text)
        assert words in berth(["policy", "show", str(tmp_path / "policy")])[2]


def test_every_policy_is_checked_though_one_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("candidates: 3")
    (tmp_path / "wrong").write_text("candidates: -3")
    code, out, stderr = berth(
        ["policy", "check", str(tmp_path / "nowhere"), str(tmp_path / "good"), str(tmp_path / "wrong")]
    )
    assert code == 2
    assert out == f"{tmp_path}/good: good\n"
    assert [line.split(": ")[1] for line in stderr.splitlines()] == ["does not exist", "candidates"]


def test_policy_check_says_which_products_an_entry_goes_with(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("products: {h100: 1, H100 PCIe: 3, A100: 2}\noverrides: [{products: {nosuch: 1, MI3: 2}}]\n")
    code, out, _ = berth(["policy", "check", str(path)])
    assert (code, out.splitlines()) == (
        0,
        [
            f"{path}: good",
            "  products: 'h100' goes with no product of the vendor files; upper and lower case count: H100",
            "  products: 'H100 PCIe' goes with H100 of the vendor files",
            "  products: 'A100' goes with A100 of the vendor files",
            "  products: 'nosuch' goes with no product of the vendor files",
            "  products: 'MI3' goes with MI350X, MI355X, MI325X, MI300X, MI308X, MI300A of the vendor files",
        ],
    )


def test_the_policy_of_the_manifests_is_good_and_the_default() -> None:
    path = str(ROOT / "manifests" / "base" / "policy.yaml")
    assert berth(["policy", "check", path]) == (0, f"{path}: good\n", "")
    assert load_policy(berth(["policy", "show", path])[1]).digest == Policy().digest, (
        "the manifest says what the default says"
    )


def test_a_token_file_that_cannot_be_named_is_told(tmp_path: Path) -> None:
    kubeconfig = str(write_kubeconfig(tmp_path, "http://127.0.0.1:9"))
    line = ["console", "--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0", "--page-token-file", "x" * 5000]
    code, _, stderr = berth(line)
    assert (code, len(stderr) < 1100) == (2, True)
    assert stderr.endswith("…: cannot be read: File name too long"), stderr


@pytest.mark.parametrize(
    "text", ["- 1\n" * (MAX_YAML // 4 + 1), "---\na: 1\n" * (MAX_YAML // 9 + 1), "[" + "x,\n" * (MAX_YAML // 3 + 1)]
)
def test_yaml_that_takes_long_is_refused_at_once(text: str) -> None:
    with pytest.raises(WireError, match=r"is larger than the 8 MiB that YAML may have: write it as JSON|is not JSON"):
        [values_of(one) for one in documents_of(text, "f")]


def test_json_may_be_longer() -> None:
    text = "[" + "1,\n" * (MAX_YAML // 3) + "1]"
    assert len(values_of(Document("f", text))[0]) == MAX_YAML // 3 + 1


def test_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(WireError, match="standard input: is closed"):
        read_file(Path("-"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x")))
    assert read_file(Path("-")) == b"x"


def test_the_longest_name_that_the_agent_takes_makes_a_name_of_a_slice() -> None:
    assert len(slice_body("n" * 236, "u", (), 0, stale=False)["metadata"]["name"]) == 253


def helps(group: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The commands with the text of their help, those of a group of commands included."""
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command.help or ""
        if hasattr(command, "commands"):
            yield from helps(command, f"{prefix}{name} ")


@pytest.mark.parametrize(("name", "text"), list(helps(typer.main.get_command(commands()))))
def test_the_first_line_of_a_help_is_one_sentence_that_fits(name: str, text: str) -> None:
    """`berth --help` shows the first paragraph; a terminal of 80 columns has room for 66 characters of it."""
    first = text.split("\n\n", maxsplit=1)[0]
    assert first.endswith(".")
    assert ". " not in first
    assert len(first) <= 66, name


def test_content_for_a_closed_standard_output_is_no_fault_of_berth() -> None:
    """`berth snapshot >&-` exits as the commands that print text."""
    line = f"{shlex.quote(sys.executable)} -c 'from extender.cli.output import say_content; say_content(b\"{{}}\")' >&-"
    found = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")


def test_allocate_answers_the_other_cases_of_a_file_with_text_that_is_not_json(tmp_path: Path) -> None:
    given = tmp_path / "given.jsonl"
    given.write_bytes(b'{"name": "one"}\n\xff\xfe\n{"name": "two"}\n')
    code, out, stderr = berth(["allocate", "--cases", str(given)])
    assert [json.loads(line)["name"] for line in out.splitlines()] == ["one", "given.jsonl:2", "two"]
    assert (code, stderr) == (2, f"berth: {given}: 1 case cannot be read as JSON, see above")


def test_allocate_rejects_a_file_without_a_case(tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    given.write_text("\n")
    assert berth(["allocate", "--cases", str(given)]) == (2, "", f"berth: {given}: holds no case: it is empty")
