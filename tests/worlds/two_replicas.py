"""Two Berth replicas, two schedulers and another allocator on one API server with faults, in virtual time and by seed.

A run takes some minutes of a SkippingLoop, and a fraction of a second of CPU. A seed gives the same faults. In three of
four cases it gives the same run: Berth also measures its own CPU time, which can change the order at one moment.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

from extender.api.object_meta import ObjectKey
from extender.api.pods import decode_pod
from extender.base.berth_errors import BerthError
from extender.serve import Service
from tests.worlds.dra_worlds import extended
from tests.worlds.faulty_api import CLAIMS, Faults
from tests.worlds.faulty_world import NODES, Replica, World
from tests.worlds.running_berth import claim, pod, status_in_use
from tests.worlds.skipping_loop import in_virtual_time
from tests.worlds.write_checker import devices_of, now, reserved_for, uses

Json = dict[str, Any]
_CHAOS_SECONDS = 60.0
_CALM_SECONDS = 100.0  # longer than the grace period of the orphan collector
_EMPTY_SECONDS = 75.0  # as well
_BIND_SECONDS = 30.0  # httpTimeout


class Scheduler:
    """kube-scheduler with one extender, as far as Berth sees it."""

    def __init__(self, world: World, replica: Replica, name: str) -> None:
        self._world = world
        self._replica = replica
        self._random = world.rng(name)
        self._binding: dict[str, asyncio.Task[None]] = {}
        self._backs_off: dict[str, float] = {}  # by name of a rejected pod, until when

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(4) + 0.01)
            waiting = [
                one
                for one in self._world.pods()
                if not one["spec"].get("nodeName")
                and (name := one["metadata"]["name"]) not in self._binding
                and self._backs_off.get(name, 0.0) <= now()
            ]
            if waiting:
                # The other scheduler may bind this pod, too: each takes itself for the leader.
                same = [one for one in waiting if one["metadata"]["name"] == self._world.last_bound]
                await self._try(self._random.choice(same if same and self._random.random() < 0.9 else waiting))

    async def _try(self, one: Json) -> None:
        service = self._replica.service
        if service is None or self._replica.is_stopped:
            return
        await service.refresh.wait()
        if self._replica.is_stopped:
            return
        found, name = service.filter(decode_pod(one), list(NODES)), one["metadata"]["name"]
        rejected = bool(found.error) or not found.passed
        self._backs_off[name] = now() + self._random.uniform(0.5, 10.0 if rejected else 3.0) * (1 + now() // 60)
        if found.passed and not rejected:
            node = self._random.choice(found.passed)
            key, uid = ObjectKey("default", name), one["metadata"]["uid"]
            self._binding[name] = task = asyncio.create_task(self._bind(service, key, uid, node))
            task.add_done_callback(lambda _: self._binding.pop(name))

    async def _bind(self, service: Service, key: ObjectKey, uid: str, node: str) -> None:
        self._world.binds += 1
        self._world.last_bound = key.name
        try:
            async with asyncio.timeout(_BIND_SECONDS):
                await self._replica.do(service.bind(key, uid, node))
        except (BerthError, TimeoutError):
            await asyncio.sleep(self._random.uniform(0.5, 2.0))  # the back-off
        except asyncio.CancelledError:
            if self._replica.service is service:
                raise
            await asyncio.sleep(1.0)  # the replica was killed


class Users:
    """Create pods of all kinds, and delete some."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.rng("users")

    async def run(self) -> None:
        for number in range(30):
            self._create(number)
            await asyncio.sleep(self._random.expovariate(0.6))
            pods = self._world.pods()
            if pods and self._random.random() < 0.6:
                self._world.delete(self._random.choice(pods))

    def _create(self, number: int) -> None:
        apply, name, count = self._world.cluster.apply, f"p{number}", self._random.choice((1, 1, 2, 3))
        match self._random.choice(("own", "shared", "shared", "extended", "extended", "two")):
            case "own":
                apply(claim(f"{name}-c", count))
                apply(pod(name, f"{name}-c"))
            case "shared":
                apply(claim(f"{name}-shared", count))
                for i in range(self._random.choice((2, 3))):
                    apply(pod(f"{name}-{i}", f"{name}-shared"))
            case "extended":
                apply(extended(name, count))
            case _:
                for part in ("a", "b"):
                    apply(claim(f"{name}-{part}"))
                apply(pod(name, f"{name}-a", f"{name}-b"))
                apply(pod(f"{name}-too", f"{name}-b"))


