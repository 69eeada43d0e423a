"""A pass of nominations over the queue leaves the time to the calls of kube-scheduler."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Coroutine, Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from benchmarks.fleet import Fleet
from extender.cluster import Writer
from extender.extension.nominator import Nominator
from extender.model import PodClaim
from extender.policy import Policy
from extender.runtime import Rebuilds
from tests.skipping_loop import in_virtual_time


def test_a_pass_over_pods_that_get_no_nomination_leaves_the_time_to_calls() -> None:
    """With 512 nominations, a thousand pods that lacked one of 64 claims took 26 ms of each pass, one every 20 ms."""
    assert longest_step_of_a_pass(pods=300) <= 2 * longest_step_of_a_pass(pods=30)


def longest_step_of_a_pass(pods: int) -> int:
    """The most calls of Python functions between two moments in which the nominator lets other tasks run."""
    fleet, calls, longest = Fleet("mixed"), 0, 0
    fleet.fill(2, 0.5)
    for number in range(pods):
        waits = fleet.pod(f"p{number}", 0, 1)
        fleet.cache.apply_pod(waits.uid, replace(waits, claims=(*waits.claims, PodClaim("other", "missing"))))
    fleet.filter_service.use_policy(Policy(nominate=512))
    nominator = Nominator(fleet.cache, fleet.filter_service, Writer.__new__(Writer), lambda: fleet.now)
    nominator.filtering(next(iter(fleet.cache.store.pods.values())), list(fleet.devices))

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal calls
        calls += event == "call"

    @types.coroutine
    def in_steps(task: Coroutine[Any, Any, None]) -> Generator[Any, None, None]:
        nonlocal calls, longest
        for waits_for in task.__await__():
            longest, calls = max(longest, calls), 0
            yield waits_for

    async def a_pass() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await in_steps(nominator.run(Rebuilds(fleet.cache).done))

    sys.setprofile(count)
    try:
        in_virtual_time(a_pass())
    finally:
        sys.setprofile(None)
    return longest
