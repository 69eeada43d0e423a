"""Every command with unusable input: one sentence and an exit code, never a traceback.

`make fuzz` runs it for longer.
"""

from __future__ import annotations

import inspect
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worlds.bad_values import FILES, RAW, contents, honest, kubeconfig
from tests.worlds.commands import built, ended
from tests.worlds.process_starter import start

pytestmark = pytest.mark.usefixtures("replays_in_turn")

EXAMPLES = int(os.environ.get("BERTH_FUZZ", "15"))  # of each command
ROOT = Path(__file__).parents[2]


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*words, name))
    else:
        yield words, command


COMMANDS = dict(leaves(built("")))
# The content that each file of a command should have, by command or for all.
HOLDS = {
    "kubeconfig": "kubeconfig",
    "policy": "policy",
    "candidate": "policy",
    "snapshot": "objects",
    "scheduler_config": "scheduler",
    "file": "objects",
    "files": "objects",
    "jobs": "jobs",
    ("policy", "check"): "policy",
    ("policy", "show"): "policy",
    ("allocate", "cases"): "case",
    ("select", "cases"): "selections",
    ("fabric", "target"): "machine",
    ("run", "examples"): "folder",
    "tls_cert": "policy",
    "tls_key": "policy",
    "client_ca": "policy",
    "page_token_file": "policy",
}
WRITTEN = {"picture_file", "save", "html", "jobs_file", "write_policy"}  # files that a command writes


VALUES = ("", "x", "é\n", "-1", "²", "9" * 400, "nan", "a/b/c", "/", "\n", "[bold]x", "\u001b[0m", "n\u0000")
ADDRESSES = (
    *VALUES, ":", "a:b:c", "é:80", "1.2.3.4:99999", f"{'a' * 70}.x:80", "[::1]:x", "::1:²", "http://", "http://[",
    "http://²:x", "ftp://x", "http://a b", "http://[::1", "http://x:65536", "http://u:p@x",
)  # fmt: skip


class Nonsense(BaseHTTPRequestHandler):
    """A server that is no Berth and no API server."""

    answer: tuple[int, bytes] = (200, b"")

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PATCH = do_PUT = do_GET  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore clients that close their connection."""


@pytest.fixture(scope="module")
def nonsense() -> Iterator[str]:
    with Quiet(("127.0.0.1", 0), Nonsense) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def used() -> Iterator[int]:
    """A port that is in use, so that a server command ends when it binds the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("input")
    for name, value in honest().items():
        (made / f"{name}.yaml").write_text(yaml.safe_dump(value))
    (made / "jobs.yaml").write_text("arrival,duration,gpus\n0,60,1\n")
    (made / "folder").mkdir()
    (made / "folder" / "one.yaml").write_text(yaml.safe_dump_all(honest()["objects"]["items"]))
    return made


def takes_file(words: tuple[str, ...], parameter: Any) -> bool:
    if parameter.name in WRITTEN:
        return False
    annotation = inspect.signature(COMMANDS[words].callback).parameters.get(parameter.name)
    return (annotation is not None and "Path" in str(annotation)) or (words, parameter.name) == (("fabric",), "target")


def held_by(words: tuple[str, ...], parameter: Any) -> str:
    return HOLDS.get((words[0], parameter.name)) or HOLDS.get(words) or HOLDS[str(parameter.name)]


