"""Writes docs/img/run.svg: the output of `make run` on a terminal of 84 columns.

tests/cli/test_run.py says when the output has changed: the same output makes the same bytes.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "img" / "run.svg"
WIDTH = 84  # columns
_CLIQUE = re.compile(r"^([^│\n]*│[^│\n]*nvl72-)([12])\b", re.MULTILINE)  # in the column of Berth
_LATE = re.compile(r"^No node for .*\n", re.MULTILINE)  # a busy machine: another attempt places the pods


def printed() -> str:
    """What `make run` prints on such a terminal, with colours."""
    command = [sys.executable, "-m", "extender", "run", "--once", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"]
    terminal = {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color", "COLORTERM": ""}
    env = {**os.environ, **terminal}
    return subprocess.check_output(command, cwd=ROOT, env=env, text=True)  # noqa: S603 - its own command


def picture(text: str) -> str:
    """The output as SVG. The first gang is in the first of two equal cliques, whichever gang was complete first."""
    text = _LATE.sub("", text)
    found = _CLIQUE.search(text)
    if found is not None and found[2] == "2":
        text = _CLIQUE.sub(lambda one: f"{one[1]}{3 - int(one[2])}", text)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(text))
    return console.export_svg(title="make run")


if __name__ == "__main__":
    FILE.write_text(picture(printed()))
