"""The work of explanations has limits: per request, and per second for all open pages."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.api.fields import Json
from extender.api.pods import MAX_CLAIMS
from extender.console import Questions, TooManyQuestions, WhatIf
from extender.manifests import Hypothetical, hypothetical
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import Counting, overview_of, questions, refused
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback


class Ticking:
    """A clock that advances by `step` seconds with each reading."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def asking(b: Berthing, clock: Callable[[], float]) -> Questions:
    return questions(b, Counting(b, clock))


def costly(count: int) -> Hypothetical:
    objects: list[Any] = []
    for n in range(count):
        objects += [claim(f"c{n}", 1, f"device.driver == 'd{n}'"), pod(f"p{n}", f"c{n}")]
    return hypothetical(objects)


async def test_the_pods_of_one_request_share_one_limit_of_work() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        clock = Ticking(0.1)
        found = await asking(b, clock).hypothetical(costly(20), WhatIf())
        outcomes = [one["outcome"] for one in found]
        assert len(outcomes) == 20
        assert outcomes[-1] == "unfinished", outcomes
        assert "ask again with fewer pods" in found[-1]["sentence"]
        assert clock.now < 4 * 2.0, "readings of the clock included, 20 pods take a fifth of 20 limits"


async def test_new_groups_and_the_making_of_their_pods_share_the_limit_of_work() -> None:
    notes = {"berth.dev/group-min": "400"}
    template = {"metadata": {"annotations": notes}, "spec": {"containers": [{"name": "c"}]}}
    jobs = [
        {"kind": "Job", "metadata": {"name": f"j{i}"}, "spec": {"parallelism": 10**9, "template": template}}
        for i in range(3)
    ]
    async with berthing({"n1": "hgx-h100-8"}) as b:
        clock = Ticking(0.1)
        found = await asking(b, clock).hypothetical(hypothetical(jobs), WhatIf())
    groups = [one for one in found if "group" in one]
    assert [one["outcome"] for one in groups] == ["unfinished"] * 3
    assert "ask again with fewer groups or pods" in groups[0]["sentence"]
    assert clock.now < 2 * 2.0, "readings of the clock included"


def objects(count: int) -> list[Any]:
    return [claim("c"), *(pod(f"p{n}", "c") for n in range(count))]


def named(**metadata: str) -> list[Any]:
    return [pod("p", "c") | {"metadata": metadata}]


TOO_MANY_PODS = "objects: they make more than 200 pods, the limit of one question"
REFUSED: list[tuple[Json, str]] = [
    # 3,500 pods in 755 KB once got an answer of 9.3 MB, which kept the event loop busy for 0.4 s.
    ({"objects": objects(201)}, TOO_MANY_PODS),
    # No pod beyond the limit is made: 38,000 pods once took a second.
    ({"objects": [*objects(200), pod("broken", resourceClaims=3)]}, TOO_MANY_PODS),
    ({"objects": objects(1), "free": ["n1"] * 1001}, "free"),
    ({"objects": objects(1), "without": ["n1"] * 1001}, "without"),
    ({"objects": objects(1), "narrate": "n" * 100_000}, "narrate"),
    # The answer to a job of 200 pods with a name of 100 KB once had 20 MB.
    ({"objects": named(name="p" * 254)}, "has more than 253 characters"),
    ({"objects": named(name="p", namespace="n" * 254)}, "has more than 253 characters"),
    # 500,000 numbers in place of objects once had as many errors, which took 450 MiB: the console has 512.
    ({"objects": [1] * 10_000}, "objects: must have at most 5000 items"),
]


async def test_a_question_is_limited() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        most = await b.client.post("/v1/explain", json={"objects": objects(200)})
        assert (most.status_code, len(most.json())) == (200, 200)
        for question, error in REFUSED:
            reply = await b.client.post("/v1/explain", json=question)
            assert reply.status_code == 400, error
            assert error in reply.json()["error"]
            assert len(reply.json()["error"]) < 400


