"""Binds of pods that cannot be bound any more: the binder sees that by itself, and repeats no write blindly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from extender.policy import Policy
from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.dra_worlds import CLAIMS
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.interceptions import CUT, Once, Refusing
from tests.worlds.running_berth import Berthing, berthing, claim, pod
from tests.worlds.tenant_worlds import allocated, patch

pytestmark = pytest.mark.loopback

PODS = RESOURCES["", "pods"]
P = ("default", "p")


@asynccontextmanager
async def pod_to_bind() -> AsyncIterator[tuple[Berthing, list[str]]]:
    """Berth with the pod p and its claim, and the paths of the writes from now on."""
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        writes = list[str]()

        async def note(method: str, path: str) -> None:
            if method != "GET":
                writes.append(path)

        b.cluster.apply(claim("c"))
        obj = pod("p", "c")
        obj["metadata"]["finalizers"] = ["example.org/keeps-it"]
        await b.create(obj)
        b.cluster.api.intercept = note
        yield b, writes


def delete(b: Berthing) -> None:
    """The pod terminates from now on."""
    b.cluster.api.registry.delete(PODS, P)


def recreate(b: Berthing) -> None:
    b.cluster.store.remove("pods", P)
    b.cluster.apply(pod("p", "c"))


def recreate_and_bind(b: Berthing) -> None:
    recreate(b)
    b.cluster.api.registry.bind(P, {"target": {"name": "n1"}})


def remove(b: Berthing) -> None:
    b.cluster.store.remove("pods", P)


def bind_elsewhere(b: Berthing) -> None:
    b.cluster.api.registry.bind(P, {"target": {"name": "n2"}})


LOST = "binding pod default/p: the connection was cut"


@pytest.mark.parametrize(
    ("meanwhile", "answer"),
    [
        (delete, LOST),
        (recreate, LOST),
        (recreate_and_bind, LOST),
        (bind_elsewhere, LOST),
        (remove, "pod default/p does not exist any more"),
    ],
)
async def test_a_binding_is_not_sent_again_once_the_pod_cannot_be_bound(
    meanwhile: Callable[[Berthing], None], answer: str
) -> None:
    """The API server did not store the first one, and the binder reads the pod."""
    async with pod_to_bind() as (b, _):
        b.cluster.api.intercept = cut = Once("POST", "/binding", lambda: meanwhile(b), CUT)
        b.cluster.api.intercept_reply = stored = Refusing("/binding")
        assert await b.bind("p", "n1") == answer
        assert (cut.done, stored.count) == (True, 0)


async def test_a_binding_that_the_api_server_answers_with_conflict_is_not_sent_again() -> None:
    async with pod_to_bind() as (b, _):
        conflict = Refusing("/binding", ApiError(409, "Conflict", "the pod has scheduling gates"))
        b.cluster.api.intercept = conflict
        assert "the pod has scheduling gates" in await b.bind("p", "n1")
        assert conflict.count == 1
        assert not b.held()


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_bind_succeeds_if_the_pod_has_just_got_the_node(attempt: int) -> None:
    """By another process, or by the first Binding, which was stored late. So the API server answers with Conflict."""
    async with pod_to_bind() as (b, _):
        sent = 0

        async def bound_before(_: str, path: str) -> ApiError | None:
            nonlocal sent
            if not path.endswith("/binding"):
                return None
            sent += 1
            if sent < attempt:
                return CUT
            b.cluster.api.registry.bind(P, {"target": {"name": "n1"}})
            return None

        b.cluster.api.intercept = bound_before
        assert await b.bind("p", "n1") == ""
        assert sent == attempt
        assert len(b.held()) == 1


async def test_the_bind_of_a_pod_that_terminates_writes_nothing() -> None:
    async with pod_to_bind() as (b, writes):
        delete(b)
        await b.settled()
        assert await b.bind("p", "n1") == "pod default/p is being deleted"
        assert not writes


async def test_a_bind_request_whose_name_and_uid_belong_to_different_pods_writes_nothing() -> None:
    async with pod_to_bind() as (b, writes):
        await b.create(pod("q"))
        uid, other = [b.pod(name)["metadata"]["uid"] for name in ("p", "q")]
        assert await b.bind("q", "n1", uid=uid) == f"pod default/q was recreated: its UID is {other}, not {uid}"
        assert not writes


async def test_the_bind_of_a_pod_that_has_just_got_a_node_writes_nothing() -> None:
    """Another process bound it; Berth knows no pod with a node."""
    async with pod_to_bind() as (b, writes):
        bind_elsewhere(b)
        await b.settled()
        assert await b.bind("p", "n1") == "pod default/p is bound to node n2 already"
        assert await b.bind("p", "n2") == ""
        assert not writes


async def test_a_pod_is_not_bound_to_a_node_without_the_devices_of_its_claim() -> None:
    """The claim was allocated after kube-scheduler chose the node."""
    async with pod_to_bind() as (b, writes):
        assert await b.bind("p", "n1") == ""
        await b.create(pod("q", "c"))
        writes.clear()
        assert await b.bind("q", "n2") == "node n2: claim is allocated for other nodes"
        assert not writes


@pytest.mark.parametrize("path", ["/resourceclaims/c", "/resourceclaims/c/status"])
@pytest.mark.parametrize(("device", "pods", "writer"), [("gpu-3", (), ""), ("gpu-0", ("p",), "berth-other")])
async def test_a_claim_that_another_process_allocates_meanwhile_keeps_that_allocation(
    device: str, pods: tuple[str, ...], writer: str, path: str
) -> None:
    """The API server answers the write with Conflict. With another process of Berth, which binds the same pod, all but
    the allocator is as this bind wanted to write it; that process may take it back."""
    async with pod_to_bind() as (b, _):
        b.cluster.api.intercept = Once("PATCH", path, lambda: allocated(b, "c", device, *pods, writer=writer))
        assert await b.bind("p", "n1") == "claim default/c was allocated elsewhere in the meantime"
        assert b.held() == [("n1", device)]
        assert not b.node_of("p")


async def test_a_claim_that_is_deleted_meanwhile_is_not_allocated() -> None:
    async with pod_to_bind() as (b, writes):
        patch(b, "c", {"metadata": {"finalizers": ["example.org/keeps-it"]}})
        await b.settled()

        async def delete(method: str, path: str) -> None:
            if method == "PATCH":
                writes.append(path)
                if len(writes) == 1:
                    b.cluster.api.registry.delete(CLAIMS, ("default", "c"))

        b.cluster.api.intercept = delete
        assert await b.bind("p", "n1") == "claim default/c got deleted in the meantime"
        assert len(writes) == 1


async def test_a_bind_goes_on_at_once_when_another_that_writes_the_claim_fails() -> None:
    """No event tells it: the first write of the other bind is refused. It would look again after more time than a bind
    has."""
    async with berthing({"n1": "t4-4"}, Policy(binding_wait_seconds=10), bookmark_seconds=HANG_SECONDS) as b:
        await b.create(claim("c"), pod("p", "c"), pod("q", "c"))
        go_on = asyncio.Event()

        async def refuse(method: str, path: str) -> ApiError | None:
            if method != "PATCH":
                return None
            await go_on.wait()
            b.cluster.api.intercept = None
            return ApiError(403, "Forbidden", "no")

        b.cluster.api.intercept = refuse
        first = asyncio.create_task(b.bind("p", "n1"))
        await eventually(lambda: b.app.service.cache.reservations.in_flight)
        second = asyncio.create_task(b.bind("q", "n1"))
        await eventually(lambda: len(b.app.service.binder.running) == 2)
        go_on.set()
        assert "no" in await first
        assert await second == ""
