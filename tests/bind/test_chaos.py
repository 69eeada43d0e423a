"""A little of what `make chaos` does: once per write point, one pair of replicas, a small storm.

`tests/bind/test_two_replicas.py` has more pairs of replicas, in virtual time.
"""

from __future__ import annotations

from extender.sandbox import Cluster
from tests.worlds.chaos import (
    bind_storm,
    console_killed,
    killed_at_every_write,
    many_pending,
    outages,
    rolling_update,
    stopped_replicas,
    two_replicas,
)
from tests.worlds.chaos_world import check_objects
from tests.worlds.running_berth import claim, pod


async def test_killed_before_and_after_every_write() -> None:
    done = await killed_at_every_write(seed=7, times=1)
    assert len(done) == 10
    assert set(done.values()) == {1}


async def test_wall_clocks_that_jump() -> None:
    assert (await two_replicas(seed=5, pods=12, attempts=100, jumps=True))["bound"]


async def test_replicas_that_are_stopped_and_go_on() -> None:
    assert (await stopped_replicas(seed=3, pods=12, attempts=100, seconds=(1.5, 0.5)))["stopped"] == 2


async def test_bind_storm() -> None:
    assert await bind_storm(seed=1, pods=40) == {"bound": 40}


async def test_old_and_new_process_active_together() -> None:
    assert (await rolling_update(seed=2, pods=48))["bound"]  # the filter service has seen all 48


async def test_the_console_killed() -> None:
    assert (await console_killed(seed=6, pods=16, times=1))["bound"] == 16


async def test_outages_of_the_api_server() -> None:
    assert (await outages(seed=4, pods=24, times=3))["bound"] == 24


async def test_pods_that_fit_nowhere_leave_no_memory() -> None:
    assert (await many_pending(100))["pods"] == 100


def test_check_objects_finds_faults() -> None:
    cluster = Cluster()
    held = claim("a")
    held["status"] = {
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": "d", "pool": "n2", "device": "0"}]}}
    }
    other = claim("b")
    other["status"] = {**held["status"], "reservedFor": [{"resource": "pods", "name": "x", "uid": "x"}]}
    cluster.store.put("resourceclaims", ("default", "a"), held)
    cluster.store.put("resourceclaims", ("default", "b"), other)
    for name, one in (("p", claim("c")), ("q", None)):
        if one is not None:
            cluster.apply(one)
        cluster.apply(pod(name, "b" if name == "q" else "c"))
        cluster.store["pods", ("default", name)]["spec"]["nodeName"] = "n1"
    wrong = " ".join(check_objects(cluster))
    for words in (
        "claim a leaked",
        "held by ['a', 'b']",
        "pod p is bound and its claim has no devices",
        "its devices are elsewhere",
        "not reserved for it",
    ):
        assert words in wrong, wrong
