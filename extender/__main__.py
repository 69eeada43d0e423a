"""The entry point of `berth` and `python -m extender`.

It imports the command line inside `main`, so that Ctrl-C does not print a traceback while modules load.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

_INTERRUPTED = 130  # as a shell reports a process that SIGINT ended


def main() -> None:
    """Run a command and exit; `extender.cli.main` says how."""
    try:
        if sys.stderr is None:  # the caller has closed it
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
        import_module("extender.cli.main").main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
