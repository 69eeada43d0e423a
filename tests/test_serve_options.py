"""Commands reject wrong policies, options that contradict each other, and an address that is in use."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from extender.cli.main import commands
from extender.policy import Policy, load_policy
from extender.sandbox import write_kubeconfig
from tests.eventually import HANG_SECONDS
from tests.process_starter import ROOT
from tests.process_worlds import free_port

cli = commands()


def test_policies_are_checked_offline(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("weights: {links: 3}")
    found = CliRunner().invoke(cli, ["policy", "check", str(ROOT / "manifests" / "base" / "policy.yaml"), str(bad)])
    assert found.exit_code == 1
    assert "good" in found.output
    assert "weights.links" in found.output
    shown = CliRunner().invoke(cli, ["policy", "show", str(ROOT / "manifests" / "base" / "policy.yaml")])
    assert load_policy(shown.output) == Policy(), "the manifest says what the default says"


WRONG_OPTIONS = [
    ("serve --tls-cert x", "--tls-key"), ("serve --client-ca x", "--tls-cert"),
    ("serve --tls-cert x --tls-key y --client-name x", "--client-ca"),
    ("serve --probes nowhere", "--probes"), ("serve --console nowhere", "--console"),
    ("serve --page-token-file x", "--console"), ("serve --page-host x", "--console"),
    ("console --listen nowhere", "--listen"), ("console --tls-key y", "--tls-cert"),
    ("console --policy-configmap x", "--policy-configmap"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), WRONG_OPTIONS)
def test_options_that_do_not_go_together(line: str, words: str) -> None:
    found = CliRunner().invoke(cli, line.split())
    assert words in str(found.exception), found.output


def test_a_token_file_that_cannot_be_named_is_told(tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path, "http://127.0.0.1:9")
    line = ["console", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", "--page-token-file", "x" * 5000]
    found = CliRunner().invoke(cli, line)
    assert str(found.exception).endswith("…: cannot be read: File name too long"), found.exception
    assert len(str(found.exception)) < 1100


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    kubeconfig = str(write_kubeconfig(tmp_path, "http://127.0.0.1:9"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [
            sys.executable,
            "-m",
            "extender",
            "serve",
            "--kubeconfig",
            kubeconfig,
            "--listen",
            f"127.0.0.1:{free_port()}",
            "--probes",
            address,
        ]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert ended.returncode == 2
    assert f"berth: --probes: cannot listen on {address}: Address already in use" in ended.stderr
