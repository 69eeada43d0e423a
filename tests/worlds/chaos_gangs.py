"""Chaos with gangs: Berth, the scheduler or both end at every write of a gang's binds, and at every write that takes
one back; the gang then runs whole, or holds nothing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from extender.sandbox import ApiError, Cluster
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.chaos_world import Berths, Faults, chaotic, scheduler_of, settled
from tests.worlds.dra_worlds import extended
from tests.worlds.eventually import eventually
from tests.worlds.process_worlds import free_port
from tests.worlds.running_berth import claim, pod

Json = dict[str, Any]
SIZE = 3
NODES = {f"n{i}": "t4-4" for i in range(5)}  # room for one gang of three whole nodes, not for two
PODS = RESOURCES["", "pods"]
ENDING = {"berth": (True, False), "scheduler": (False, True), "both": (True, True)}


class Kind(NamedTuple):
    """How the pods of a gang ask for devices, and the number of writes that bind the gang."""

    apply: Callable[[Cluster, str], None]
    writes: int


def notes(group: str) -> dict[str, str]:
    return {"berth.dev/group": group, "berth.dev/group-min": str(SIZE)}


def apply_gang(cluster: Cluster, group: str) -> None:
    """Each pod has a claim for a whole node."""
    for i in range(SIZE):
        cluster.apply(claim(f"{group}-{i}", 4))
        cluster.apply(pod(f"{group}-{i}", f"{group}-{i}", annotations=notes(group)))


def apply_extended(cluster: Cluster, group: str) -> None:
    """Each pod asks for a whole node by an extended resource: Berth makes the claims."""
    for i in range(SIZE):
        cluster.apply(extended(f"{group}-{i}", 4, annotations=notes(group)))


def apply_pod_group(cluster: Cluster, group: str) -> None:
    """All pods use one claim, which belongs to their PodGroup."""
    api, spec = "scheduling.k8s.io/v1beta1", {"schedulingPolicy": {"gang": {"minCount": SIZE}}}
    made = cluster.apply({"apiVersion": api, "kind": "PodGroup", "metadata": {"name": group}, "spec": spec})
    one = claim(f"{group}-shared", 4)
    owner = {"apiVersion": api, "kind": "PodGroup", "name": group, "uid": made["metadata"]["uid"], "controller": True}
    one["metadata"]["ownerReferences"] = [owner]
    cluster.apply(one)
    for i in range(SIZE):
        entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
        member = pod(f"{group}-{i}", resourceClaims=[entry], schedulingGroup={"podGroupName": group})
        cluster.apply(member)
        status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{group}-shared"}]}
        cluster.api.registry.patch(PODS, ("default", f"{group}-{i}"), {"status": status}, "status", strategic=False)


KINDS = {
    "claims": Kind(apply_gang, 3 * SIZE),  # finalizer and status of each claim, and each Binding
    "extended resources": Kind(apply_extended, 5 * SIZE),  # also each claim itself, and the pod's status
    "claim of a PodGroup": Kind(apply_pod_group, 2 + SIZE),
}
WRITES = KINDS["claims"].writes


def group_of(one: Json) -> str:
    """The group of a pod or a claim of these gangs."""
    return str(one["metadata"]["name"]).partition("-")[0]


def remove_gang(cluster: Cluster, group: str) -> None:
    """The pods end, and their claims go with them."""
    for one in [one for one in cluster.store.all("pods") if group_of(one) == group]:
        cluster.api.registry.delete(PODS, ("default", one["metadata"]["name"]))
    for one in [one for one in cluster.store.all("resourceclaims") if group_of(one) == group]:
        cluster.store.remove("resourceclaims", ("default", one["metadata"]["name"]))


def bound(cluster: Cluster) -> Counter[str]:
    """Number of bound pods by group."""
    return Counter(group_of(p) for p in cluster.store.all("pods") if p["spec"].get("nodeName"))


def allocated(cluster: Cluster) -> Counter[str]:
    """Number of allocated claims by group."""
    claims = cluster.store.all("resourceclaims")
    return Counter(group_of(c) for c in claims if (c.get("status") or {}).get("allocation"))


class Chaos:
    """A cluster with a Berth process and a scheduler, both of which can end without notice."""

    def __init__(self, cluster: Cluster, faults: Faults, berths: Berths, port: int, seed: int) -> None:
        self.cluster = cluster
        self.faults = faults
        self._berths = berths
        self._port = port
        self._seed = seed
        self._tasks: list[asyncio.Task[None]] = []
        self.kills = 0

    def start_scheduler(self) -> None:
        """A scheduler that knows nothing of the one before."""
        scheduler = scheduler_of(self.cluster, self._port, self._seed)
        self._tasks.append(asyncio.create_task(scheduler.run()))

    def end(self, process: str) -> bool:
        """Kill Berth, or cut the scheduler's connections and start a new one, or both. Whether Berth is dead."""
        berth, scheduler = ENDING[process]
        if berth:
            self._berths.kill(self._port)
        if scheduler:
            self._tasks[-1].cancel()
            self.start_scheduler()
        self.kills += 1
        return berth

    async def ended_at(
        self, process: str, what: str, at: Callable[[str, str, str], bool], begin: Callable[[], None]
    ) -> None:
        """After `begin`, end the programs at the first write for which `at` is true, and start Berth again."""
        before = self.kills
        self.faults.on_write = lambda *write: self.kills == before and at(*write) and self.end(process)
        begin()
        await eventually(lambda: self.kills > before, f"{what}: the write point is reached")
        self.faults.on_write = lambda *_: False
        if ENDING[process][0]:
            await self._berths.start(self._port)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def chaos(seed: int) -> AsyncIterator[Chaos]:
    async with chaotic(seed, NODES) as (cluster, faults, berths):
        port = free_port()
        await berths.start(port)
        found = Chaos(cluster, faults, berths, port, seed)
        found.start_scheduler()
        try:
            yield found
        finally:
            await found.stop()


