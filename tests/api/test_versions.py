"""One kind in several versions of its API: the newest that the server serves is read, and looked for again."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from extender.cache import ClusterCache
from extender.cli.cluster_objects import take_objects
from extender.cluster import ApiClient, Credentials, Delays, Reflector
from extender.cluster.reflector import Timing
from extender.runtime.informers import watched_resources
from extender.sandbox import Cluster, listening
from extender.sandbox.apiserver.registry import RESOURCES
from extender.web.asgi import TEXT, Answer
from tests.worlds.eventually import eventually
from tests.worlds.reflectors import reflecting

pytestmark = pytest.mark.loopback

RULES = RESOURCES["resource.k8s.io", "devicetaintrules"]
GROUP = "/apis/resource.k8s.io/"
QUICK = Timing(delays=Delays(first=0.01, most=0.05), absent_checks=3, absent_seconds=0.05)
NOT_FOUND = Answer(404, b"404 page not found", TEXT)


class Versions:
    """A sandbox that serves DeviceTaintRules in these versions only, and counts the requests for each.

    `says` changes the answer to a request for discovery, where a test sets it.
    """

    def __init__(self, cluster: Cluster, *served: str) -> None:
        self.cluster = cluster
        self.served = served
        self.watches = True
        self.asked: dict[str, int] = {}
        self.says: Callable[[str, Answer], Answer] = lambda path, answer: answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        _, _, _, version, *resource = f"{path}/".split("/") if path.startswith(GROUP) else ["", "", "", ""]
        if path == "/apis":
            versions = [{"groupVersion": f"resource.k8s.io/{version}"} for version in ("v1", "v1beta2")]
            groups = {"kind": "APIGroupList", "groups": [{"name": "resource.k8s.io", "versions": versions}]}
            await self.says(path, Answer(200, orjson.dumps(groups))).to(send)
        elif resource == [""]:
            await self.says(path, _resources(*["devicetaintrules"] * (version in self.served))).to(send)
        elif path.endswith("/devicetaintrules"):
            self.asked[version] = self.asked.get(version, 0) + 1
            if version in self.served and (self.watches or b"watch=" not in scope["query_string"]):
                await self.cluster.api(scope, receive, send)
            else:
                await NOT_FOUND.to(send)
        else:
            await self.cluster.api(scope, receive, send)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with listening(self, "127.0.0.1", 0) as url:
            yield url
            self.cluster.store.cut_watches()

    def upgrade(self, *served: str) -> None:
        self.served = served
        self.cluster.store.cut_watches()


def _resources(*names: str) -> Answer:
    found = {"kind": "APIResourceList", "resources": [{"name": name} for name in ("resourceslices", *names)]}
    return Answer(200, orjson.dumps(found))


def rule(name: str, device: str = "gpu-0") -> dict[str, Any]:
    spec = {"deviceSelector": {"device": device}, "taint": {"key": "broken", "effect": "NoSchedule"}}
    return {"kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def watching(versions: Versions, cache: ClusterCache) -> AsyncIterator[Reflector]:
    (kind,) = [kind for kind in watched_resources(cache) if kind.name == "devicetaintrules"]
    async with versions.serving() as url, reflecting(url, kind, timing=QUICK) as found:
        yield found


@pytest.mark.parametrize(
    ("served", "unasked"), [(("v1",), "v1beta2"), (("v1", "v1beta2"), "v1beta2"), (("v1beta2",), "")]
)
async def test_the_newest_version_that_is_served(served: tuple[str, ...], unasked: str) -> None:
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster, *served)
    cluster.apply(rule("before"))
    async with watching(versions, cache) as found:
        await eventually(lambda: found.listed and "before" in cache.slices.rules)
        cluster.apply(rule("after"))
        await eventually(lambda: "after" in cache.slices.rules)
        cluster.api.registry.delete(RULES, ("", "before"))
        await eventually(lambda: "before" not in cache.slices.rules)
        assert unasked not in versions.asked
        assert found.failures == 0


async def test_an_upgraded_server_is_noticed() -> None:
    """1.34 serves neither, 1.36 may serve v1beta2, 1.37 serves v1, and one day v1beta2 is gone."""
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster)
    cluster.apply(rule("a"))
    async with watching(versions, cache) as found:
        await eventually(lambda: found.listed and versions.asked.get("v1", 0) > 1)
        assert not cache.slices.rules
        assert not found.problem
        assert found.silence == 0
        versions.served = ("v1beta2",)
        await eventually(lambda: "a" in cache.slices.rules)
        versions.upgrade("v1")
        cluster.apply(rule("b"))
        await eventually(lambda: {"a", "b"} <= cache.slices.rules.keys())


async def test_rules_stay_when_only_a_newer_version_than_before_is_served() -> None:
    """The server has one of the versions all the time, so the kind is never absent."""
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster, "v1beta2")
    cluster.apply(rule("a"))
    async with watching(versions, cache) as found:
        await eventually(lambda: "a" in cache.slices.rules)
        lost: list[str] = []
        found.kind = replace(found.kind, apply=lambda key, obj: lost.append(key) if obj is None else None)
        versions.upgrade("v1")
        await eventually(lambda: versions.asked.get("v1", 0) > 2)
        assert found.served
        assert not lost


async def test_rules_go_with_the_version_that_served_them() -> None:
    """A server that was rolled back has no rules any more."""
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster, "v1")
    cluster.apply(rule("a"))
    async with watching(versions, cache):
        await eventually(lambda: "a" in cache.slices.rules)
        versions.upgrade()
        await eventually(lambda: not cache.slices.rules)
        versions.served = ("v1beta2",)
        await eventually(lambda: "a" in cache.slices.rules)


EMPTY = Answer(200, b"{}")
SAYS_NOTHING: dict[str, Callable[[str, Answer], Answer]] = {
    "a load balancer without a backend": lambda path, answer: NOT_FOUND,
    "a proxy that says yes": lambda path, answer: EMPTY,
    "a server that restarts": lambda path, answer: Answer(503, b"{}"),
    "no such group version": lambda path, answer: answer if path == "/apis" else NOT_FOUND,
    "another kind of document": lambda path, answer: Answer(200, answer.body.replace(b'"API', b'"XPI')),
    "a document without resources": lambda path, answer: Answer(200, answer.body.replace(b'"resources"', b'"r"')),
    "a server that has the kind": lambda path, answer: _resources("devicetaintrules") if path != "/apis" else answer,
}


@pytest.mark.parametrize("case", SAYS_NOTHING)
async def test_a_404_that_discovery_does_not_confirm_forgets_nothing(case: str) -> None:
    """However often it comes."""
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster, "v1")
    cluster.apply(rule("a"))
    async with watching(versions, cache) as found:
        await eventually(lambda: "a" in cache.slices.rules)
        versions.says = SAYS_NOTHING[case]
        versions.upgrade()
        await eventually(lambda: found.failures > 2 * QUICK.absent_checks)
        assert "a" in cache.slices.rules
        assert found.served
        assert found.problem
        cluster.apply(rule("b"))
        versions.served = ("v1",)
        await eventually(lambda: "b" in cache.slices.rules and not found.problem)


@pytest.mark.parametrize("case", SAYS_NOTHING)
async def test_at_the_start_a_404_that_discovery_does_not_confirm_is_a_failure(case: str) -> None:
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster)
    versions.says = SAYS_NOTHING[case]
    cluster.apply(rule("a"))
    async with watching(versions, cache) as found:
        await eventually(lambda: found.failures > 2 * QUICK.absent_checks)
        assert not found.listed
        versions.served = ("v1",)
        await eventually(lambda: "a" in cache.slices.rules)


async def test_a_server_that_lists_and_does_not_watch_is_asked_with_pauses() -> None:
    """Without them, thousands of lists of both versions took the time of the event loop."""
    versions = Versions(Cluster(), "v1", "v1beta2")
    versions.watches = False
    async with watching(versions, ClusterCache()) as found:
        await eventually(lambda: bool(found.failures))
        assert found.served


async def test_two_servers_of_different_versions_behind_one_address() -> None:
    """In an upgrade, v1 is at one server and v1beta2 at the other: now and then both requests meet the wrong one."""
    cluster, cache, turns = Cluster(), ClusterCache(), itertools.cycle([0, 1, 1])
    versions = Versions(cluster, "v1")
    cluster.apply(rule("a"))

    def looked(path: str, answer: Answer) -> Answer:
        """Two looks of three find neither version."""
        return _resources("devicetaintrules") if path.endswith("/v1") and not next(turns) else answer

    async with watching(versions, cache) as found:
        await eventually(lambda: "a" in cache.slices.rules)
        versions.says = looked
        versions.upgrade()
        await eventually(lambda: found.failures > 4 * QUICK.absent_checks)
        assert "a" in cache.slices.rules


async def test_without_the_right_to_read_discovery_the_404_counts() -> None:
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster)
    versions.says = lambda path, answer: Answer(403, b'{"message": "forbidden"}')
    cluster.apply(rule("a"))
    async with watching(versions, cache) as found:
        await eventually(lambda: found.listed)
        versions.served = ("v1",)
        await eventually(lambda: "a" in cache.slices.rules)
        versions.upgrade()
        await eventually(lambda: not cache.slices.rules)


@pytest.mark.parametrize(("served", "names"), [(("v1",), ["a"]), (("v1beta2",), ["a"]), ((), [])])
async def test_a_snapshot_reads_the_same_version(served: tuple[str, ...], names: list[str]) -> None:
    cluster = Cluster()
    cluster.apply(rule("a"))
    async with Versions(cluster, *served).serving() as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        found = await take_objects(client)
    assert [obj["metadata"]["name"] for obj in found if obj["kind"] == "DeviceTaintRule"] == names
