"""Waiting gangs after changes of nodes: how long the search for a gang that fits blocks the event loop, and how often
it plans.

All times are CPU time, so the load of the machine changes them little.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import NamedTuple

from benchmarks.fleet import Fleet
from extender.api.pod_groups import GroupKey, GroupSource, Membership
from extender.serve.filter import FilterSink
from extender.serve.gangs.gang_monitor import GangHints
from extender.serve.gangs.gang_scheduler import GangScheduler
from tests.worlds.gang_fleet import CountedPlanning, no_bound_members

GPUS = 8  # of each node, and of each member


class Cost(NamedTuple):
    """The cost of some changes. Times are milliseconds of CPU."""

    plans: float  # of a change, all gangs together
    search: float  # of a change
    step: float  # the longest step


class World:
    """A half-full fleet with gangs that lack room for some members."""

    def __init__(self, nodes: int, gangs: int, members: int) -> None:
        self.fleet = Fleet("mixed")
        self.fleet.fill(nodes, 0.5)
        fleet = self.fleet
        self._planning = CountedPlanning(fleet.cache, fleet.filter_service)
        self._scheduler = GangScheduler(
            fleet.cache, fleet.filter_service, self._planning, no_bound_members, FilterSink(), lambda: fleet.now
        )
        self._hints = GangHints(self._scheduler, fleet.cache, self._planning, fleet.filter_service)
        self._keys = [GroupKey("x", GroupSource.BERTH, f"gang-{number}") for number in range(gangs)]
        for key in self._keys:
            self._wait(key, members)
        fleet.touch_node("node-000001", {"event": "first"})
        self._search()

    def _wait(self, key: GroupKey, members: int) -> None:
        pods = [self.fleet.pod(f"{key.name}-{rank}", 0, GPUS) for rank in range(members)]
        pods = [replace(pod, membership=Membership(key, members, rank)) for rank, pod in enumerate(pods)]
        for pod in pods:
            self.fleet.cache.apply_pod(pod.uid, pod)
        answer = self._scheduler.filter(pods[0], list(self.fleet.devices))
        assert not answer.passed, "the gang fits"

    def _search(self) -> list[float]:
        """The milliseconds of each step."""
        self.fleet.cache.snapshot()  # every filter pays for that, too
        took, before = [], time.thread_time()
        for fits in self._hints.find_schedulable("x"):
            now = time.thread_time()
            took.append(1000 * (now - before))
            before = now
            assert not fits
        return took

    def cost(self, changes: int, free: int, *, forget: bool = False) -> Cost:
        """Changes that each leave so many free devices on a node that had none.

        `forget`: the needs of all gangs are forgotten before each, as if a member of each had changed.
        """
        plans, steps, whole = 0, list[float](), 0.0
        for change in range(changes):
            node = f"node-{change + 1:06}"
            self.fleet.hold(change, node, self.fleet.devices[node])
            self._search()
            for key in self._keys if forget else ():
                self._scheduler.admission.retry_soon(key)
            before = self._planning.plans
            self.fleet.hold(change, node, self.fleet.devices[node][free:])
            found = self._search()
            plans += self._planning.plans - before
            whole += sum(found)
            steps += found
        return Cost(plans / changes, whole / changes, max(steps))


def measure(nodes: int, gangs: int, members: int, changes: int) -> tuple[Cost, Cost, Cost]:
    """The costs of changes that give room to no member, of changes that give room to one, and of plans."""
    world = World(nodes, gangs, members)
    gc.collect()
    gc.freeze()  # as serve does once everything is listed
    return world.cost(changes, GPUS - 1), world.cost(changes, GPUS), world.cost(changes, GPUS, forget=True)


def show(nodes: int, gangs: int = 64, members: int = 256, changes: int = 4) -> None:
    """Print the costs."""
    useless, useful, planned = measure(nodes, gangs, members, changes)
    print(f"\n{gangs} waiting gangs of {members} members, {nodes} half-full nodes, one node changes:")
    for text, cost in (
        ("no member fits there", useless),
        ("a member fits there", useful),
        ("all are planned", planned),
    ):
        print(
            f"  {text:22} {cost.plans:5.1f} plans, {cost.search:7.1f} ms ({cost.search / useless.search:.1f}x), "
            f"longest step {cost.step:5.1f} ms",
            flush=True,
        )
