"""A bind whose caller is gone goes on. One that a bug cancels takes nothing back, as if the process had been killed.

The tests say what gives its claim back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from extender.api.object_meta import ObjectKey
from extender.base.berth_errors import BerthError
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.interceptions import Holding
from tests.worlds.running_berth import Berthing, berthing, bug_after, claim, one_node, pod

pytestmark = pytest.mark.loopback


async def bound_again(b: Berthing) -> None:
    assert (await b.filter("p"))["NodeNames"] == ["n1"]
    assert await b.bind("p", "n1") == ""
    assert len(b.held()) == 1


async def deleted(b: Berthing) -> None:
    """kube-controller-manager deallocates the claim: the pod is its only consumer."""
    b.cluster.api.registry.delete(RESOURCES["", "pods"], ("default", "p"))
    await eventually(lambda: not b.held())


async def filtered_without_the_node(b: Berthing) -> None:
    """kube-scheduler does not offer the node any more."""
    assert not (await b.filter("p", ["n2", "n3"]))["NodeNames"]
    await eventually(lambda: not b.held())
    await b.settled()
    assert (await b.filter("p", ["n2", "n3"]))["NodeNames"]


@pytest.mark.parametrize("then", [bound_again, deleted, filtered_without_the_node])
async def test_the_claim_of_a_cancelled_bind_is_used_or_given_back(then: Callable[[Berthing], Awaitable[None]]) -> None:
    async with berthing(dict.fromkeys(("n1", "n2", "n3"), "t4-4")) as b:
        await b.create(claim("c"), pod("p", "c"))
        with pytest.raises(BerthError, match="it was cancelled"):
            await bug_after("write claims", b, "p", "n1", asyncio.CancelledError())
        cache = b.app.service.cache
        assert len(b.held()) == 1
        assert not cache.reservations.by_claim, "nothing is reserved in memory"
        await b.settled()
        await then(b)


async def test_a_bind_goes_on_if_all_who_asked_for_it_hang_up() -> None:
    """kube-scheduler closes the connection at its time-out."""
    async with one_node(claim("c"), pod("p", "c")) as b:
        b.cluster.api.intercept = slow = Holding("resourceclaims/c/status", "PATCH")
        uid, service = b.pod("p")["metadata"]["uid"], b.app.service
        callers = [asyncio.create_task(service.bind(ObjectKey("default", "p"), uid, "n1")) for _ in range(2)]
        await slow.sent.wait()
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        slow.go_on.set()
        await eventually(lambda: b.node_of("p") == "n1")
        assert service.supervisor.failures["bind"] == 0
