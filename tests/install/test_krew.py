"""The krew plugin: the manifest has what krew's documents ask for, and the archive what its program needs."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.worlds.manifests import script

URL = "https://downloads.example.com/berth/v1.2.3/"


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, Any]:
    """The manifest, made for a wheel."""
    (tmp_path / "berth-1.2.3-py3-none-any.whl").write_bytes(b"wheel")
    path = script("make_krew").write_plugin(tmp_path, URL)
    assert path.name == "berth.yaml", "krew wants the name of the plugin"
    return yaml.safe_load(path.read_text())


def test_the_manifest_has_the_fields_of_krew(plugin: dict[str, Any], tmp_path: Path) -> None:
    assert set(plugin) == {"apiVersion", "kind", "metadata", "spec"}
    assert (plugin["apiVersion"], plugin["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert plugin["metadata"] == {"name": "berth"}
    spec = plugin["spec"]
    assert set(spec) == {"version", "shortDescription", "description", "caveats", "platforms"}
    assert spec["version"] == "v1.2.3"
    assert len(spec["shortDescription"]) <= 50
    assert not spec["shortDescription"].endswith(".")
    (platform,) = spec["platforms"]
    assert set(platform) == {"selector", "uri", "sha256", "bin"}
    (expression,) = platform["selector"]["matchExpressions"]
    assert expression == {"key": "os", "operator": "In", "values": ["linux", "darwin"]}
    assert platform["uri"] == f"{URL}kubectl-berth-1.2.3.tar.gz"
    archive = tmp_path / "kubectl-berth-1.2.3.tar.gz"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as tar:
        modes = {member.name: member.mode for member in tar}
    assert set(modes) == {"kubectl-berth", "constraints.txt", "LICENSE", "berth-1.2.3-py3-none-any.whl"}
    assert modes[platform["bin"]] == 0o755


def test_the_same_wheel_gives_the_same_archive(plugin: dict[str, Any], tmp_path: Path) -> None:
    again = script("make_krew").write_plugin(tmp_path, URL)
    assert yaml.safe_load(again.read_text()) == plugin


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds 0 wheels where one is expected"):
        script("make_krew").write_plugin(tmp_path, URL)
    (tmp_path / "berth-1.2.3-py3-none-any.whl").write_bytes(b"wheel")
    with pytest.raises(SystemExit, match=re.escape("URL: must begin with https://, is 'http://x'")):
        script("make_krew").write_plugin(tmp_path, "http://x")


def test_the_program_installs_once_and_passes_its_arguments(plugin: dict[str, Any], tmp_path: Path) -> None:
    """krew calls it by a link. Its Python makes an environment whose pip and kubectl-berth say what they are told."""
    store, told = tmp_path / "store", tmp_path / "told"
    with tarfile.open(tmp_path / "kubectl-berth-1.2.3.tar.gz") as tar:
        tar.extractall(store, filter="data")
    python = tmp_path / "python"
    say = f'#!/bin/sh\necho "${{0##*/}} $*" >> {told}\n'
    python.write_text(
        say + 'test "$1" = -m || exit 0\nmkdir -p "$3/bin" "${3%/venv}/wheels"\n'
        f"for one in pip kubectl-berth; do printf '%s' '{say}' > \"$3/bin/$one\"; chmod +x \"$3/bin/$one\"; done\n"
    )
    python.chmod(0o755)
    link = tmp_path / "kubectl-berth"
    link.symlink_to(store / "kubectl-berth")
    env = {**os.environ, "PYTHON": str(python)}
    for words in (["nodes", "-o", "a b"], ["top"]):
        subprocess.run([str(link), *words], env=env, check=True, capture_output=True)
    lines = told.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["python", "python", "pip", "pip", "kubectl-berth", "kubectl-berth"]
    assert lines[-2:] == ["kubectl-berth nodes -o a b", "kubectl-berth top"]
    assert f"--find-links {store}/wheels {store}/berth-1.2.3-py3-none-any.whl" in lines[3]