def is_of_pods(path: str) -> bool:
    """Whether a write is about pods or their claims; the requeuer writes a DeviceClass."""
    return "/deviceclasses/" not in path


def nth(when: str, number: int, concerns: Callable[[str], bool] = is_of_pods) -> Callable[[str, str, str], bool]:
    """Whether this is the moment before or after the write of this number, from 0."""
    seen = 0

    def at(moment: str, _: str, path: str) -> bool:
        nonlocal seen
        if moment != when or not concerns(path):
            return False
        seen += 1
        return seen == number + 1

    return at


async def gang_ended_at_writes(
    seed: int,
    times: int = 1,
    process: str = "berth",
    kind: str = "claims",
    points: Iterable[tuple[str, int]] | None = None,
) -> dict[str, int]:
    """Programs end before or after writes of a gang; afterwards the whole gang is bound."""
    done: Counter[str] = Counter()
    every = tuple((when, write) for when in ("before", "after") for write in range(KINDS[kind].writes))
    async with chaos(seed) as world:
        for turn in range(times):
            for when, write in every if points is None else points:
                name = f"g{turn}{when}{write}"
                begin = partial(KINDS[kind].apply, world.cluster, name)
                await world.ended_at(process, name, nth(when, write), begin)
                await _whole(world, name)
                done[f"{when} write {write}"] += 1
    return dict(done)


async def _whole(world: Chaos, name: str) -> None:
    wrong = await settled(world.cluster)
    assert not wrong, f"{name}: {wrong}"
    assert bound(world.cluster)[name] == SIZE
    remove_gang(world.cluster, name)


RELEASED = tuple((when, write) for when in ("before", "after") for write in range(SIZE - 1))


async def gang_ended_while_released(
    seed: int, times: int = 1, process: str = "berth", points: Iterable[tuple[str, int]] = RELEASED
) -> dict[str, int]:
    """The API server refuses the last claim of a gang, so that the other claims are released; programs end then.

    Write 0 after its reply is the refused one.
    """
    done: Counter[str] = Counter()
    async with chaos(seed) as world:
        for turn in range(times):
            for when, write in points:
                name = f"t{turn}{when}{write}"
                await _ended_while_released(world, name, process, when, write)
                await _whole(world, name)
                done[f"{when} release {write}"] += 1
    return dict(done)


async def _ended_while_released(world: Chaos, name: str, process: str, when: str, write: int) -> None:
    refused = False

    async def refuse(method: str, path: str) -> ApiError | None:
        nonlocal refused
        if method != "PATCH" or not path.endswith(f"resourceclaims/{name}-0/status"):
            return None
        await eventually(lambda: allocated(world.cluster)[name] == SIZE - 1, "the other claims are written")
        refused = True
        return ApiError(403, "Forbidden", "not now")

    world.cluster.api.intercept = refuse
    begin = lambda: apply_gang(world.cluster, name)  # noqa: E731
    await world.ended_at(process, name, nth(when, write, lambda path: refused and is_of_pods(path)), begin)
    world.cluster.api.intercept = None


async def two_gangs_and_kills(seed: int, rounds: int) -> dict[str, int]:
    """Two gangs compete for a fleet with room for one, and Berth is killed at a random write: never two halves."""
    rng = random.Random(seed)
    async with chaos(seed) as world:
        cluster = world.cluster
        for turn in range(rounds):
            groups = (f"a{turn}", f"b{turn}")

            def begin(groups: tuple[str, str] = groups) -> None:
                for group in groups:
                    apply_gang(cluster, group)

            await world.ended_at("berth", str(turn), nth("before", rng.randrange(WRITES - 1)), begin)
            await eventually(lambda: SIZE in bound(cluster).values(), "one gang runs whole")
            (first,) = (group for group in groups if bound(cluster)[group] == SIZE)
            second = next(group for group in groups if group != first)
            assert not bound(cluster)[second]
            await eventually(lambda second=second: not allocated(cluster)[second], "the waiting gang holds nothing")
            remove_gang(cluster, first)
            await eventually(lambda second=second: bound(cluster)[second] == SIZE, "then the other one runs")
            wrong = await settled(cluster)
            assert not wrong, wrong
            remove_gang(cluster, second)
    return {"rounds": rounds, "kills": world.kills}


def gang_scenarios(seed: int, times: int) -> Iterator[tuple[str, Coroutine[Any, Any, dict[str, int]]]]:
    """Every write point of gangs: each is reached so often."""
    for process in ENDING:
        yield f"a gang, {process} killed at every write point", gang_ended_at_writes(seed, times, process)
        yield f"a gang, {process} killed while it is released", gang_ended_while_released(seed, times, process)
    for kind in list(KINDS)[1:]:
        yield f"a gang ({kind}) killed at every write point", gang_ended_at_writes(seed, times, kind=kind)
