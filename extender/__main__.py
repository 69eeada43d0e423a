"""The entry point of `berth` and `python -m extender`.

It imports the command line inside `main`. Until then, Ctrl-C ends the process without a traceback: for an exception
inside `__set_name__`, Python 3.11 raises RuntimeError.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

_INTERRUPTED = 130  # as a shell reports a process that SIGINT ended


def main() -> None:
    """Run a command and exit; `extender.cli.main` says how."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command runs
    try:
        if sys.stderr is None:  # the caller has closed it
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
        gc.disable()  # while modules load: a collection finds nothing then, and all take a tenth of the start
        import_module("extender.cli.main").main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
