"""The memory of rankings: their number and their bytes have bounds, and the bounds cost little time."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import orjson
import pytest

from benchmarks.fleet import Fleet
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod, decode_pod
from extender.api.resource_claims import PodClaim
from extender.scheduling import NodeRanking, RankingCache, node_ranking
from tests.worlds import evaluation_worlds


def test_the_number_of_rankings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_ranking, "_MAX_RANKINGS", 3)
    fleet, rankings = Fleet("mixed"), RankingCache()
    for shape in range(6):
        rankings.get_or_create(fleet.requirements(fleet.pod(f"p{shape}", shape, 1)))
    assert len(rankings) == 3


@pytest.mark.parametrize(("most", "limit_bytes"), [(8, 128 << 20), (4096, 1 << 20)], ids=["number", "bytes"])
def test_the_rankings_of_one_namespace_do_not_replace_those_of_others(
    most: int, limit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods that shared 64 claims of 120 KB once evicted all rankings, so the pods of others were evaluated again."""
    monkeypatch.setattr(node_ranking, "_MAX_RANKINGS", most)
    rankings = RankingCache(limit_bytes)
    fleet = evaluation_worlds.Fleet(kinds=1, rankings=rankings)
    honest = fleet.pod("honest")

    def evaluations() -> int:
        before = rankings.evaluations
        assert fleet.filter_service.filter(honest, fleet.names).passed
        fleet.cache.release(honest.uid)
        return rankings.evaluations - before

    assert evaluations()
    for _ in range(20):
        fleet.filter_service.filter(hostile := fleet.large("hostile", 1), fleet.names)
        fleet.cache.release(hostile.uid)
    assert len(rankings) < 10, "the limit is reached"
    assert not evaluations()


def test_a_call_measures_few_rankings_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant with thousands of shapes must not make the calls of others slow."""
    fleet, measured = Fleet("mixed"), list[NodeRanking]()

    class Counted(NodeRanking):
        @property
        def estimated_bytes(self) -> int:
            measured.append(self)
            return super().estimated_bytes

    monkeypatch.setattr(node_ranking, "NodeRanking", Counted)
    rankings = RankingCache()
    for shape in range(200):
        rankings.get_or_create(fleet.requirements(fleet.pod(f"p{shape}", shape, 1)))
    assert len(measured) <= 2 * 200, "a call measures the new ranking and the one before it"


def long_spec(fleet: Fleet, number: int) -> Pod:
    """A pod whose claim has 256 alternatives."""
    alternatives = [{"name": f"a{i}", "deviceClassName": fleet.driver, "count": 1} for i in range(8)]
    requests = [{"name": f"r{i}-{number}", "firstAvailable": alternatives} for i in range(32)]
    metadata = {"namespace": "x", "name": f"c{number}", "uid": f"c{number}", "resourceVersion": "1"}
    fleet.apply("resourceclaims", f"x/c{number}", {"metadata": metadata, "spec": {"devices": {"requests": requests}}})
    return Pod(ObjectKey("x", f"p{number}"), f"p{number}", claims=(PodClaim("c", f"c{number}"),))


def many_containers(_: Fleet, number: int) -> Pod:
    """A pod with extended resources in 30 containers, as decoded from its JSON: no text is shared with another pod."""
    requests = {f"example.com/resource-{i}": "7" for i in range(5)} | {"nvidia.com/gpu": str(number + 1)}
    containers = [{"name": f"container-{i}", "resources": {"requests": requests}} for i in range(30)]
    metadata = {"namespace": "x", "name": f"p{number}", "uid": f"p{number}"}
    return decode_pod(orjson.loads(orjson.dumps({"metadata": metadata, "spec": {"containers": containers}})))


@pytest.mark.parametrize("make", [long_spec, many_containers])
def test_the_estimate_of_a_ranking_has_what_its_pod_keeps(make: Callable[[Fleet, int], Pod]) -> None:
    """The ranking of a small fleet has few statuses, but a tenant may have thousands of long shapes."""
    fleet = Fleet("mixed")
    fleet.fill(1, 0.5)
    rankings = fleet.filter_service.rankings

    def ask(number: int) -> None:
        fleet.filter(make(fleet, number))
        if make is long_spec:
            fleet.apply("resourceclaims", f"x/c{number}", None)
        fleet.cache.snapshot()
        fleet.now += 100  # the namespace has earned the time of the next call

    ask(0)
    gc.collect()
    tracemalloc.start()
    try:
        before, known = tracemalloc.get_traced_memory()[0], rankings.estimated_bytes
        for number in range(1, 6):
            ask(number)
        gc.collect()
        kept, estimated = tracemalloc.get_traced_memory()[0] - before, rankings.estimated_bytes - known
    finally:
        tracemalloc.stop()
    assert len(rankings) == 6
    assert kept > 5 * 20_000, "it is a large shape"
    assert kept < 1.2 * estimated
