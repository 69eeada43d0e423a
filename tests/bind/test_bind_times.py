"""A bind ends before kube-scheduler's time-out: afterwards the node's CPU and memory may belong to other pods."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from extender.api.object_meta import ObjectKey
from extender.policy import Policy
from extender.sandbox import ApiError
from extender.serve.bind import BINDING_SECONDS, CLAIM_SECONDS
from extender.serve.binding_cycle import BindError, BindOutcomeUnknown
from extender.serve.undo import IN_FLIGHT_GRACE_SECONDS
from tests.worlds.dra_worlds import place
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.interceptions import Refusing
from tests.worlds.running_berth import Serving, berthing, binder_of, claim, pod

pytestmark = pytest.mark.loopback

SOON = Policy(binding_wait_seconds=1)
CONFIG = Path(__file__).parents[2] / "scheduler-config" / "berth-scheduler.yaml"
P = ObjectKey("default", "p")


class Hanging:
    """The API server does not answer the requests that end so. `asked` counts them."""

    def __init__(self, *endings: str) -> None:
        self.endings = endings
        self.asked = 0
        self.over = asyncio.Event()

    async def __call__(self, method: str, path: str) -> ApiError | None:
        if method == "GET" or not path.endswith(self.endings):
            return None
        self.asked += 1
        await self.over.wait()
        return ApiError(503, "ServiceUnavailable", "too late")


async def filtered(b: Serving) -> tuple[str, str]:
    """The UID of a pod with two claims, and its node."""
    await b.create(claim("c"), claim("d"), pod("p", "c", "d"))
    return b.pod("p")["metadata"]["uid"], (await b.filter("p"))["NodeNames"][0]


async def test_a_bind_that_cannot_write_its_claims_gives_up_and_undoes_its_writes() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4"}, SOON) as b:
        uid, node = await filtered(b)
        other = "n1" if node == "n2" else "n2"
        b.cluster.api.intercept = hanging = Hanging("/d/status", "/binding")
        binder = binder_of(b)
        calls = [binder.bind(P, uid, one) for one in (node, other)]
        answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), HANG_SECONDS)
        assert [type(answer) for answer in answers] == [BindError, BindError], answers
        assert {str(answer) for answer in answers} == {"gave up after 6 s, before kube-scheduler does"}
        hanging.over.set()
        b.cluster.api.intercept = None
        assert b.held() == []
        assert not b.node_of("p")
        assert await place(b, "p") == ""


async def test_a_bind_whose_binding_is_not_answered_gives_up_and_undoes_nothing() -> None:
    async with berthing({"n1": "t4-4"}, SOON) as b:
        uid, node = await filtered(b)
        b.cluster.api.intercept = hanging = Hanging("/binding")
        binder = binder_of(b)

        async def is_unknown() -> bool:
            """On a busy machine a call may end before its Binding."""
            with pytest.raises(BindError) as caught:
                await binder.bind(P, uid, node)
            return isinstance(caught.value, BindOutcomeUnknown)

        await eventually(is_unknown)
        assert hanging.asked == 1, "the Binding is not sent again"
        hanging.over.set()
        b.cluster.api.intercept = None
        assert len(b.held()) == 2
        assert await b.bind("p", node) == ""
        assert b.node_of("p") == node


async def test_a_bind_whose_binding_is_refused_until_its_time_is_over_undoes_its_writes() -> None:
    """The API server has stored nothing: too many requests."""
    async with berthing({"n1": "t4-4"}, SOON) as b:
        uid, node = await filtered(b)
        b.cluster.api.intercept = Refusing("/binding", ApiError(429, "TooManyRequests", "too many requests"))
        with pytest.raises(BindError) as caught:
            await binder_of(b).bind(P, uid, node)
        assert str(caught.value) == "binding pod default/p: too many requests"
        assert not b.held()


async def test_a_refused_binding_after_one_without_an_answer_is_known_by_the_read_between_them() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        uid, node = await filtered(b)
        faults = [ApiError(503, "ServiceUnavailable", "no"), ApiError(429, "TooManyRequests", "later")]

        async def fail(_: str, path: str) -> ApiError | None:
            return faults.pop(0) if path.endswith("/binding") and faults else None

        b.cluster.api.intercept = fail
        await binder_of(b).bind(P, uid, node)
        assert b.node_of("p") == node


def test_a_bind_ends_before_the_time_out_of_the_shipped_scheduler() -> None:
    (bind,) = (entry for entry in yaml.safe_load(CONFIG.read_text())["extenders"] if "bindVerb" in entry)
    seconds = Policy().binding_wait_seconds + CLAIM_SECONDS + BINDING_SECONDS
    left = float(bind["httpTimeout"].removesuffix("s")) - seconds
    assert left > IN_FLIGHT_GRACE_SECONDS, "time for the undo"
