"""Writes docs/img/run.svg: the output of `make run` on a terminal of 84 columns."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

FILE = Path(__file__).parents[1] / "docs" / "img" / "run.svg"
WIDTH = 84  # columns


def main() -> None:
    command = [sys.executable, "-m", "extender", "run", "--once", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"]
    env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)  # noqa: S603 - its own command
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(done.stdout))
    console.save_svg(str(FILE), title="make run")


if __name__ == "__main__":
    main()
