"""The cost of a shape of GPUs and NICs that is new to half-full nodes, against a shape of as many GPUs alone.

All times are CPU time. The shapes are measured in turn, and the least of several times counts.
"""

from __future__ import annotations

import argparse
import gc
import random
import time

from extender.allocation import Features
from extender.api.nodes import decode_node
from extender.api.resource_slices import SliceDecoder
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, nic_slice, node_object
from extender.scheduling import Evaluator, PodRequirements, RankingCache
from tests.worlds.nic_worlds import GPU, NIC, NicFleet, counted, paired

MACHINE = "hgx-h100-8"  # a NIC beside each of eight GPUs
ROUNDS = 7


def half_full(nodes: int) -> NicFleet:
    """A fleet on which other pods hold half of the GPUs and NICs."""
    fleet, decoder, rng = NicFleet({}), SliceDecoder(), random.Random(1)
    machine = carried_machines()[MACHINE]
    for number in range(nodes):
        name, held = f"node-{number:05}", list[tuple[str, str]]()
        fleet.cache.apply_node(name, decode_node(node_object(name, machine, {})))
        for obj in (gpu_slice(name, machine), fabric_slice(name, machine), nic_slice(name, machine)):
            fleet.cache.apply_slice(obj["metadata"]["name"], decoder.decode(obj))
            driver = obj["spec"]["driver"]
            held += [(driver, d["name"]) for d in obj["spec"]["devices"] if driver in (GPU, NIC) and rng.random() < 0.5]
        fleet.hold(name, held)
    return fleet


def cost(fleet: NicFleet, asking: PodRequirements) -> float:
    """CPU milliseconds until all nodes are ranked for requirements that no earlier pod had."""
    snapshot = fleet.cache.snapshot()
    ranking = RankingCache().get_or_create(asking)
    context = Evaluator(Features()).evaluation_context(snapshot)
    begin = time.thread_time()
    assert ranking.update(snapshot, context)
    return 1000 * (time.thread_time() - begin)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    args = parser.parse_args()
    fleet = half_full(args.nodes)
    gc.collect()
    gc.freeze()
    gc.disable()
    print(f"\nshapes new to {args.nodes} half-full nodes of {MACHINE}: CPU milliseconds, and times the GPUs alone")
    for count in (1, 2, 4):
        asked = {"GPUs": counted(count, 0)[:1], "counted": counted(count, count), "paired": paired(count)}
        shapes = {name: fleet.asking(requests) for name, requests in asked.items()}
        took = dict.fromkeys(shapes, float("inf"))
        for _ in range(ROUNDS):
            took = {name: min(least, cost(fleet, shapes[name])) for name, least in took.items()}
        row = "  ".join(f"{name} {found:.0f} ({found / took['GPUs']:.2f})" for name, found in took.items())
        print(f"{count} of each: {row}", flush=True)


if __name__ == "__main__":
    main()
