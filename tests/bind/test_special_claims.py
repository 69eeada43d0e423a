"""The special claim when two replicas bind one pod, and when its deletion fails."""

from __future__ import annotations

import asyncio

import pytest

from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.applications import replicas
from tests.worlds.dra_worlds import CONDITIONAL, custom, extended, place, report
from tests.worlds.eventually import eventually
from tests.worlds.interceptions import NO, Holding, Once, Refusing
from tests.worlds.running_berth import berthing, claim, one_node, pod
from tests.worlds.tenant_worlds import forged, swept


async def test_two_replicas_that_bind_one_pod_leave_one_claim() -> None:
    """Each makes a claim; the first to name its claim in the pod's status binds, the other takes its own back."""
    async with replicas({"n1": "t4-4", "n2": "t4-4"}, extended("p")) as ((a, b), _):
        await asyncio.gather(a.filter("p"), b.filter("p"))
        both, named = asyncio.Event(), []

        async def meet(method: str, path: str) -> None:
            if method == "PATCH" and path.endswith("/pods/p/status") and not both.is_set():
                named.append(path)
                if len(named) == 2:
                    both.set()
                await both.wait()

        a.cluster.api.intercept = meet
        answers = await asyncio.gather(a.bind("p", "n1"), b.bind("p", "n2"))
        assert sorted(bool(answer) for answer in answers) == [False, True], answers
        (left,) = a.claims()
        assert a.pod("p")["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == left["metadata"]["name"]
        assert a.held() == [(a.node_of("p"), a.held()[0][1])]


async def test_the_status_of_a_pod_names_the_claim_of_the_first_replica_while_it_sends_its_binding() -> None:
    async with replicas({"n1": "t4-4", "n2": "t4-4"}, extended("p")) as ((a, b), (_, gate)):
        await asyncio.gather(a.filter("p"), b.filter("p"))
        gate.close()  # the first replica does not see the claim that the second has made
        writes, sent, go_on = 0, asyncio.Event(), asyncio.Event()

        async def slow(method: str, path: str) -> None:
            nonlocal writes
            if method == "PATCH" and path.endswith("/pods/p/status"):
                writes += 1
                if writes == 1:
                    await sent.wait()
                else:
                    gate.open()
            elif path.endswith("/binding"):
                sent.set()
                await go_on.wait()

        a.cluster.api.intercept = slow
        second = asyncio.create_task(a.bind("p", "n1"))
        await eventually(lambda: writes == 1)
        first = asyncio.create_task(b.bind("p", "n2"))
        answer = await second
        go_on.set()
        assert "of another process" in answer
        assert await first == ""
        (left,) = a.claims()
        assert a.pod("p")["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == left["metadata"]["name"]


async def test_a_claim_that_was_never_allocated_goes_once_its_pod_is_bound_with_another() -> None:
    """A process ended between the claim and its allocation, and the next one bound the pod at once."""
    async with berthing({"n1": "t4-4"}) as b:
        owners = {name: b.cluster.apply(extended(name))["metadata"]["uid"] for name in ("p", "waits")}
        names = {name: f"{name}-extended-resources-abcde" for name in owners}
        for name, uid in owners.items():
            left = claim(names[name])
            left["metadata"] |= forged(name, uid)
            b.cluster.apply(left)
        assert await place(b, "p") == ""
        await b.settled()
        orphans = await swept(b)
        used = b.pod("p")["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
        assert {one["metadata"]["name"] for one in b.claims()} == {used, names["waits"]}
        assert orphans.removed == 1


async def test_a_claim_whose_device_failed_goes_with_its_allocation() -> None:
    """The bind has announced the release of the allocation: that is no other process that uses the claim."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        resources = {"limits": {"deviceclass.resource.kubernetes.io/d.example.com": "1"}}
        b.cluster.apply(pod("p", containers=[{"name": "main", "image": "pause", "resources": resources}]))
        bind = asyncio.create_task(place(b, "p"))
        await eventually(lambda: b.held() or bind.done())
        (special,) = b.claims()
        report(b, special["metadata"]["name"], "Broken")
        assert "failed" in await bind
        assert b.claims() == []


async def test_a_claim_that_cannot_be_released_at_once_is_tried_again() -> None:
    async with one_node(extended("p")) as b:
        await b.filter("p")
        busy = Refusing("/status", ApiError(409, "Conflict", "the object has been modified"), 2, method="PATCH")

        def release_is_refused() -> None:
            b.cluster.api.intercept = busy

        b.cluster.api.intercept = Once("POST", "/binding", release_is_refused, NO)
        assert "no" in await b.bind("p", "n1")
        assert busy.count > 2
        assert b.claims() == []


async def test_a_replica_does_not_remove_the_claim_of_a_bind_that_another_one_runs() -> None:
    async with replicas({"n1": "t4-4"}, extended("p")) as ((a, b), _):
        await a.filter("p")
        a.cluster.api.intercept = hold = Holding("/binding")
        bind = asyncio.create_task(a.bind("p", "n1"))
        await eventually(lambda: bool(a.held()))
        await b.settled()
        assert "earlier attempt" in (await b.filter("p"))["FailedAndUnresolvableNodes"]["n1"]
        await b.app.service.orphans.sweep()
        hold.go_on.set()
        assert await bind == ""
        assert len(a.held()) == 1
        assert b.app.service.orphans.removed == 0


@pytest.mark.parametrize("recreated", [False, True])
async def test_a_pod_that_is_deleted_before_its_status_names_the_claim_is_not_bound(*, recreated: bool) -> None:
    """A new pod may have its name; the status of that pod must not name the claim."""
    async with berthing({"n1": "t4-4"}) as b:
        first = extended("p")
        first["metadata"]["finalizers"] = ["example.org/keeps-it"]
        await b.create(first)
        await b.filter("p")

        def delete() -> None:
            b.cluster.api.registry.delete(RESOURCES["", "pods"], ("default", "p"))
            if recreated:
                b.cluster.store.remove("pods", ("default", "p"))
                b.cluster.apply(extended("p"))

        b.cluster.api.intercept = Once("PATCH", "/pods/p/status", delete)
        b.cluster.api.intercept_reply = bindings = Refusing("/binding")
        assert "was bound, deleted or recreated" in await b.bind("p", "n1")
        assert not bindings.count
        assert not b.claims()
        assert not b.pod("p").get("status", {}).get("extendedResourceClaimStatus")


@pytest.mark.parametrize("step", ["/pods/p/status", "/binding"])
async def test_the_claim_of_a_running_bind_stays_though_a_filter_request_for_its_pod_comes(step: str) -> None:
    """Another kube-scheduler became the leader meanwhile."""
    async with one_node(extended("p")) as b:
        await b.filter("p")
        b.cluster.api.intercept = slow = Holding(step)
        bind = asyncio.create_task(b.bind("p", "n1"))
        await slow.sent.wait()
        await b.settled()
        assert "earlier attempt" in (await b.filter("p"))["FailedAndUnresolvableNodes"]["n1"]
        orphans = b.app.service.orphans
        await orphans.sweep()
        await eventually(lambda: not orphans.busy)
        slow.go_on.set()
        assert await bind == ""
        assert len(b.held()) == 1
