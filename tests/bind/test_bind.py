"""Binding with each fault that can happen, over real HTTP against the sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import FINALIZER
from extender.policy import Policy
from extender.sandbox import ApiError
from tests.worlds.applications import replicas
from tests.worlds.eventually import eventually
from tests.worlds.interceptions import CUT, NO, Once, Refusing
from tests.worlds.running_berth import Serving, berthing, claim, jobs, one_node, pod
from tests.worlds.tenant_worlds import allocated, patch, stored

pytestmark = pytest.mark.loopback

NODES = {"n1": "a100-pcie-8-bridged", "n2": "t4-4"}


async def scheduled(b: Serving, *claims: str, count: int = 1) -> str:
    """Create the pod p with claims for so many GPUs each, and filter it; returns the first node of the reply."""
    await b.create(*(claim(name, count) for name in claims), pod("p", *claims))
    return (await b.filter("p"))["NodeNames"][0]


async def test_writes_everything_in_order() -> None:
    """Finalizer, allocation with timestamp, reservation, then the Binding with its annotation."""
    async with berthing(NODES) as b:
        node = await scheduled(b, "c", count=2)
        assert await b.bind("p", node) == ""
        (found,) = b.claims()
        assert FINALIZER in found["metadata"]["finalizers"]
        allocation = found["status"]["allocation"]
        assert allocation["allocationTimestamp"].endswith("Z")
        assert allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] == [node]
        assert [r["uid"] for r in found["status"]["reservedFor"]] == [b.pod("p")["metadata"]["uid"]]
        assert b.node_of("p") == node
        assert "GB/s" in b.pod("p")["metadata"]["annotations"]["berth.dev/decision"]


async def test_several_claims_of_one_pod() -> None:
    """All claims of a pod are allocated together, on different devices."""
    async with berthing(NODES) as b:
        assert await b.bind("p", await scheduled(b, "c", "d", count=2)) == ""
        assert len(set(b.held())) == 4


async def test_bind_twice_is_success() -> None:
    """The scheduler repeats a bind whose reply it lost."""
    async with berthing(NODES) as b:
        node = await scheduled(b, "c")
        assert list(await asyncio.gather(b.bind("p", node), b.bind("p", node))) == ["", ""]
        assert await b.bind("p", node) == ""
        assert "already" in await b.bind("p", "n1" if node == "n2" else "n2")
        assert len(b.held()) == 1


async def test_the_watch_may_be_behind_the_filter_request() -> None:
    """kube-scheduler saw the claim that was made from a template, and asks to bind before Berth's watch shows the pod
    so."""
    async with berthing(NODES) as b:
        template = {"spec": claim("t")["spec"]}
        b.cluster.apply(
            {"kind": "ResourceClaimTemplate", "metadata": {"name": "t", "namespace": "default"}, "spec": template}
        )
        await b.create(pod("p", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}]))
        node, store = (await b.filter("p"))["NodeNames"][0], b.app.service.cache.store
        uid = b.pod("p")["metadata"]["uid"]
        store.pods[uid] = replace(store.pods[uid], claim_statuses={})
        assert await b.bind("p", node) == ""
        assert b.node_of("p") == node
        assert len(b.held()) == 1


COSTLY = "{0}.all(a, {0}.all(b, a <= b))".format(f"[{','.join('1' * 60)}]")


async def test_a_bind_of_an_unknown_shape_that_takes_long_fails_and_succeeds_later() -> None:
    """Attack: stall scheduling with claims that become costly between filter and bind."""
    async with berthing(NODES, Policy(evaluation_seconds=0.005)) as b:
        texts = [f'device.driver != "{number}" && {COSTLY}' for number in range(8)]
        await b.create(claim("c", selectors=[{"cel": {"expression": text}} for text in texts]), pod("p", "c"))
        assert "continues in the queue" in await b.bind("p", "n1")
        assert not b.held()
        evaluations = b.app.service.evaluations
        await eventually(lambda: not evaluations.waiting, "the queue has evaluated it")
        assert await b.bind("p", "n1") == ""


async def test_shared_claim_is_only_reserved() -> None:
    """The second pod on a claim goes to its node, and the allocation stays byte for byte."""
    async with berthing(NODES) as b:
        node = await scheduled(b, "c")
        assert await b.bind("p", node) == ""
        before = b.claims()[0]["status"]["allocation"]
        await b.create(pod("q", "c"))
        assert (await b.filter("q"))["NodeNames"] == [node]
        other = "n1" if node == "n2" else "n2"
        assert (await b.filter("q", [other]))["FailedAndUnresolvableNodes"] == {
            other: "claim is allocated for other nodes"
        }
        assert await b.bind("q", node) == ""
        assert b.claims()[0]["status"]["allocation"] == before
        assert len(b.claims()[0]["status"]["reservedFor"]) == 2


async def test_recreated_pod_is_refused_and_nothing_is_written() -> None:
    async with berthing(NODES) as b:
        node = await scheduled(b, "c")
        assert "recreated" in await b.bind("p", node, uid="00000000-0000-0000-0000-000000000000")
        assert b.held() == []


async def test_failed_binding_is_released() -> None:
    """A Binding that the server rejects leaves no allocation and no reservation."""
    async with berthing(NODES) as b:
        node = await scheduled(b, "c")
        b.cluster.api.intercept = Refusing("/binding")
        assert "no" in await b.bind("p", node)
        assert b.held() == []
        assert not b.claims()[0]["status"].get("reservedFor")
        b.cluster.api.intercept = None
        await b.settled()
        node = (await b.filter("p"))["NodeNames"][0]
        assert await b.bind("p", node) == ""


@pytest.mark.parametrize("fails", [False, True])
async def test_the_claims_of_a_failed_bind_are_released_beside_each_other(*, fails: bool) -> None:
    """Each release may take seconds, or fail: a failure is logged, and keeps no other claim."""
    async with berthing(NODES) as b:
        node, both = await scheduled(b, "c", "d"), asyncio.Barrier(2)

        async def meet(method: str, path: str) -> ApiError | None:
            if method == "PATCH" and path.endswith("/status"):
                await both.wait()
                return NO if fails and path.endswith("/c/status") else None
            return None

        def undo_begins() -> None:
            b.cluster.api.intercept = meet

        b.cluster.api.intercept = Once("POST", "/binding", undo_begins, NO)
        with capture_logs() as log:
            assert "no" in await b.bind("p", node)
        assert len(b.held()) == fails
        assert [line["pod"] for line in log if line["event"] == "could not undo"] == ["default/p"] * fails


@pytest.mark.parametrize(
    ("method", "ending"), [("PATCH", "/resourceclaims/c"), ("PATCH", "/status"), ("POST", "/binding")]
)
async def test_lost_replies(method: str, ending: str) -> None:
    """The reply to a successful write is lost: the bind still succeeds with one allocation."""
    async with berthing(NODES) as b:
        node = await scheduled(b, "c")
        b.cluster.api.intercept_reply = lost = Refusing(ending, CUT, 1, method=method)
        assert await b.bind("p", node) == ""
        assert lost.count
        assert b.node_of("p") == node
        assert len(b.held()) == 1


async def test_conflict_is_read_again() -> None:
    """After a conflict the bind reads the claim again, and succeeds."""
    async with berthing(NODES) as b:
        node = await scheduled(b, "c")
        touch = Once("PATCH", "/resourceclaims/c", lambda: patch(b, "c", {"metadata": {"labels": {"x": "y"}}}))
        b.cluster.api.intercept = touch
        assert await b.bind("p", node) == ""
        assert touch.done


async def test_a_claim_that_was_recreated_does_not_get_the_devices_of_the_old_one() -> None:
    """The new one asks for more devices than the bind chose for the old one."""
    async with berthing(NODES) as b:
        node = await scheduled(b, "c")

        def recreate() -> None:
            b.cluster.store.remove("resourceclaims", ("default", "c"))
            b.cluster.apply(claim("c", 2))

        b.cluster.api.intercept = Once("PATCH", "/resourceclaims/c", recreate)
        assert "claim default/c was recreated" in await b.bind("p", node)
        assert not b.held()
        assert not b.node_of("p")


async def test_a_burst_never_shares_a_device() -> None:
    """Twenty pods for twelve GPUs, all bound at once: twelve binds succeed, and no device is allocated twice."""
    async with berthing(NODES) as b:
        await b.create(*jobs(**{f"p{i}": 1 for i in range(20)}))
        first = [(await b.filter(f"p{i}"))["NodeNames"] for i in range(20)]
        outcome = await asyncio.gather(*(b.bind(f"p{i}", (names or ["n1"])[0]) for i, names in enumerate(first)))
        assert len(b.held()) == len(set(b.held())) == sum(1 for error in outcome if not error) == 12
        await eventually(lambda: not b.app.service.binder.running)


async def test_pod_without_claims_gets_a_plain_binding() -> None:
    async with berthing(NODES) as b:
        await b.create(pod("web"))
        names = ["n2", "n1", "elsewhere"]
        assert (await b.filter("web", names))["NodeNames"] == names
        assert await b.bind("web", "n2") == ""
        assert b.node_of("web") == "n2"


async def test_a_bind_with_an_old_cache_takes_no_device_back_from_its_new_owner() -> None:
    """This process still sees its pod's claim on a device that another claim had first; meanwhile another process has
    allocated it anew and bound the pod. Found by `make chaos`, two replicas, seed 24."""
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        for name in ("first", "mine"):
            await b.create(claim(name), pod(name, name))
            allocated(b, name, "gpu-0", name, writer="other")
        await b.settled()
        # Between the read of this process and its undo.
        move = Once("GET", "/pods/mine", lambda: allocated(b, "mine", "gpu-1", "mine", writer="other"))
        b.cluster.api.intercept = move
        assert "allocated to another claim first" in await b.bind("mine", "n1")
        assert move.done
        kept = stored(b, "mine")["status"]
        assert kept["allocation"]["devices"]["results"][0]["device"] == "gpu-1", "the other process's allocation stays"
        assert kept["reservedFor"], "the other process's allocation stays"


@pytest.mark.parametrize(("later", "words"), [("undone", "was released"), ("moved", "allocated elsewhere")])
async def test_no_pod_is_bound_by_a_cache_older_than_the_own_rollback(later: str, words: str) -> None:
    """A bind gave way and took its allocation back; the watch does not show that yet when the pod is bound again. Found
    by `make chaos`, two replicas, twice in forty runs."""
    async with replicas(NODES) as ((b, _), (gate, _)):
        node = await scheduled(b, "c")
        b.cluster.api.intercept = Once("POST", "/binding", gate.close, NO)
        assert "no" in await b.bind("p", node)
        assert not b.held()
        b.cluster.api.intercept = None
        if later == "moved":
            allocated(b, "c", "gpu-7" if node == "n1" else "gpu-3", "p", writer="")
        assert words in await b.bind("p", node)
        assert b.node_of("p") == "", "no pod runs without devices"
        gate.open()
        await b.settled()
        if later == "undone":
            assert await b.bind("p", node) == ""
            assert b.node_of("p") == node
            assert len(b.held()) == 1


async def test_two_binds_of_one_pod_never_run_at_once() -> None:
    """Two callers wait for a bind that fails: one of them starts the next bind, the other joins it."""
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        await scheduled(b, "c")
        refused = most = 0

        async def watched(method: str, path: str) -> ApiError | None:
            nonlocal refused, most
            if method == "GET":
                return None
            most = max(most, sum(task.get_name() == "bind" for task in asyncio.all_tasks()))
            if path.endswith("/binding") and not refused:
                refused += 1
                return ApiError(403, "Forbidden", "no")
            return None

        b.cluster.api.intercept = watched
        bind, uid = b.app.service.bind, b.pod("p")["metadata"]["uid"]
        # Without HTTP: the second and the third wait before the first has written anything.
        calls = [bind(ObjectKey("default", "p"), uid, node) for node in ("n1", "n2", "n2")]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert "no" in str(answers[0])
        assert answers[1:] == [None, None]
        assert most == 1
        assert b.node_of("p") == "n2"
        assert len(b.held()) == 1


async def test_a_claim_that_becomes_unreadable_keeps_its_finalizers() -> None:
    """The finalizers are too long for Berth, so a write of the whole list would erase them."""
    async with one_node(claim("c"), pod("p", "c")) as b:
        long = [f"example.org/{i:060}" for i in range(100)]

        edit = Once("PATCH", "/resourceclaims/c", lambda: patch(b, "c", {"metadata": {"finalizers": long}}))
        b.cluster.api.intercept = edit
        assert "metadata.finalizers: has more than 4096 characters" in await b.bind("p", "n1")
        assert stored(b, "c")["metadata"]["finalizers"] == long
        assert not b.held()
