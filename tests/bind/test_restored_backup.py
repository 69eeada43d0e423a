"""etcd is restored from a backup, so resourceVersions go back: nothing is held twice, and Berth lists again."""

from __future__ import annotations

import asyncio

from extender.api.object_meta import ObjectKey
from extender.api.pods import decode_pod
from extender.base.berth_errors import BerthError
from extender.cluster.reflector import Timing
from tests.worlds.faulty_api import CLAIMS
from tests.worlds.faulty_world import Replica, World
from tests.worlds.running_berth import jobs
from tests.worlds.skipping_loop import in_virtual_time

WHOLE_NODE = 4


async def schedule(world: World, replica: Replica, name: str) -> None:
    """Filter the pod for n1, and bind it there if it fits."""
    one, service = world.cluster.store["pods", ("default", name)], replica.service
    assert service is not None
    await service.refresh.wait()
    if service.filter(decode_pod(one), ["n1"]).passed:
        try:
            await service.bind(ObjectKey("default", name), one["metadata"]["uid"], "n1")
        except BerthError as error:
            world.checker.note(f"{replica.name} does not bind {name}: {error}")


async def _run() -> World:
    """Replica b is started again after the restore, replica a is not: its watches show nothing."""
    world = World(1)
    store, (a, b) = world.cluster.store, world.replicas
    await a.start()
    await b.start()
    for one in jobs(mine=WHOLE_NODE, other=WHOLE_NODE):
        world.cluster.apply(one)
    await asyncio.sleep(10)
    backup = store.copy()
    for number in range(30):
        change = {"metadata": {"annotations": {"number": str(number)}}}
        for name in ("mine", "other"):
            world.cluster.api.registry.patch(CLAIMS, ("default", name), change, "", strategic=False)
    await asyncio.sleep(10)
    store.restore(backup)
    await b.kill()
    await b.start()
    await asyncio.sleep(10)
    assert a.service is not None
    reflector = a.service.informers.reflectors["resourceclaims"]
    assert int(reflector.version) > store.version, "its watch waits for a version that is long ahead"
    await schedule(world, b, "other")
    for _ in range(10):
        await schedule(world, a, "mine")
        await asyncio.sleep(Timing().blind_seconds / 5)
    assert int(reflector.version) == store.version
    assert not a.service.informers.degraded
    for replica in world.replicas:
        await replica.stop()
    return world


def test_nothing_is_held_twice_after_a_restore() -> None:
    world = in_virtual_time(_run())
    assert world.checker.wrong == []
    bound = {one["metadata"]["name"] for one in world.pods() if one["spec"].get("nodeName")}
    assert bound == {"other"}, world.checker.trace
