"""Time to plan a gang, on empty and half-full fleets: medians, and ratios within one run.

The rankings are those that filter keeps, so they exist. "first" is the first plan of a shape, and "again" is a plan
after some nodes changed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence

from benchmarks import gang_waking
from extender.allocation import Snapshot
from extender.gangs.domains import NODE
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangMember, GangPlan, GangProblem
from extender.gangs.node_rooms import GangMemory
from extender.scheduling import NodeRanking
from extender.scheduling.subgroup_tree import SubGroup
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld
from tests.worlds.running_berth import Json

MACHINES = ("hgx-h100-8", "hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100", "l40s-8-pix")
MEMBERS = 256
CHANGED = 50  # nodes that change before a plan is made again
NODES_PER_CLIQUE, NODES_PER_RACK, NODES_PER_SPINE = 8, 16, 256


def fleet(nodes: int, machines: Sequence[str], share: float) -> GangWorld:
    """Nodes on which so much of the devices is in use."""
    world, rng = GangWorld(), random.Random(1)
    for i in range(nodes):
        name, labels = f"node-{i}", {}
        for label, size in ((CLIQUE, NODES_PER_CLIQUE), (RACK, NODES_PER_RACK), (SPINE, NODES_PER_SPINE)):
            labels[label] = f"{label}-{i // size}"
        world.add_node(name, machines[i % len(machines)], labels)
        taken = [f"gpu-{gpu}" for gpu in range(8) if rng.random() < share]
        if taken:
            world.use(name, taken)
    return world


def changed(world: GangWorld, rng: random.Random, nodes: int) -> None:
    """Claims on some nodes come and go."""
    for _ in range(CHANGED):
        node = rng.randrange(nodes)
        world.use(f"node-{node}", [f"gpu-{gpu}" for gpu in range(8) if rng.random() < 0.5])


def planned(world: GangWorld, problem: GangProblem) -> tuple[float, GangPlan]:
    """(milliseconds of CPU, the plan). Planning waits for nothing, so the load of the machine matters less."""
    snapshot = world.cache.snapshot()
    context = world.evaluator.evaluation_context(snapshot)
    ranked(world, problem.members, snapshot)
    start = time.process_time()
    found = plan_gang(problem, snapshot, context, world.rankings, world.memory)
    took = 1000 * (time.process_time() - start)
    assert isinstance(found, GangPlan), found
    return took, found


def ranked(world: GangWorld, members: Sequence[GangMember], snapshot: Snapshot) -> NodeRanking:
    """The ranking of the members, up to date as filter leaves it."""
    ranking = world.rankings.get_or_create(members[0].requirements)
    ranking.update(snapshot, world.evaluator.evaluation_context(snapshot))
    return ranking


def slices(members: Sequence[GangMember]) -> tuple[SubGroup, ...]:
    """Slices of 16 members in one rack each, and in these slices of 4 on one node."""
    uids = [member.uid for member in members]
    inner = [SubGroup(f"slice {start}", NODE, tuple(uids[start : start + 4])) for start in range(0, len(uids), 4)]
    return tuple(
        SubGroup(
            f"slice {start}", RACK, tuple(uids[start : start + 16]), inner=tuple(inner[start // 4 : start // 4 + 4])
        )
        for start in range(0, len(uids), 16)
    )


def measure(problem: GangProblem, world: GangWorld, nodes: int, rounds: int) -> Json:
    """Medians in milliseconds of CPU."""
    rng, first, again, level = random.Random(2), [], [], ""
    for _ in range(rounds):
        changed(world, rng, nodes)
        world.memory = GangMemory()
        took, found = planned(world, problem)
        first.append(took)
        changed(world, rng, nodes)
        again.append(planned(world, problem)[0])
        level = found.level
    return {"first": statistics.median(first), "again": statistics.median(again), "level": level or "all nodes"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print(f"{MEMBERS} members on {args.nodes} nodes; ms of CPU, and the ratio to one GPU each, any topology, again")
    for name, machines, share in (("empty", ("hgx-h100-8",), 0.0), ("half full, mixed", MACHINES, 0.5)):
        world = fleet(args.nodes, machines, share)
        base = 0.0
        print(f"\n{name}: {len(world.cache.snapshot().states)} node states")
        for count, topology, notes, cut in (
            (1, "none", {}, False),
            (1, "preferred", {}, False),
            (1, "none", {}, True),
            (1, "preferred", {}, True),
            (2, "preferred", {}, False),
            (2, "preferred", {"topology": "required"}, False),
        ):
            members = world.gang(MEMBERS, count, f"{topology}-{count}-{len(notes)}-{cut}", **notes)
            problem = GangProblem(members, (CLIQUE, RACK, SPINE), topology, subgroups=slices(members) if cut else ())
            row = measure(problem, world, args.nodes, args.rounds)
            base = base or row["again"]
            text = f"{count} GPU{'s' * (count > 1)}, {topology}{', NVLink' if notes else ''}{', slices' if cut else ''}"
            print(
                f"  {text:28} first {row['first']:7.1f} {row['first'] / base:6.2f}x   "
                f"again {row['again']:7.1f} {row['again'] / base:6.2f}x   level: {row['level']}",
                flush=True,
            )
    gang_waking.show(args.nodes)


if __name__ == "__main__":
    main()