class HeldInChild:
    """A clock by which the event loop has no time for an explanation, and which holds a child until `go` exists.

    The child makes the file `held`.
    """

    def __init__(self, folder: Path) -> None:
        self.now, self.held, self.go, self._process = 0.0, folder / "held", folder / "go", os.getpid()

    def __call__(self) -> float:
        if os.getpid() == self._process:
            self.now += 1.0
        elif not self.held.exists():
            self.held.touch()
            while not self.go.exists():
                time.sleep(0.01)
        return self.now


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/explain/default/p", None),
        ("GET", "/v1/explain/group/default/g", None),
        ("POST", "/v1/explain", {"pod": "default/p"}),
        ("POST", "/v1/explain", {"objects": [claim("d"), pod("q", "d")]}),
        ("POST", "/v1/explain", {"pod": "default/p", "policy": "evaluation_seconds: 1"}),
    ],
)
async def test_probes_and_pages_are_served_during_a_costly_explanation(
    method: str, path: str, body: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An explanation once kept the event loop busy for 2 s."""
    monkeypatch.setattr("extender.console.questions.WORK_SECONDS", 1e9)
    async with berthing({"n1": "hgx-h100-8"}) as b:
        clock = HeldInChild(tmp_path)
        b.console.questions = asking(b, clock)
        b.cluster.apply(claim("c"))
        b.cluster.apply(pod("p", "c"))
        b.cluster.apply(pod("m", "c", annotations={"berth.dev/group": "g", "berth.dev/group-min": "2"}))
        b.cluster.apply(pod("other", "c"))
        await b.settled()
        asked = asyncio.ensure_future(b.client.request(method, path, json=body))
        await eventually(clock.held.exists, lambda: asked.result().text if asked.done() else "the child")
        await refused(b, "other", "the watch goes on")
        for other in ("/livez", "/v1/fleet", "/console/metrics"):
            assert (await b.client.get(other)).status_code == 200
        assert not asked.done(), "the child waits"
        clock.go.touch()
        found = (await asked).json()
        (one,) = found if isinstance(found, list) else [found]
        assert one["outcome"] in ("fits", "waiting"), one


async def test_few_explanations_wait_and_further_requests_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explanations of 2 s each for one user once delayed pages for minutes."""
    monkeypatch.setattr("extender.console.questions.WORK_SECONDS", 1e9)
    path = "/v1/explain/default/p"
    async with berthing({"n1": "hgx-h100-8"}) as b:
        b.console.questions = asking(b, Ticking(1e6))
        await b.create(claim("c"), pod("p", "c"))
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


async def test_pods_that_nothing_remembers_are_read_one_at_a_time() -> None:
    """A pod may have 1.5 MB, and the console reads it from the API server for each question."""
    async with berthing({"n1": "t4-4"}) as b:
        reads = most = 0

        async def count(method: str, path: str) -> None:
            nonlocal reads, most
            if method == "GET" and "/pods/" in path:
                reads += 1
                most = max(most, reads)
                await asyncio.sleep(0.01)  # a moment in which others could read, too
                reads -= 1

        b.cluster.api.intercept = count
        paths = [f"/v1/explain/default/unknown-{number}" for number in range(6)]
        found = await asyncio.gather(*map(b.client.get, paths))
    assert [one.status_code for one in found] == [404] * 6
    assert most == 1


async def test_one_question_is_read_at_a_time_and_few_wait_for_it() -> None:
    """30 bodies of 1 MiB once took 1.2 GB in 32 threads, and kept a probe waiting for 10 s."""
    async with berthing({"n1": "t4-4"}) as b:
        asked = b.console.questions
        go, running, most = threading.Event(), list[int](), list[int]()

        def parse() -> str:
            running.append(1)
            most.append(len(running))
            go.wait()
            running.pop()
            return "read"

        reads = {asyncio.ensure_future(asked.read(parse)) for _ in range(8)}
        (refused,), waiting = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(TooManyQuestions, match="6 questions wait"):
            refused.result()
        go.set()
        assert await asyncio.gather(*waiting) == ["read"] * 7
        assert set(most) == {1}
        assert await asked.read(parse) == "read"


async def test_all_open_pages_share_the_explanations_of_one_second() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        counting = Counting(b)
        for n in range(20):
            b.cluster.apply(claim(f"p{n}", 9))
            b.cluster.apply(pod(f"p{n}", f"p{n}"))
        await b.settled()
        for n in range(20):
            await refused(b, f"p{n}", "in use")
        overview = overview_of(b, counting)
        cursor = overview.fleet()["cursor"]
        news = [overview.fleet(cursor) for _ in range(10)]
        assert counting.count == 2, "the clock stands still: one round for ten pages"
        assert len(news) == 10, "every page gets the news"


def test_the_claims_of_a_pod_with_too_many_are_not_made() -> None:
    """12,000 entries were each compared with 9,000 claims: six such questions kept the console busy for minutes."""
    names = [f"c{i}" for i in range(MAX_CLAIMS + 1)]
    claims = [claim(name) for name in names]
    at_limit, above = hypothetical([*claims, pod("p", *names[:-1]), pod("q", *names)]).pods
    assert [one.key.name for one in at_limit.claims] == names[:-1]
    assert (above.claims, len(above.pod.claims)) == ((), MAX_CLAIMS + 1)


async def test_the_answer_says_that_the_pod_has_too_many_claims() -> None:
    names = [f"c{i}" for i in range(MAX_CLAIMS + 1)]
    async with berthing({"n1": "hgx-h100-8"}) as b:
        reply = await b.client.post("/v1/explain", json={"objects": [claim("c0"), pod("p", *names)]})
        (found,) = reply.json()
        assert found["outcome"] == "blocked"
        assert "pod has more than 64 claims" in found["sentence"]


def test_the_claims_of_a_template_share_one_spec_however_large_it_is() -> None:
    """A question with a template of 430 KB and 12,000 claims of it once decoded the template for each claim."""
    large = [{"opaque": {"driver": "d", "parameters": {"text": "x" * 4_500_000}}}]
    spec = {"devices": {"requests": claim("c")["spec"]["devices"]["requests"], "config": large}}
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": {"spec": spec}}
    entries = [{"name": name, "resourceClaimTemplateName": "t"} for name in ("a", "b")]
    (found,) = hypothetical([template, pod("p", resourceClaims=entries)]).pods
    first, second = found.claims
    assert [one.key.name for one in found.claims] == ["p-a", "p-b"]
    assert {one.owner_pod_uid for one in found.claims} == {found.pod.uid}
    assert first.uid != second.uid
    assert first.spec is second.spec
