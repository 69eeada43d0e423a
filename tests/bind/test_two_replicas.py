"""Two replicas, two schedulers and another allocator, with faults by seed. BERTH_SEEDS=first:last runs others."""

from __future__ import annotations

import os

import pytest

from tests.worlds.two_replicas import run

FIRST, LAST = (int(part) for part in os.environ.get("BERTH_SEEDS", "1:7").split(":"))


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_no_device_is_used_twice_and_nothing_is_left(seed: int) -> None:
    world = run(seed)
    assert not world.checker.wrong, "\n".join(world.checker.wrong[:5])
    assert world.checker.bound
