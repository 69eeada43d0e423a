"""The work of explanations has limits: per request, and per second for all open pages."""

from __future__ import annotations

import asyncio
from typing import Any

from extender.cache import ClusterCache
from extender.console import DecisionHistory
from extender.console.active_policy import ActivePolicy
from extender.console.explainer import Explainer
from extender.diagnosis import Scenario
from extender.policy import Policy
from extender.scheduling import Evaluator
from extender.wire import hypothetical_pods
from tests.running_berth import Berthing, berthing, claim, pod


class Ticking:
    """A clock on which every reading takes a while."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def explainer(b: Berthing, clock: Ticking, work_seconds: float) -> Explainer:
    cache: ClusterCache = b.console.cache
    evaluator: Evaluator = b.console.cluster.evaluator
    policy = ActivePolicy(Policy())
    return Explainer(cache, evaluator, DecisionHistory(), policy, clock=clock, work_seconds=work_seconds)


def costly(count: int) -> list[Any]:
    objects = []
    for n in range(count):
        objects += [claim(f"c{n}", 1, f"device.driver == 'd{n}'"), pod(f"p{n}", f"c{n}")]
    return hypothetical_pods(objects)


async def test_the_pods_of_one_request_share_one_limit_of_work() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        clock = Ticking(0.1)
        found = await explainer(b, clock, 2.0).hypothetical_all(costly(20), Scenario(), None)
        outcomes = [one["outcome"] for one in found]
        assert len(outcomes) == 20
        assert outcomes[-1] == "unfinished", outcomes
        assert "ask again with fewer pods" in found[-1]["sentence"]
        assert clock.now < 4 * 2.0, "readings of the clock included, 20 pods take a fifth of 20 limits"


async def test_other_callers_have_their_turn_between_two_pods() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(other())
        found = await explainer(b, Ticking(0.0), 2.0).hypothetical_all(costly(5), Scenario(), None)
        task.cancel()
        assert [one["outcome"] for one in found] == ["refused"] * 5
        assert turns >= 4
