"""`berth` under a wall clock that jumps a day to either side: python -m tests.chaos_clock SEED serve ..."""

from __future__ import annotations

import datetime
import random
import sys
from types import SimpleNamespace
from typing import Self

from extender.cli.main import main
from extender.cluster import timestamps

_DAY_SECONDS = 86_400


class Jumping(datetime.datetime):
    """A wall clock that jumps at random between readings."""

    rng = random.Random()
    off = datetime.timedelta()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        if cls.rng.random() < 0.3:
            cls.off = datetime.timedelta(seconds=cls.rng.uniform(-_DAY_SECONDS, _DAY_SECONDS))
        return super().now(tz) + cls.off


if __name__ == "__main__":
    Jumping.rng = random.Random(int(sys.argv.pop(1)))
    # The command composes the process: it takes no wall clock, and a user has no use for one.
    assert vars(timestamps)["datetime"] is datetime, "the module that reads the wall clock"
    vars(timestamps)["datetime"] = SimpleNamespace(datetime=Jumping, UTC=datetime.UTC)
    main()
