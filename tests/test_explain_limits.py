"""The work of explanations has limits: per request, and per second for all open pages."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from extender.cache import ClusterCache
from extender.console import DecisionHistory
from extender.console.active_policy import ActivePolicy
from extender.console.explainer import Brief, Explainer
from extender.console.fleet_overview import FleetOverview
from extender.diagnosis import Scenario
from extender.policy import Policy
from extender.records import Attempted
from extender.scheduling import Attempt, Evaluator
from extender.wire import hypothetical_pods
from tests.running_berth import Berthing, berthing, claim, pod


class Ticking:
    """A clock that advances by `step` seconds with each reading."""

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


async def test_few_explanations_wait_and_further_requests_are_rejected() -> None:
    """Explanations of 2 s each for one user once delayed records and pages for minutes."""
    path = "/v1/explain/default/p"
    async with berthing({"n1": "hgx-h100-8"}) as b:
        b.console.explainer = explainer(b, Ticking(1e6), 1e9)
        b.cluster.apply(claim("c"))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        first = await b.client.get(path)
        assert first.json()["outcome"] == "fits", "the answer does not wait for the pause"
        waiting = {asyncio.ensure_future(b.client.get(path)) for _ in range(4)}
        waiting |= {asyncio.ensure_future(b.client.post("/v1/explain", json={"pod": "default/p"})) for _ in range(4)}
        refused: set[asyncio.Future[httpx.Response]] = set()
        while len(refused) < 2:
            found, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            refused |= found
        for one in refused:
            assert one.result().status_code == 429
            assert one.result().json() == {"error": "6 questions wait for their explanation already: try again"}
        assert (await b.client.get("/v1/fleet")).status_code == 200
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_questions_that_wait_are_answered() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        b.cluster.apply(claim("c"))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        replies = await asyncio.gather(*(b.client.get("/v1/explain/default/p") for _ in range(7)))
        assert [reply.json()["outcome"] for reply in replies] == ["fits"] * 7


class Counting(Explainer):
    """Counts its explanations."""

    def __init__(self, b: Berthing) -> None:
        super().__init__(b.console.cache, b.console.cluster.evaluator, DecisionHistory(), ActivePolicy(Policy()))
        self.count = 0

    def brief(self, *args: Any, **options: Any) -> Brief | None:
        self.count += 1
        return super().brief(*args, **options)


async def test_all_open_pages_share_the_explanations_of_one_second() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        history, counting = DecisionHistory(), Counting(b)
        for n in range(20):
            b.cluster.apply(claim(f"p{n}", 9))
            b.cluster.apply(pod(f"p{n}", f"p{n}"))
        await b.settled()
        for found in list(b.console.cache.store.pods.values()):
            history.record_attempt(Attempted(found.key, found.uid, Attempt("now", 0, 1, (("in use", 1),))))
        overview = FleetOverview(b.console.cache, history, counting, lambda: 5.0)
        pages = [overview.updates() for _ in range(10)]
        news = await asyncio.gather(*(anext(page) for page in pages))
        assert counting.count == 2, "the clock stands still: one round for ten pages"
        assert len(news) == 10, "every page gets the news"
