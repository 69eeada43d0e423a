"""Memory over a long time: a million claim events on a MIG fleet and on a mixed one. Nodes come and go, agents stop,
and pods of 500 shapes are filtered, rejected, requeued and deleted.

It prints resident memory and counted objects at every tenth. It compares medians of resident memory: that of the last
tenth may exceed that of the second tenth by at most 5 percent and 4 MiB; else the exit status is 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.fleet import Fleet

TENTHS, SAMPLES = 10, 20  # samples of memory in each tenth
MAX_GROWTH, MAX_SLOPE, MAX_MIB = 1.05, 1.02, 4.0
NODES = {"mig": 10, "mixed": 100}  # a MIG node has 120 possible devices
EVENTS_PER_FILTER = {"mig": 250, "mixed": 100}
WARMING = 20  # times as many filters in the first tenth, until every cache is as full as it gets
EVENTS_PER_NODE, EVENTS_PER_LOOK = 500, 25_000
SECONDS_PER_EVENT = 0.1  # of the driven clock


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


class Row(NamedTuple):
    """One tenth of a soak."""

    events: int
    resident_mib: float  # median
    counted: dict[str, int]  # at its end


class Soak:
    """One fleet under a changing load whose size stays about the same."""

    def __init__(self, kind: str, nodes: int, shapes: int, waiting: int, seed: int = 1) -> None:
        self.fleet = Fleet(kind, seed)
        self.nodes, self.shapes, self.waiting = nodes, shapes, waiting
        self.events = self._pods = 0
        self._held: list[tuple[str, str]] = []  # claims and their nodes
        self._live: list[str] = []  # UIDs of pods
        self.fleet.fill(nodes, 0.0)
        self._most_held = 4 * nodes
        self._per_filter = EVENTS_PER_FILTER[kind]
        for shape in range(shapes):
            self._ask(shape)

    def run(self, events: int, samples: int = SAMPLES) -> Iterator[Row]:
        """Run `events` claim events and yield a row for each tenth."""
        for tenth in range(1, TENTHS + 1):
            memory = []
            for sample in range(1, samples + 1):
                self._per_filter = EVENTS_PER_FILTER[self.fleet.kind] // (WARMING if tenth == 1 else 1)
                until = events * ((tenth - 1) * samples + sample) // (TENTHS * samples)
                while self.events < until:
                    self.step()
                memory.append(resident_mib())
            yield Row(self.events, statistics.median(memory), self.counted())

    def counted(self) -> dict[str, int]:
        """How many objects of each kind there are."""
        fleet = self.fleet
        agents = {"agents": len(fleet.cache.slices.fabric), "silent": len(fleet.cache.slices.agents.silent)}
        return {
            "nodes": len(fleet.cache.store.nodes),
            **fleet.cache.builder.interned(),
            **fleet.filter_service.remembered(),
            **agents,
        }

    def step(self) -> None:
        """Make one claim event, and from time to time another event."""
        fleet, rng = self.fleet, self.fleet.rng
        self.events += 1
        fleet.now += SECONDS_PER_EVENT
        if self._held and (len(self._held) > self._most_held or rng.random() < 0.45):
            key, _ = self._held.pop(rng.randrange(len(self._held)))
            fleet.apply("resourceclaims", key, None)
        else:
            node = rng.choice(list(fleet.devices))
            self._held.append((fleet.hold(self.events, node, [rng.choice(fleet.devices[node])]), node))
        fleet.cache.snapshot()
        if self.events % self._per_filter == 0:
            self._filter()
        if self.events % EVENTS_PER_NODE == 0:
            self._replace_node()
        if self.events % EVENTS_PER_LOOK == 0:
            for _ in fleet.queueing_hints.find_schedulable("x"):
                pass

    def _filter(self) -> None:
        fleet, rng = self.fleet, self.fleet.rng
        self._ask(rng.randrange(self.shapes))
        if fleet.kind == "mixed":
            fleet.heartbeat(rng.choice(list(fleet.devices)))

    def _ask(self, shape: int) -> None:
        """Create a pod of a shape, and end an old one."""
        fleet, rng = self.fleet, self.fleet.rng
        self._pods += 1
        uid = f"p{self._pods}"
        # A tenth of the shapes asks for more than any node has: those pods wait.
        fleet.filter(fleet.pod(uid, shape, 100 if shape % 10 == 0 else 1 + shape % 4))
        self._live.append(uid)
        if len(self._live) > self.waiting:
            fleet.end(self._live.pop(rng.randrange(len(self._live))))

    def _replace_node(self) -> None:
        fleet, rng = self.fleet, self.fleet.rng
        gone = rng.choice(list(fleet.devices))
        for key, _ in [held for held in self._held if held[1] == gone]:
            fleet.apply("resourceclaims", key, None)
        self._held = [held for held in self._held if held[1] != gone]
        fleet.remove_node(gone)
        fleet.add_node()


def grew(rows: list[Row]) -> bool:
    """Whether resident memory grew after the first tenth."""
    second, middle, last = rows[1].resident_mib, rows[len(rows) // 2].resident_mib, rows[-1].resident_mib
    slope = last > middle * MAX_SLOPE + MAX_MIB / 2  # a slow but steady growth never ends
    return slope or last > second * MAX_GROWTH + MAX_MIB


SHOWN = (
    "nodes",
    "states",
    "allocation_signatures",
    "hardware_signatures",
    "rankings",
    "statuses",
    "placements",
    "selectors",
    "masks",
    "unschedulable",
    "agents",
    "silent",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000, help="claim events, half of them on each fleet")
    parser.add_argument("--shapes", type=int, default=500)
    parser.add_argument("--waiting", type=int, default=1000, help="pods at a time")
    args = parser.parse_args()
    failed = False
    for kind in ("mig", "mixed"):
        begin = time.monotonic()
        soak, rows = Soak(kind, NODES[kind], args.shapes, args.waiting), []
        print(f"\n{kind} fleet, {NODES[kind]} nodes at a time, {args.shapes} shapes")
        print("   events      MiB  " + " ".join(f"{name:>10}" for name in SHOWN))
        for row in soak.run(args.events // 2):
            rows.append(row)
            print(
                f"{row.events:9} {row.resident_mib:8.1f}  "
                + " ".join(f"{row.counted[name]:{max(10, len(name))}}" for name in SHOWN),
                flush=True,
            )
        trend = "grew" if grew(rows) else "did not grow"
        print(f"resident memory {trend} from the second tenth to the last; {time.monotonic() - begin:.0f} s")
        failed = failed or grew(rows)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
