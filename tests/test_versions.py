"""One kind in several versions of its API: the newest that the server serves is read, and looked for again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from extender.cache import ClusterCache
from extender.cli.cluster_dump import take_objects
from extender.cluster import ApiClient, Credentials, Delays, Reflector
from extender.cluster.reflector import Timing
from extender.runtime import watched_resources
from extender.sandbox import Cluster
from extender.sandbox.apiserver.registry import RESOURCES
from extender.sandbox.apiserver.status_errors import ApiError
from tests.eventually import eventually

RULES = RESOURCES["resource.k8s.io", "devicetaintrules"]
QUICK = Timing(delays=Delays(first=0.01, most=0.05), absent_seconds=0.05)


class Versions:
    """Makes a sandbox serve DeviceTaintRules in these versions only, and counts the requests for each."""

    def __init__(self, cluster: Cluster, *served: str) -> None:
        self.cluster = cluster
        self.served = served
        self.asked: dict[str, int] = {}
        cluster.api.intercept = self._intercept

    async def _intercept(self, _: str, path: str) -> ApiError | None:
        if not path.endswith("/devicetaintrules"):
            return None
        version = path.split("/")[3]
        self.asked[version] = self.asked.get(version, 0) + 1
        return None if version in self.served else ApiError(404, "NotFound", "the resource is not served")

    def upgrade(self, *served: str) -> None:
        self.served = served
        self.cluster.store.cut_watches()


def rule(name: str, device: str = "gpu-0") -> dict[str, Any]:
    spec = {"deviceSelector": {"device": device}, "taint": {"key": "broken", "effect": "NoSchedule"}}
    return {"kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def watching(cluster: Cluster, cache: ClusterCache) -> AsyncIterator[Reflector]:
    (kind,) = [kind for kind in watched_resources(cache) if kind.name == "devicetaintrules"]

    async with cluster.serving() as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        reflector = Reflector(client, kind, lambda: None, timing=QUICK)
        task = asyncio.create_task(reflector.run())
        try:
            yield reflector
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("served", "unasked"),
    [
        (("v1",), "v1beta2"),
        (("v1", "v1beta2"), "v1beta2"),
        (("v1beta2",), ""),
    ],
)
async def test_the_newest_version_that_is_served(served: tuple[str, ...], unasked: str) -> None:
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster, *served)
    cluster.apply(rule("before"))
    async with watching(cluster, cache) as found:
        await eventually(lambda: found.listed and "before" in cache.store.rules)
        cluster.apply(rule("after"))
        await eventually(lambda: "after" in cache.store.rules)
        cluster.api.registry.delete(RULES, ("", "before"))
        await eventually(lambda: "before" not in cache.store.rules)
        assert unasked not in versions.asked
        assert found.failures == 0


async def test_an_upgraded_server_is_noticed() -> None:
    """1.34 serves neither, 1.36 may serve v1beta2, 1.37 serves v1, and one day v1beta2 is gone."""
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster)
    cluster.apply(rule("a"))
    async with watching(cluster, cache) as found:
        await eventually(lambda: found.listed and versions.asked.get("v1", 0) > 1)
        assert not cache.store.rules
        assert not found.problem
        assert found.silence == 0
        versions.served = ("v1beta2",)
        await eventually(lambda: "a" in cache.store.rules)
        versions.upgrade("v1")
        cluster.apply(rule("b"))
        await eventually(lambda: {"a", "b"} <= cache.store.rules.keys())


async def test_rules_stay_when_only_a_newer_version_than_before_is_served() -> None:
    """The server has one of the versions all the time, so the kind is never absent."""
    cluster, cache = Cluster(), ClusterCache()
    versions = Versions(cluster, "v1beta2")
    cluster.apply(rule("a"))
    async with watching(cluster, cache) as found:
        await eventually(lambda: "a" in cache.store.rules)
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
    async with watching(cluster, cache):
        await eventually(lambda: "a" in cache.store.rules)
        versions.upgrade()
        await eventually(lambda: not cache.store.rules)
        versions.served = ("v1beta2",)
        await eventually(lambda: "a" in cache.store.rules)


@pytest.mark.parametrize(("served", "names"), [(("v1",), ["a"]), (("v1beta2",), ["a"]), ((), [])])
async def test_a_snapshot_reads_the_same_version(served: tuple[str, ...], names: list[str]) -> None:
    cluster = Cluster()
    Versions(cluster, *served)
    cluster.apply(rule("a"))
    async with cluster.serving() as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        found = await take_objects(client)
    assert [obj["metadata"]["name"] for obj in found if obj["kind"] == "DeviceTaintRule"] == names
