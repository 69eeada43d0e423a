"""Objects that cannot be read stop neither a list nor a watch: each is named, logged once a version, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
import yaml
from structlog.testing import capture_logs

from extender.api.fields import MAX_LEVELS, lenient_loads
from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Allocation
from extender.cache import ClusterCache
from extender.cluster import ClusterError, WatchedResource, Writer
from extender.runtime.informers import watched_resources
from tests.worlds.counted_work import calls_of
from tests.worlds.eventually import eventually
from tests.worlds.fuzzing import CASES as FOLDER
from tests.worlds.fuzzing import unfolded
from tests.worlds.reflectors import nodes, reflecting
from tests.worlds.running_berth import Json, berthing, claim

pytestmark = pytest.mark.loopback

CASES = yaml.safe_load((FOLDER / "unreadable.yaml").read_text())


def claim_with(parameters: bytes, version: int = 2) -> bytes:
    """A claim as the API server sends it, whose opaque parameters are this text."""
    obj = claim("odd")
    obj["metadata"] |= {"uid": "u-odd", "resourceVersion": str(version)}
    obj["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": "HERE"}}]
    return orjson.dumps(obj).replace(b'"HERE"', parameters)


def good(name: str, version: int) -> bytes:
    return orjson.dumps(
        {"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version)}}
    )


class Server:
    """An API server as ASGI: one list, then these events, each when a test asks for it; an empty one ends the watch."""

    def __init__(self, kind: str, *items: bytes) -> None:
        self.kind = kind
        self.show(9, *items)
        self.events: asyncio.Queue[bytes] = asyncio.Queue()
        self.lists = 0

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if b"watch=1" not in scope["query_string"]:
            self.lists += 1
            await send({"type": "http.response.body", "body": self.page})
            return
        while True:
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            event = await self.events.get()
            if not event:
                await send({"type": "http.response.body", "body": b""})
                return
            await send({"type": "http.response.body", "body": event + b"\n", "more_body": True})

    def show(self, version: int, *items: bytes) -> None:
        """From now on a list has these objects."""
        page = b'{"kind": "%bList", "metadata": {"resourceVersion": "%d"}, "items": [%b]}'
        self.page = page % (self.kind.encode(), version, b",".join(items))

    def tell(self, kind: str, obj: bytes) -> None:
        self.events.put_nowait(b'{"type": "%b", "object": %b}' % (kind.encode(), obj))


def claims_of(cache: ClusterCache) -> WatchedResource:
    return next(kind for kind in watched_resources(cache, lambda: 0.0) if kind.name == "resourceclaims")


@pytest.mark.parametrize("case", CASES)
async def test_a_tenant_s_text_in_a_claim_stops_no_other_claim(case: str) -> None:
    """The claim comes in the list or on the watch."""
    cache, text = ClusterCache(), unfolded(CASES[case])
    server = Server("ResourceClaim", claim_with(text), good("a", 3))
    async with reflecting(server, claims_of(cache)) as found:
        await eventually(lambda: found.listed)
        server.tell("MODIFIED", claim_with(text, 10))
        server.tell("ADDED", good("b", 11))
        await eventually(lambda: found.version == "11")
        assert {key.name for key in cache.store.claims} == {"odd", "a", "b"}
        assert (found.failures, found.lists, found.unreadable) == (0, 1, {})
        odd = cache.store.claims[ObjectKey("default", "odd")]
        if b"[" in text or text.count(b"{") > 1:
            assert "spec: cannot be written as JSON" in odd.problem
            assert len(odd.problem) < 200
        else:
            assert not odd.problem
            assert odd.spec.config[0].parameters == orjson.dumps(lenient_loads(text)).decode()


def test_lenient_json_reads_as_go_does() -> None:
    assert lenient_loads(rb'["\ud83d\ude00", "\\ud800", "x\ud800\ud800\udc00y"]') == [
        "\U0001f600",
        "\\ud800",
        "x\ufffd\U00010000y",
    ]
    assert lenient_loads(b'["a\xffb"]') == ["a\ufffdb"]
    assert lenient_loads(b'[1, %b7%b, {"a": "]"}]' % (b"[" * 2000, b"]" * 2000))[2] == {"a": "]"}
    inner: Any = lenient_loads(b"[" * 2000 + b"]" * 2000)
    levels = 0
    while inner is not None:
        (inner,), levels = inner, levels + 1
    assert levels == MAX_LEVELS
    for text in (
        b"",
        b"[",
        b"]",
        b'"',
        b"[" * 2000,
        b"]" * 2000,
        b'{"a":' * 2000 + b'"',
        b"[" * 2000 + b"]" * 2001,
        b"[1e999]",
    ):
        with pytest.raises(orjson.JSONDecodeError):
            lenient_loads(text)


def test_lenient_json_calls_no_function_for_each_escape_or_flat_value() -> None:
    """A tenant's claim of 1.3 MB arrives with a million escapes: a call for each of them stops the claims watch.

    312 KB have 100,000 empty lists. A few such claims a second did the same.
    """
    flat = b"[], {}, 1, [true, 2]," + b'"]", {"a": "{"},'
    deep = b"[" * 2000 + b"]" * 2000
    text = b'["%b", "%b", %b %b]' % (rb"\u003c" * 20_000, rb"\"" * 20_000, flat * 1_000, deep)
    read = list[Any]()
    calls = calls_of(lambda: read.extend(lenient_loads(text)), ("call", "c_call", "return", "c_return"))
    assert read[:2] == ["<" * 20_000, '"' * 20_000]
    assert read[2:8] == [[], {}, 1, [True, 2], "]", {"a": "{"}]
    values = 2 * 20_000 + 5 * 1_000
    assert calls < values / 20  # the deep list costs some


@pytest.mark.parametrize("characters", [9_000_000, 12_000_000])
async def test_an_event_as_long_as_an_object_can_be_is_read(characters: int) -> None:
    """1.5 MiB of `<`, each as six bytes of JSON. A longer event is replaced by a list."""
    server = Server("Pod")
    seen: dict[str, Any] = {}
    async with reflecting(server, WatchedResource("pods", "PodList", "/api/v1/pods", seen.__setitem__)) as found:
        await eventually(lambda: found.listed)
        long = orjson.dumps(
            {"metadata": {"name": "long", "resourceVersion": "10", "annotations": {"x": "x" * characters}}}
        )
        server.show(10, long)
        server.tell("ADDED", long)
        await eventually(lambda: "long" in seen)
        await eventually(lambda: found.version == "10")
        assert found.lists == (1 if characters < 10_000_000 else 2)


class Applied:
    """The objects that were applied; those in `failing` raise."""

    def __init__(self, **failing: Exception) -> None:
        self.now: dict[str, Any] = {}
        self.failing: dict[str, Exception] = failing

    def __call__(self, key: str, obj: dict | None) -> None:
        if key in self.failing:
            raise self.failing[key]
        if obj is None:
            self.now.pop(key, None)
        else:
            self.now[key] = obj["metadata"]["resourceVersion"]


def node(name: str, version: int) -> bytes:
    return orjson.dumps({"metadata": {"name": name, "resourceVersion": str(version)}})


async def test_a_bug_that_one_object_shows_is_named_and_the_last_good_state_stays() -> None:
    applied = Applied()
    server = Server("Node", node("a", 1), node("odd", 2))
    with capture_logs() as logs:
        async with reflecting(server, nodes(applied)) as found:
            await eventually(lambda: found.listed)
            applied.failing["odd"] = KeyError("made\nup")
            for version in (10, 10, 11):
                server.tell("MODIFIED", node("odd", version))
            server.tell("MODIFIED", node("a", 12))
            await eventually(lambda: found.version == "12")
            assert applied.now == {"a": "12", "odd": "2"}, "the last version that could be read stays"
            assert {key: one.problem for key, one in found.unreadable.items()} == {"odd": r"KeyError: 'made\nup'"}
            warned = [entry for entry in logs if entry["event"] == "unreadable object"]
            assert [(entry["key"], entry["exc_info"]) for entry in warned] == [("odd", True)] * 2, (
                "once a version, with its trace"
            )
            applied.failing.clear()
            server.tell("MODIFIED", node("odd", 13))
            await eventually(lambda: found.version == "13")
            assert applied.now["odd"] == "13"
            assert not found.unreadable


async def test_a_deletion_that_fails_comes_again_with_the_next_list() -> None:
    applied = Applied()
    server = Server("Node", node("odd", 2))
    async with reflecting(server, nodes(applied)) as found:
        await eventually(lambda: found.listed)
        applied.failing["odd"] = KeyError("made up")
        server.tell("DELETED", node("odd", 10))
        await eventually(lambda: found.version == "10")
        assert list(found.unreadable) == ["odd"]
        assert list(applied.now) == ["odd"]
        applied.failing.clear()
        server.show(11)
        server.tell("ERROR", b'{"code": 410, "message": "too old"}')
        await eventually(lambda: found.lists == 2)
        assert not applied.now
        assert not found.unreadable


ODD_OBJECTS: list[Any] = [
    None, 7, "x", [], [{}], {}, {"metadata": None}, {"metadata": [1]}, {"metadata": {"name": {}}},
    {"metadata": {"name": None}},
    {"metadata": {"name": "n", "namespace": 7}}, {"metadata": {"name": "n", "resourceVersion": {"a": 1}}},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD_OBJECTS, ids=repr)
async def test_an_object_that_has_no_name_stops_no_other(odd: Any) -> None:
    cache = ClusterCache()
    server = Server("ResourceClaim", orjson.dumps(odd), good("a", 3))
    async with reflecting(server, claims_of(cache)) as found:
        await eventually(lambda: found.listed)
        if isinstance(odd, dict):
            for kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
                server.tell(kind, orjson.dumps(odd))
        server.tell("ADDED", good("b", 11))
        await eventually(lambda: found.version == "11")
        assert {"a", "b"} <= {key.name for key in cache.store.claims}
        assert found.lists == 1


@pytest.mark.parametrize("odd", [{}, {"metadata": {"namespace": "default"}}, {"metadata": {"name": 7}}], ids=repr)
async def test_an_object_without_a_name_is_forgotten_with_the_watch_that_showed_it(odd: Json) -> None:
    """No later event can name it, and no list may follow for weeks."""
    server = Server("ResourceClaim", good("a", 3))
    async with reflecting(server, claims_of(ClusterCache())) as found:
        await eventually(lambda: found.listed)
        server.tell("ADDED", orjson.dumps(odd))
        await eventually(lambda: found.unreadable)
        server.events.put_nowait(b"")  # the reflector opens the watch again
        await eventually(lambda: not found.unreadable)
        assert found.lists == 1


async def test_readiness_and_metrics_name_unreadable_objects() -> None:
    async with berthing({"n1": "t4-4"}) as b:

        def put(name: str, labels: object) -> None:
            b.cluster.store.put(
                "namespaces", ("", name), {"kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            )

        reflector = b.app.service.informers.reflectors["namespaces"]
        for number in range(10):
            put(f"odd-{number}", ["x"])
        await eventually(lambda: len(reflector.unreadable) == 10)
        ready = await b.client.get("/readyz")
        assert ready.status_code == 200
        assert "namespaces odd-0 cannot be read: metadata.labels: must be an object" in ready.text
        assert "odd-7" in ready.text
        assert "odd-8" not in ready.text
        assert "and 2 more namespaces" in ready.text
        await b.metrics('berth_unreadable_objects{kind="namespaces"} 10')
        for number in range(10):
            put(f"odd-{number}", {"x": "y"})
        await eventually(lambda: not reflector.unreadable)
        assert (await b.client.get("/readyz")).text == "ok"
        await b.metrics('berth_unreadable_objects{kind="namespaces"} 0')


def bound_pod(name: str, **spec: Any) -> Json:
    annotations = {"berth.dev/group": "job", "berth.dev/group-min": "2"}
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "annotations": annotations}
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1", **spec}}


async def test_a_pod_that_cannot_be_read_hides_no_bound_member_of_its_namespace() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for one in (bound_pod("odd", schedulingGroup="g"), bound_pod("good")):
            b.cluster.store.put("pods", ("default", one["metadata"]["name"]), one)
        with capture_logs() as logs:
            found = await Writer(b.app.service.client).read_bound_members("default")
        assert [dict(members) for members in found.values()] == [{"u-good": "n1"}]
        (warned,) = [entry for entry in logs if entry["event"] == "unreadable pods"]
        assert (warned["namespace"], warned["pods"]) == ("default", 1)
        assert "spec.schedulingGroup: must be an object" in warned["problem"]


async def test_a_pod_that_cannot_be_read_may_be_a_bound_member() -> None:
    """Its group's claims are not released."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.store.put("pods", ("default", "odd"), bound_pod("odd", schedulingGroup="g"))
        with pytest.raises(ClusterError, match="must be an object"):
            await Writer(b.app.service.client).read_has_bound_member(ObjectKey("default", "g"))


async def test_the_auditor_compares_the_claims_that_can_be_read() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        odd = {"kind": "ResourceClaim", "metadata": {"name": "odd", "namespace": "default", "uid": ["x"]}}
        b.cluster.store.put("resourceclaims", ("default", "odd"), odd)
        await b.create(claim("good"))
        cache, key = b.app.service.cache, ObjectKey("default", "good")
        cache.apply_claim(key, replace(cache.store.claims[key], allocation=Allocation()))
        await b.console.auditor.round()
        assert (b.console.auditor.rounds, b.console.auditor.differing) == (1, 1)


def test_problems_are_short() -> None:
    """A message shows only the start of a deep or large value."""
    deep: Any = orjson.loads(b"[" * 1000 + b"]" * 1000)
    decode: Callable[[str, dict | None], None] = next(
        k for k in watched_resources(ClusterCache(), lambda: 0.0) if k.name == "pods"
    ).apply
    for value in (deep, {"a": deep}, ["x"] * 1_000_000, "x" * 1_000_000):
        with pytest.raises(Exception, match="must be") as caught:
            decode("p", {"metadata": {"name": "p"}, "spec": {"nodeName": [value]}})
        assert len(str(caught.value)) < 200
