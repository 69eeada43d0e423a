"""Members of a gang that are bound, terminate or have succeeded while others wait: Berth lists the pods."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Mapping
from math import inf

import orjson
import pytest

from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupSource
from extender.cluster import Unavailable, Writer
from extender.cluster.api_errors import TooLong
from extender.serve.gangs.bound_members import MAX_GROUPS
from tests.worlds.eventually import eventually
from tests.worlds.gang_fleet import BoundMembersAlone
from tests.worlds.gang_pods import (
    NO_ROOM,
    NODES,
    SIX_NODES,
    UNREAD,
    bind_all,
    change,
    create_again,
    create_gang,
    delete,
    gets_a_node,
    key,
    member,
    planned,
    reasons,
    requeues,
    running,
)
from tests.worlds.running_berth import berthing, claim, pod

pytestmark = pytest.mark.loopback

KEY = GroupKey("default", GroupSource.BERTH, "job")


async def test_a_gang_that_is_created_again_waits_for_room_for_all_while_the_old_pods_terminate() -> None:
    async with berthing(SIX_NODES) as b:
        await create_again(b)
        async with requeues(b, "the pod is requeued after the read"):
            assert await reasons(b, "new0") == {UNREAD}
        for i in range(4):
            assert await reasons(b, f"new{i}") == {NO_ROOM}
        for i in range(4):
            delete(b, "pods", f"old{i}")
            delete(b, "resourceclaims", f"old{i}-gpus")
        await b.settled()
        await eventually(lambda: gets_a_node(b, "new0"), "the group is planned")
        assert await bind_all(b, await planned(b, *(f"new{i}" for i in range(4)))) == [""] * 4


async def test_the_first_pod_of_a_gang_that_is_created_again_is_no_replacement_of_one_that_is_gone() -> None:
    """With the pods that terminate, there are as many as the minimum."""
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"old{i}" for i in range(4)))
        delete(b, "pods", "old3")
        delete(b, "resourceclaims", "old3-gpus")
        for i in range(3):
            change(b, f"old{i}", "metadata", deletionTimestamp="2026-11-23T23:00:00Z")
        member(b, "new0", minimum=4)
        await b.settled()
        assert await reasons(b, "new0") == {UNREAD}
        assert "has no plan for pod" in await b.bind("new0", "n3")
        incomplete = {"waits until at least 4 pods of group job and their claims exist"}

        async def waits_for_the_other_new_pods() -> bool:
            return await reasons(b, "new0") == incomplete

        await eventually(waits_for_the_other_new_pods, "the pods that terminate are read")


async def test_members_that_terminate_never_count_again() -> None:
    now, namespaces = [0.0], list[str]()

    async def read(namespace: str) -> Mapping[GroupKey, Mapping[str, str]]:
        namespaces.append(namespace)
        return {}

    async with berthing(SIX_NODES) as b:
        await create_again(b)
        cache = b.app.service.cache
        bound = BoundMembersAlone(cache, read, lambda: now[0])
        bound.want(KEY)
        await bound.read_due()
        gone = {b.pod(f"old{i}")["metadata"]["uid"]: "" for i in range(4)}
        for reads in (1, 2):
            assert cache.snapshot().bound_members[KEY] == gone
            assert len(namespaces) == reads
            now[0] = bound.timers.next
            bound.due()
            assert cache.snapshot().bound_members[KEY] == gone, "until the next read"
            await bound.read_due()
        for i in range(4):
            delete(b, "pods", f"old{i}")
            delete(b, "resourceclaims", f"old{i}-gpus")
        await eventually(lambda: not cache.snapshot().users_of_group(KEY), "the claims are gone")
        now[0] = bound.timers.next
        bound.due()
        assert KEY not in cache.snapshot().bound_members


async def test_a_further_member_of_a_running_gang_is_placed_after_the_read() -> None:
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"p{i}" for i in range(4)))
        member(b, "p4", minimum=4)
        await b.settled()
        async with requeues(b, "the pod is requeued after the read"):
            assert await reasons(b, "p4") == {UNREAD}
        assert (await b.filter("p4"))["NodeNames"] == ["n4", "n5"]


@pytest.mark.parametrize("devices", [True, False])
async def test_pods_beyond_the_minimum_need_no_read_after_berth_has_bound_the_minimum(devices: bool) -> None:
    """They come after the plan, and wait before the minimum is bound: no pod is of a later gang."""
    async with berthing(SIX_NODES) as b:
        b.cluster.apply(claim("shared", 1))
        annotations, read = {"berth.dev/group": "job", "berth.dev/group-min": "2"}, list[str]()
        for name in ("p0", "p1"):
            b.cluster.apply(pod(name, *(["shared"] if devices else []), annotations=annotations))
        await b.settled()
        nodes = {name: (await b.filter(name))["NodeNames"][0] for name in ("p0", "p1")}
        for name in ("p2", "p3"):
            b.cluster.apply(pod(name, *(["shared"] if devices else []), annotations=annotations))
        await b.settled()
        assert await reasons(b, "p2") == {"waits until the minimum of group job is bound"}

        async def note(method: str, path: str) -> None:
            if (method, path) == ("GET", "/api/v1/namespaces/default/pods"):
                read.append(path)

        b.cluster.api.intercept = note
        assert await bind_all(b, nodes) == [""] * 2
        for name in ("p2", "p3"):
            found = await b.filter(name)
            assert found["NodeNames"], found
            assert await b.bind(name, found["NodeNames"][0]) == ""
        assert not read


async def test_a_member_that_is_bound_during_a_read_runs() -> None:
    """The list was made before its Binding, and its claim was written before the list."""
    async with berthing(SIX_NODES) as b:
        cache, reading = b.app.service.cache, asyncio.Event()
        await create_gang(b, 4, minimum=2)

        async def read(namespace: str) -> Mapping[GroupKey, Mapping[str, str]]:
            del namespace
            await reading.wait()
            return {}

        bound = BoundMembersAlone(cache, read, lambda: 0.0)
        bound.want(KEY)
        task = asyncio.create_task(bound.read_due())
        await asyncio.sleep(0)
        bound.bound(KEY, b.pod("p0")["metadata"]["uid"], "n0")
        reading.set()
        await task
        assert cache.snapshot().bound_members[KEY] == {b.pod("p0")["metadata"]["uid"]: "n0"}
        assert bound.timers.next == 30.0


async def test_a_slow_read_of_one_namespace_delays_no_other() -> None:
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"p{i}" for i in range(4)))
        member(b, "p4", minimum=4)
        slow = pod("w0", annotations={"berth.dev/group": "job", "berth.dev/group-min": "4"})
        await b.create({**slow, "metadata": {**slow["metadata"], "namespace": "slow"}})
        began, answered = asyncio.Event(), asyncio.Event()

        async def delay(method: str, path: str) -> None:
            if path == "/api/v1/namespaces/slow/pods":
                began.set()
                await answered.wait()

        b.cluster.api.intercept = delay
        service = b.app.service
        (waiting,) = (one for one in service.cache.store.pods.values() if one.key.namespace == "slow")
        assert not service.filter(waiting, list(SIX_NODES)).passed
        await eventually(began.is_set, "the read of the slow namespace began")
        touches = service.requeuer.touches
        assert await reasons(b, "p4") == {UNREAD}
        await eventually(lambda: service.requeuer.touches > touches, "the pod is requeued after the other read")
        answered.set()


async def test_a_read_of_an_earlier_gang_does_not_count_for_a_new_one_of_its_name() -> None:
    """The new gang begins within 30 s, with one pod. The pods that were read are gone, and so are their claims."""
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"p{i}" for i in range(4)))
        member(b, "p4", minimum=4)
        await b.settled()
        await reasons(b, "p4")
        cache = b.app.service.cache
        await eventually(lambda: len(cache.snapshot().bound_members.get(KEY, {})) == 4, "the running pods are read")
        for i in range(5):
            delete(b, "pods", f"p{i}")
            delete(b, "resourceclaims", f"p{i}-gpus")
        member(b, "new0", minimum=4)
        await b.settled()
        assert await reasons(b, "new0") == {"waits until at least 4 pods of group job and their claims exist"}


async def test_a_replaced_pod_does_not_wait_for_a_member_that_has_succeeded() -> None:
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"p{i}" for i in range(4)))
        change(b, "p0", "status", phase="Succeeded")
        delete(b, "resourceclaims", "p0-gpus")  # kube-controller-manager deallocates it
        delete(b, "pods", "p3")
        delete(b, "resourceclaims", "p3-gpus")
        member(b, "again", minimum=4)
        await b.settled()
        async with requeues(b, "the pod is requeued after the read"):
            assert not (await b.filter("again"))["NodeNames"]
        assert await bind_all(b, await planned(b, "again")) == [""]


async def test_members_that_succeeded_before_do_not_count_for_a_new_gang() -> None:
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"old{i}" for i in range(4)))
        for i in range(4):
            change(b, f"old{i}", "status", phase="Succeeded")
            delete(b, "resourceclaims", f"old{i}-gpus")
        await b.settled()
        assert not await Writer(b.app.service.client).read_bound_members("default")


# -- how often they are read ---------------------------------------------------------------------------------------


class Reads:
    """Answers with one bound member of the group after some seconds, or fails."""

    def __init__(self) -> None:
        self.now, self.seconds, self.fails = 0.0, 0.0, False

    async def __call__(self, _: str) -> Mapping[GroupKey, Mapping[str, str]]:
        self.now += self.seconds
        if self.fails:
            raise Unavailable("no answer")
        return {KEY: {"uid-job": "n0"}}


async def test_bound_members_are_read_ever_later_unless_the_group_changes_and_are_forgotten() -> None:
    async with berthing(NODES) as b:
        member(b, "job-0")
        await b.settled()
        cache, reads = b.app.service.cache, Reads()
        bound = BoundMembersAlone(cache, reads, lambda: reads.now)

        async def pause() -> float:
            """The seconds between the end of a read and the next one."""
            await bound.read_due()
            bound.want(KEY)
            began, reads.now = reads.now, bound.timers.next
            return reads.now - began

        bound.want(KEY)
        pauses = [await pause() for _ in range(8)]
        assert pauses == sorted(pauses)
        assert 0 < pauses[0] < pauses[1] < pauses[-2] == pauses[-1] < 60
        assert cache.snapshot().bound_members[KEY] == {"uid-job": "n0"}
        bound.forget(KEY)
        assert await pause() == pauses[0], "the group changed"
        bound.forget(KEY)
        reads.seconds = 0.25
        assert await pause() > pauses[0], "a slow read rests longer"
        await bound.read_due()
        reads.now = bound.timers.next
        bound.due()
        assert KEY not in cache.snapshot().bound_members, "the result is too old"
        reads.fails = True
        bound.want(KEY)
        await bound.read_due()
        assert not cache.snapshot().bound_members.get(KEY)


async def test_the_namespaces_and_the_groups_that_are_read_at_a_time_are_bounded() -> None:
    async with berthing(NODES) as b:
        cache = b.app.service.cache
        bound = BoundMembersAlone(cache, Reads(), lambda: 0.0)
        for namespace in "abc":
            for i in range(MAX_GROUPS + 3):
                bound.want(key(f"job-{i}", namespace))
        bound.due()
        first = bound.take_due()
        assert {name: len(groups) for name, groups in first.items()} == {"a": MAX_GROUPS, "b": MAX_GROUPS}
        assert not bound.take_due()
        assert bound.timers.next == inf, "the end of a read makes room for the next one"
        await bound.read("a", first["a"], lambda *_: None)
        assert list(bound.take_due()) == ["c"]
        assert len([one for one in cache.snapshot().bound_members if one.namespace == "a"]) == MAX_GROUPS


_PEAK = 48 << 20  # a page of 2 MiB takes 20 times as much decoded
_PODS = 6  # twice the limit, decoded at once


class Namespace:
    """An API client that lists large bound pods, as many in a page as fit. It counts the largest page."""

    def __init__(self) -> None:
        self._pods = [orjson.dumps(_bound(number)) for number in range(_PODS)]

    async def get(self, path: str, params: dict[str, str], most_bytes: int = 32 << 20) -> Json:
        assert path == "/api/v1/namespaces/default/pods"
        start = int(params.get("continue", "0"))
        end = min(start + int(params["limit"]), _PODS)
        items = self._pods[start:end]
        if sum(map(len, items)) > most_bytes:
            raise TooLong("")
        following = str(end) if end < _PODS else ""
        listed = orjson.loads(b"[%b]" % b",".join(items))
        return {"kind": "PodList", "items": listed, "metadata": {"resourceVersion": "1", "continue": following}}


def _bound(number: int) -> Json:
    annotations = {"berth.dev/group": "g", "berth.dev/group-min": "3"}
    metadata = {"namespace": "default", "name": f"p{number}", "uid": f"u{number}", "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": "n1", "nodeSelector": {f"k{i}": "v" for i in range(60_000)}}}


async def test_large_bound_pods_take_little_memory_when_a_gang_asks_for_them() -> None:
    """Twenty-six such pods once took 500 MiB, and answers waited 1.9 s."""
    writer = Writer(Namespace())  # type: ignore[arg-type]  # a fake
    tracemalloc.start()
    try:
        found = await writer.read_bound_members("default")
        assert not await writer.read_has_bound_member(ObjectKey("default", "other"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == {GroupKey("default", GroupSource.BERTH, "g"): {f"u{number}": "n1" for number in range(_PODS)}}
    assert peak < _PEAK
