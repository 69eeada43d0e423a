"""`berth run` as a user runs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import yaml

from tests.commands import berth
from tests.eventually import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[1]


ONCE = ("run", "--once", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")


def test_every_example_lands_as_its_file_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "extender", *ONCE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train-eight" in done.stdout
    assert "✗" not in done.stdout
    # First fit is worse where the numbering misleads it: the table shows both.
    assert "247" in done.stdout
    assert " 30" in done.stdout
    # Each gang is in a clique of its own; first fit interleaves them.
    in_gangs = done.stdout.split("Gangs")[1]
    assert {line.split()[4] for line in in_gangs.splitlines() if "✓" in line} == {"nvl72-1", "nvl72-2"}
    assert in_gangs.count("2 cliques") == 2


def test_an_example_that_lands_elsewhere_fails_the_run(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "06-one-small.yaml").read_text().replace('"t4-4"', '"hgx-h100-8"')
    (tmp_path / "wrong.yaml").write_text(text)
    code, out, _ = berth([*ONCE, "--examples", str(tmp_path)])
    assert code == 1
    assert "expected on hgx-h100-8" in " ".join(out.split())


def test_a_gang_that_is_not_in_one_domain_fails_the_run(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "09-gangs.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.replace('"nvidia.com/gpu.clique"', '"topology.kubernetes.io/rack"'))
    code, out, _ = berth([*ONCE, "--examples", str(tmp_path)])
    assert code == 1
    assert re.search(r"✗ llm-a .* clique nvl72-[12], expected in one rack ", out)
    assert "✗ llm-a-0" not in out


def test_a_gang_without_room_waits_whole_where_first_fit_starts_a_part(tmp_path: Path) -> None:
    template, first, *_ = yaml.safe_load_all((ROOT / "examples" / "09-gangs.yaml").read_text())
    notes = first["metadata"]["annotations"]
    del notes["berth.dev/expect-domain"]
    notes |= {"berth.dev/group-min": "9", "berth.dev/expect-pending": "no domain has room for all pods of group llm-a"}
    pods = [{**first, "metadata": {**first["metadata"], "name": f"llm-a-{i}"}} for i in range(9)]
    (tmp_path / "nine.yaml").write_text(yaml.safe_dump_all([template, *pods]))
    code, out, _ = berth([*ONCE, "--examples", str(tmp_path)])
    assert code == 0, out
    assert re.search(r"✓ llm-a .* 0 of 9 pods .* 8 of 9 pods", out)


def test_an_expected_domain_without_a_group_is_an_error(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "06-one-small.yaml").read_text().replace("expect-machine", "expect-domain")
    (tmp_path / "wrong.yaml").write_text(text)
    code, _, errors = berth([*ONCE, "--examples", str(tmp_path)])
    assert code == 2
    assert "berth.dev/expect-domain]: the pod names no group" in errors


def test_a_narrow_terminal_cuts_no_name(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "09-gangs.yaml", tmp_path)
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (50, 80))
    command = [sys.executable, "-m", "extender", *ONCE, "--examples", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(command, cwd=ROOT, stdout=follower, env=env) as process:
        os.close(follower)
        shown = b""
        with suppress(OSError):  # the end of a pseudo-terminal
            while part := os.read(leader, 65_536):
                shown += part
    os.close(leader)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    assert process.returncode == 0
    assert max(map(len, lines)) <= 80
    assert sum("llm-b-3" in line and "gb200-nvl72-tray-" in line for line in lines) == 2


def test_a_folder_without_examples_is_an_error(tmp_path: Path) -> None:
    code, _, errors = berth([*ONCE, "--examples", str(tmp_path)])
    assert code == 2
    assert "holds no .yaml files" in errors