def arguments(
    words: tuple[str, ...], folder: Path, used: int, given: dict[str, list[str]], without: tuple[str, ...] = ()
) -> list[str]:
    """A command line that ends by itself: these values, and the other arguments that the command needs."""
    needed: dict[str, list[str]] = {}
    names = {str(p.name) for p in COMMANDS[words].params}
    if "server" in names:
        needed["server"] = ["http://127.0.0.1:9"]
    if words in (("serve",), ("run",), ("console",)):
        needed["listen"] = [f"127.0.0.1:{used}"]
    if words in (("serve",), ("console",)):
        needed |= {"kubeconfig": [str(folder / "kubeconfig.yaml")]}
    if words == ("run",):
        needed |= {"examples": [str(folder / "folder")]}
    if words == ("agent",):
        needed |= {"node": ["n"], "kubeconfig": [str(folder / "nowhere")]}
    if words == ("explain",) and "file" not in given:
        needed["words"] = ["default/p"]
    if words == ("explain",) and "snapshot" not in given:
        needed["snapshot"] = [str(folder / "objects.yaml")]
    if words in (("replay",), ("tune",)):
        needed |= {"nodes": ["1xt4-4"]}
    if words == ("tune",):
        needed |= {"aim": ["bandwidth"]}
    if words == ("select",):
        needed |= {"expression": ["true"]}
    if words == ("fabric",):
        needed |= {"target": [str(folder / "machine.yaml")]}
    if "tls_cert" in given:
        needed["tls_key"] = [str(folder / "policy.yaml")]
    if "tls_key" in given or "client_ca" in given:
        needed["tls_cert"] = needed["tls_key"] = [str(folder / "policy.yaml")]
    line = list(words)
    positional = []
    for parameter in COMMANDS[words].params:
        values = given.get(str(parameter.name)) or needed.get(str(parameter.name))
        if values is None and parameter.required:
            values = [str(folder / f"{held_by(words, parameter)}.yaml")]
        for value in values or ():
            if parameter.param_type_name == "argument":
                positional.append(value)
            else:
                line += [f"{parameter.opts[0] if parameter.opts[0].startswith('--') else parameter.opts[-1]}={value}"]
    return [*line, *(["--", *positional] if positional else [])]


def check(line: list[str]) -> None:
    """Run the command as `main` does, and check its output."""
    try:
        found = ended(line)
    except Exception as error:
        error.add_note(str(line))
        raise
    assert len(found.message.encode()) < 4096, found.message
    assert "\n" not in found.message, found.message
    assert found.code in (0, 1, 2), (line, found)
    assert "Traceback" not in f"{found.stdout}{found.stderr}", (line, found)


def file_parameters() -> list[tuple[tuple[str, ...], str]]:
    return [(words, str(p.name)) for words, command in COMMANDS.items() for p in command.params if takes_file(words, p)]


@pytest.mark.parametrize(
    ("words", "name"), file_parameters(), ids=lambda value: " ".join(value) if isinstance(value, tuple) else value
)
def test_files_that_cannot_be_used(words: tuple[str, ...], name: str, folder: Path, tmp_path: Path, used: int) -> None:
    def given_file(path: Path | str) -> None:
        check(arguments(words, folder, used, {name: [str(path)]}))

    # A third of the contents for each file of a command, and all of them in `make fuzz`.
    first, step = (0, 1) if "BERTH_FUZZ" in os.environ else (file_parameters().index((words, name)) % 3, 3)
    for content in list(FILES.values())[first::step]:
        target = tmp_path / "examples" / "x.yaml" if (words, name) == (("run",), "examples") else tmp_path / "x.yaml"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)
        given_file(target if name != "examples" else target.parent)
    given_file(tmp_path)
    given_file(tmp_path / "nowhere")
    given_file(tmp_path / ("x" * 300))
    given_file("/dev/null")
    given_file("-")
    given_file("a\0b")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_values_that_cannot_be_used(words: tuple[str, ...], folder: Path, used: int, nonsense: str) -> None:
    for parameter in COMMANDS[words].params:
        if takes_file(words, parameter) or getattr(parameter, "is_flag", False) or parameter.name in ("help", *WRITTEN):
            continue
        for value in ADDRESSES if parameter.name in ("server", "listen", "probes", "console", "traces") else VALUES:
            check(arguments(words, folder, used, {str(parameter.name): [value]}))
    check([*words, "--no-such-option"])


