"""`berth serve` under a wall clock that jumps a day to either side.

python -m tests.worlds.chaos_clock SEED serve --listen HOST:PORT --kubeconfig FILE
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import random
from pathlib import Path

import uvloop

from extender.cli.logs import set_up_logging
from extender.cli.options import parse_listen
from extender.cluster import load_credentials
from extender.entry.serve_process import Listen, run

_DAY_SECONDS = 86_400


class JumpingClock:
    """A wall clock that jumps at random between readings."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._off = datetime.timedelta()

    def __call__(self) -> datetime.datetime:
        if self._rng.random() < 0.3:
            self._off = datetime.timedelta(seconds=self._rng.uniform(-_DAY_SECONDS, _DAY_SECONDS))
        return datetime.datetime.now(datetime.UTC) + self._off


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("--listen", type=parse_listen, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    found = parser.parse_args()
    set_up_logging()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        serving = run(load_credentials(found.kubeconfig), Listen(found.listen), wall_clock=JumpingClock(found.seed))
        runner.run(serving)


if __name__ == "__main__":
    main()
