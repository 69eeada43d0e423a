"""Hypothesis: a failure must repeat, and a busy machine must not make one. And what all tests would pay for."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from structlog.dev import ConsoleRenderer, plain_traceback

from extender.entry.listening import EventLoop
from tests.worlds.skipping_loop import EarlyLoop, LoopbackLoop

# BERTH_HYPOTHESIS=long: random examples, 150 times as many (`make properties`).
_SLOW = [HealthCheck.too_slow]  # it measures seconds
settings.register_profile(
    "test", deadline=None, derandomize=True, max_examples=40, suppress_health_check=_SLOW, print_blob=True
)
settings.register_profile("long", deadline=None, max_examples=6000, suppress_health_check=_SLOW, print_blob=True)
settings.load_profile(os.environ.get("BERTH_HYPOTHESIS", "test"))

ConsoleRenderer.get_active().exception_formatter = plain_traceback  # rich ones of failures that tests make take 10 ms
gc.disable()  # until all tests are collected


def pytest_collection_finish() -> None:
    """A full collection need not visit the modules and thousands of tests: that would take a tenth of all time."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def replays_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays in this process: a fork of one with all tests takes longer than what most of them replay."""
    from tests.worlds.replay_worlds import in_turn

    for module in ("extender.replay.replay", "extender.tune.tuning"):
        monkeypatch.setattr(f"{module}.measured_side_by_side", in_turn)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests with the mark `loopback` do not wait for timers. Those with `early_timers` run twice."""
    if item.get_closest_marker("early_timers") is not None:
        return {"uvloop": EventLoop, "early": EarlyLoop}
    if item.get_closest_marker("loopback") is not None:
        return {"loopback": LoopbackLoop}
    return {"real": asyncio.new_event_loop}