@pytest.mark.parametrize(
    "answer",
    [
        (200, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b"null"),
        (200, b'{"nodes": [1]}'),
        (200, b'[{"claim": 1}]'),
        (200, b"\xff"),
        (200, b"[" * 5000),
        (500, b"x" * 10_000),
        (404, b'{"error": [1]}'),
        (302, b""),
        (200, b'{"items": [1]}'),
        (403, b'{"message": {}}'),
    ],
    ids=lambda answer: f"{answer[0]} {answer[1][:20]!r}",
)
def test_servers_that_are_none(
    answer: tuple[int, bytes], nonsense: str, folder: Path, tmp_path: Path, used: int
) -> None:
    Nonsense.answer = answer
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(nonsense)))
    for words, command in COMMANDS.items():
        names = {str(p.name) for p in command.params}
        if "server" in names:
            check([*words, f"--server={nonsense}", *(["a/b"] if words == ("explain",) else [])])
        if "kubeconfig" in names and words not in (("serve",), ("console",), ("agent",)):
            check(arguments(words, folder, used, {"kubeconfig": [str(tmp_path / "kubeconfig")]}))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_generated_garbage(words: tuple[str, ...], folder: Path, tmp_path: Path, used: int) -> None:
    files = [p for p in COMMANDS[words].params if takes_file(words, p)]
    if not files:
        return
    good = {**honest(), "folder": honest()["objects"]}

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def garbage(data: st.DataObject) -> None:
        parameter = data.draw(st.sampled_from(files))
        target = tmp_path / "examples" / "x.yaml" if parameter.name == "examples" else tmp_path / "x.yaml"
        target.parent.mkdir(exist_ok=True)
        # An agent with a kubeconfig that is good enough would never end.
        kind = held_by(words, parameter)
        target.write_bytes(data.draw(contents(good[kind]) if kind in good and words != ("agent",) else RAW))
        value = target.parent if parameter.name == "examples" else target
        check(arguments(words, folder, used, {str(parameter.name): [str(value)]}))

    garbage()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            ["serve", "--listen", "127.0.0.1:{used}"],
            "--listen: cannot listen on 127.0.0.1:{used}: Address already in use",
        ),
        (["serve", "--policy", "{bomb}"], "aliases stand for more values than the text has characters (line 3, column"),
    ],
)
def test_a_server_that_cannot_start_says_why_and_nothing_else(
    line: list[str], words: str, folder: Path, tmp_path: Path, used: int
) -> None:
    (tmp_path / "bomb").write_bytes(FILES["bomb"])
    names = {"used": used, "bomb": tmp_path / "bomb"}
    given = [word.format(**names) for word in line]
    found = ended([*given, "--kubeconfig", str(folder / "kubeconfig.yaml")])
    assert (found.code, found.stdout, found.stderr) == (2, "", "")
    assert words.format(**names) in found.message


@pytest.mark.parametrize("option", ["--console", "--probes"])
def test_a_person_sees_one_line(option: str, folder: Path, used: int) -> None:
    options = [option, f"127.0.0.1:{used}", "--listen", "127.0.0.1:0"]
    process = start("serve", *options, "--kubeconfig", str(folder / "kubeconfig.yaml"), stderr=subprocess.PIPE)
    assert process.stderr is not None
    with process.stderr:
        message = process.stderr.read().decode()
    assert process.wait() == 2
    assert message.startswith(f"berth: {option}: cannot listen on 127.0.0.1:{used}: Address already in use"), message
    assert message.count("\n") == 1, message


def test_an_argument_that_is_not_utf_8() -> None:
    line: list[str | bytes] = [sys.executable, "-m", "extender", "policy", "show", b"\xff"]
    found = subprocess.run(line, cwd=ROOT, capture_output=True, check=False)
    message = found.stderr.decode()
    assert found.returncode == 2, message
    assert message.startswith("berth: argument 3: is not UTF-8"), message
    assert message.count("\n") == 1, message


INTERRUPTED = """
import signal, sys
class Interrupt:
    def __set_name__(self, *_):
        signal.raise_signal(signal.SIGINT)
    def find_spec(name, path=None, target=None):
        if name == "{module}":
            class Loaded:  # Python 3.11 raises RuntimeError in place of what __set_name__ raises
                attribute = Interrupt()
    def read(*_):
        signal.raise_signal(signal.SIGINT)
        return b"kind: List"
sys.meta_path.insert(0, Interrupt)
sys.stdin = Interrupt
Interrupt.buffer = Interrupt
sys.argv = ["berth", "lint", "-"]
from extender.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "code"),
    [("extender.cli.main", -signal.SIGINT), ("extender.cli.lint_command", -signal.SIGINT), ("none", 130)],
    ids=["while modules load", "while the command's modules load", "while the command runs"],
)
def test_ctrl_c_prints_nothing(module: str, code: int) -> None:
    found = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module=module)],
        cwd=ROOT,
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # nohup or & may have these tests ignore it
    )
    assert (found.returncode, found.stdout, found.stderr) == (code, b"", b"")


def test_a_parent_that_ignores_ctrl_c_is_obeyed() -> None:
    """As under nohup, or behind & in a script."""
    found = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module="extender.cli.main")],
        cwd=ROOT,
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert found.returncode == 2, found.stderr
    assert b"Traceback" not in found.stderr


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", ">&- 2>&-"])
def test_a_closed_or_full_standard_error_keeps_the_exit_code(redirection: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m extender policy show /nowhere {redirection}"
    assert subprocess.run(["sh", "-c", line], cwd=ROOT, check=False).returncode == 2