class Allocator:
    """Another scheduler. It takes only devices that are free in the store, and at times a claim that Berth's pods
    share."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.rng("allocator")

    async def run(self) -> None:
        for number in range(12):
            await asyncio.sleep(self._random.expovariate(0.3))
            self._take(f"other{number}")

    def _take(self, name: str) -> None:
        world, node = self._world, self._random.choice(list(NODES))
        claims = world.cluster.store.all("resourceclaims")
        taken = {device for one in claims for device in devices_of(one)}
        free = [d for d in (("gpu.nvidia.com", node, f"gpu-{i}") for i in range(4)) if d not in taken]
        idle = [c["metadata"]["name"] for c in claims if "shared" in c["metadata"]["name"] and not devices_of(c)]
        used = self._random.choice(idle) if idle and self._random.random() < 0.5 else f"{name}-c"
        if used.startswith(name):
            world.cluster.apply(claim(used))
        stored = world.cluster.store["resourceclaims", ("default", used)]
        count = stored["spec"]["devices"]["requests"][0]["exactly"]["count"]
        if stored["metadata"].get("deletionTimestamp") or len(free) < count:
            return
        made = world.cluster.apply(pod(name, used, nodeName=""))
        results = [dict(zip(("driver", "pool", "device"), d, strict=True), request="gpu") for d in free[:count]]
        status = status_in_use(results, {name: made["metadata"]["uid"]}, node)
        world.cluster.api.registry.patch(CLAIMS, ("default", used), {"status": status}, "status", strategic=False)
        world.cluster.api.registry.bind(("default", name), {"target": {"name": node}})


class Controllers:
    """Acts as kube-controller-manager does some seconds later (`tests/e2e/test_claim_controller.py`).

    It removes claims and reservations that a late write made for a pod that has ended, and reserves an allocated claim
    for a bound pod.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.rng("controllers")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(1.0, 5.0))
            pods = {one["metadata"]["uid"] for one in self._world.pods()}
            for one in self._world.cluster.store.all("resourceclaims"):
                self._sync(one, pods)
            for one in self._world.pods():
                self._reserve(one)

    def _sync(self, one: Json, pods: set[str]) -> None:
        registry, key = self._world.cluster.api.registry, ("default", one["metadata"]["name"])
        reserved = (one.get("status") or {}).get("reservedFor") or []
        left = [entry for entry in reserved if entry["uid"] in pods]
        ownerless = any(owner["uid"] not in pods for owner in one["metadata"].get("ownerReferences") or ())
        if len(left) < len(reserved):
            status = {"reservedFor": left} if left else {"reservedFor": None, "allocation": None, "devices": None}
            registry.patch(CLAIMS, key, {"status": status}, "status", strategic=False)
        if ownerless and not left:
            registry.patch(CLAIMS, key, {"metadata": {"finalizers": []}}, "", strategic=False)
            registry.delete(CLAIMS, key)

    def _reserve(self, one: Json) -> None:
        name, uid = one["metadata"]["name"], one["metadata"]["uid"]
        for used in uses(one) if one["spec"].get("nodeName") else ():
            stored = self._world.cluster.store.get("resourceclaims", ("default", used))
            if stored is not None and devices_of(stored) and uid not in reserved_for(stored):
                entries = [*(stored["status"].get("reservedFor") or ()), {"resource": "pods", "name": name, "uid": uid}]
                change = {"status": {"reservedFor": entries}}
                self._world.cluster.api.registry.patch(CLAIMS, ("default", used), change, "status", strategic=False)


class Saboteur:
    """Sets the shares of the faults anew, makes watches late, cuts them, and kills replicas."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.rng("saboteur")

    async def run(self) -> None:
        while now() < _CHAOS_SECONDS:  # it is not cancelled, so that each deed is done to its end
            self._worsen(self._world.faults)
            await asyncio.sleep(self._random.expovariate(0.4))
            replica = self._random.choice(self._world.replicas)
            deeds = (
                "late",
                "late",
                "late",
                "cut",
                "forgotten",
                "killed",
                "killed",
                "stopped",
                "stopped",
                "ended",
                "jumped",
            )
            deed = self._random.choice(deeds)
            self._world.checker.note(f"{deed}: {replica.name}, {self._world.faults}")
            match deed:
                case "late":
                    replica.api.late_until = now() + self._random.uniform(1.0, 12.0)
                case "cut":
                    replica.api.cut_watches()
                case "forgotten":
                    self._world.cluster.store.forget_history()
                    replica.api.cut_watches()
                case "jumped":
                    replica.jump = self._random.uniform(-86400.0, 86400.0)
                case "stopped":
                    await replica.pause(self._random.choice((0.5, 3.0, 5.0, 6.5, 9.0, 20.0)))
                case "ended":
                    self._world.ends += 1
                    await replica.stop()
                    await asyncio.sleep(self._random.uniform(0.0, 2.0))
                    await replica.start()
                case _:
                    await replica.kill()
                    await asyncio.sleep(self._random.uniform(0.1, 5.0))
                    await replica.start()

    def _worsen(self, faults: Faults) -> None:
        pick = self._random.choice
        faults.lost, faults.cut = pick((0.0, 0.02, 0.1)), pick((0.0, 0.02, 0.1))
        faults.refused, faults.conflicts = pick((0.0, 0.05, 0.3)), pick((0.0, 0.05, 0.3))
        faults.slow, faults.denied = pick((0.0, 0.1, 0.3, 0.6)), pick((0.0, 0.3, 0.6))


async def _run(seed: int) -> World:
    random.seed(seed)  # for the jitter of back-offs
    world = World(seed)
    for replica in world.replicas:
        await replica.start()
    schedulers = [Scheduler(world, one, f"scheduler{i}") for i, one in enumerate(world.replicas)]
    work = [*(one.run() for one in schedulers), Controllers(world).run()]
    scheduling = [asyncio.create_task(one) for one in work]
    chaos = [asyncio.create_task(one) for one in (Users(world).run(), Allocator(world).run())]
    await Saboteur(world).run()
    await _end(*chaos)
    world.faults.stop()
    for replica in world.replicas:
        if replica.service is None:
            await replica.start()
    await asyncio.sleep(_CALM_SECONDS)
    world.checker.check_rest()
    for one in world.pods():
        world.delete(one)
    await asyncio.sleep(_EMPTY_SECONDS)
    world.checker.check_empty()
    await _end(*scheduling)
    _check_replicas(world)
    for replica in world.replicas:
        await replica.stop()
    return world


def _check_replicas(world: World) -> None:
    wrong = world.checker.wrong
    for replica in world.replicas:
        service = replica.service
        assert service is not None
        left = service.cache.reservations.by_claim
        wrong += [f"reservations are left: {left}"] if left else []
        wrong += [f"{len(service.binder.running)} binds have not ended"] if service.binder.running else []
        wrong += [f"{name} failed" for name, count in replica.tasks.failures.items() if count]


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


def run(seed: int) -> World:
    """One run; the caller reads its checker."""
    return in_virtual_time(_run(seed))
