"""All of Berth but HTTP on a mixed fleet: share of GPUs allocated and bandwidth of jobs, by the weight of `link`.

`make picture` draws the table of docs/quality.md with `drawn`, as docs/img/weights.svg.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Mapping
from dataclasses import replace

from extender.allocation import Features
from extender.api.fields import Json
from extender.api.pods import Pod, decode_pod
from extender.api.resource_claims import Allocation, Claim, Result, decode_claim
from extender.api.resource_slices import DeviceId
from extender.base.deadline import NO_DEADLINE
from extender.cache import ClusterCache
from extender.policy import Policy, Weights
from extender.runtime.informers import watched_resources
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS
from extender.scheduling import Evaluator, Placement, PodRequirements, requirements_of
from extender.serve.filter import FilterService

FLEET = {
    "hgx-h100-8": 6,
    "a100-pcie-8-bridged": 8,
    "dgx1-v100": 6,
    "h100-pcie-8-bridged": 6,
    "l40s-8-pix": 8,
    "rtx-a6000-4-bridged": 8,
}
TRAY = "gb200-nvl72-tray"
SIZES, SHARES = (1, 2, 4, 8), (40, 30, 20, 10)
LINKS = (0, 1, 2, 4, 8, 16, 32)
SEEDS = 3


class Fleet:
    """A cache and a filter service in one process, with the writes of a bind."""

    def __init__(self, policy: Policy, fleet: Mapping[str, int] = FLEET) -> None:
        features = Features()
        self.cache = ClusterCache(features)
        apply = {kind.name: kind.apply for kind in watched_resources(self.cache)}
        apply["deviceclasses"]("gpu.nvidia.com", GPU_CLASS)
        for kind, count in fleet.items():
            labels = {policy.group_levels[0]: kind} if kind == TRAY else {}  # all trays are one clique
            for i in range(count):
                name, machine = f"{kind}-{i:02}", carried_machines()[kind]
                apply["nodes"](name, node_object(name, machine, labels))
                for obj in (gpu_slice(name, machine), fabric_slice(name, machine)):
                    apply["resourceslices"](obj["metadata"]["name"], obj)
        self.names = sorted(self.cache.store.nodes)
        self.filter_service = FilterService(self.cache, policy, Evaluator(features), lambda: 0.0)
        self.gpus = sum(len(s.devices) for s in self.cache.slices.published.values()) // 2

    def create(self, name: str, count: int, selector: str = "") -> tuple[Pod, Claim]:
        """A pod and its claim for so many GPUs."""
        request: Json = {"deviceClassName": "gpu.nvidia.com", "count": count}
        if selector:
            request["selectors"] = [{"cel": {"expression": selector}}]
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
        claim = decode_claim({"metadata": {"namespace": "x", "name": name, "uid": f"u-{name}"}, "spec": spec})
        self.cache.apply_claim(claim.key, claim)
        claims = [{"name": "g", "resourceClaimName": name}]
        metadata = {"namespace": "x", "name": name, "uid": f"p-{name}"}
        return decode_pod({"metadata": metadata, "spec": {"resourceClaims": claims}}), claim

    def requirements(self, pod: Pod) -> PodRequirements:
        found = requirements_of(pod, self.cache.snapshot(), self.filter_service.policy)
        assert isinstance(found, PodRequirements)
        return found

    def place(self, number: int, count: int) -> Placement | None:
        """Place a job on the best node, as filter and bind would."""
        pod, claim = self.create(f"c{number}", count)
        passed = self.filter_service.filter(pod, self.names).passed
        self.cache.release(pod.uid)
        if not passed:
            self.cache.apply_claim(claim.key, None)
            return None
        snapshot, requirements = self.cache.snapshot(), self.requirements(pod)
        placement = self.filter_service.evaluate_node(requirements, passed[0], snapshot, NO_DEADLINE)
        assert isinstance(placement, Placement)
        ((_, allocation),) = placement.allocations(
            snapshot.node_infos[passed[0]],
            requirements,
            self.filter_service.evaluation_context(snapshot),
            lambda: "share",
        )
        self.cache.apply_claim(claim.key, replace(claim, allocation=Allocation(allocation.results)))
        return placement

    def occupy(self, node: str, gpus: Collection[int]) -> None:
        """Allocate GPUs of a node to another pod."""
        _, claim = self.create(f"held-{node}", len(gpus))
        results = [Result("gpu", DeviceId("gpu.nvidia.com", node, f"gpu-{i}")) for i in gpus]
        self.cache.apply_claim(claim.key, replace(claim, allocation=Allocation(tuple(results))))


def run(policy: Policy, seed: int) -> tuple[float, float]:
    """(GPUs allocated over GPUs, mean of achieved over best ring bandwidth of jobs with more than one GPU)."""
    rng, fleet = random.Random(seed), Fleet(policy)
    arrived = placed = number = 0
    quality = []
    while arrived < fleet.gpus:
        count = rng.choices(SIZES, SHARES)[0]
        arrived += count
        number += 1
        placement = fleet.place(number, count)
        if placement is None:
            continue
        placed += count
        if count > 1:
            quality.append(next(part.value for part in placement.parts if part.name == "link"))
    return placed / fleet.gpus, statistics.mean(quality)


def report() -> list[dict]:
    print(
        f"\nmixed fleet of {sum(FLEET.values())} nodes, 100 % arrival, {SEEDS} seeds: GPUs allocated, ring bandwidth "
        "over the fleet's best"
    )
    rows = []
    for link in LINKS:
        policy = Policy(weights=Weights(link=link))
        found = [run(policy, seed) for seed in range(SEEDS)]
        share, gbps = (statistics.mean(column) for column in zip(*found, strict=True))
        rows.append({"link": link, "allocated": share, "bandwidth": gbps})
        print(f"link {link:3}: {share:6.1%} allocated, {gbps:6.1%} of the best bandwidth")
    return rows


def drawn(rows: list[dict]) -> str:
    """The rows as a picture: each point is a weight of `link`."""
    width, height, left, bottom = 640, 400, 70, 50
    xs, ys = [r["allocated"] for r in rows], [r["bandwidth"] for r in rows]
    low_x, high_x, low_y, high_y = min(xs) - 0.01, max(xs) + 0.01, min(ys) - 0.02, max(ys) + 0.02

    def x(v: float) -> float:
        return left + (v - low_x) / (high_x - low_x) * (width - left - 30)

    def y(v: float) -> float:
        return height - bottom - (v - low_y) / (high_y - low_y) * (height - bottom - 40)

    points = [(x(r["allocated"]), y(r["bandwidth"]), r["link"]) for r in rows]
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in points)
    dots = "".join(
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="#2563eb"/><text x="{a + 8:.1f}" y="{b - 6:.1f}">{n}</text>'
        for a, b, n in points
    )
    ticks = "".join(
        f'<text x="{x(v):.1f}" y="{height - bottom + 20}" text-anchor="middle">{v:.1%}</text>'
        for v in (min(xs), max(xs))
    )
    ticks += "".join(
        f'<text x="{left - 8}" y="{y(v):.1f}" text-anchor="end">{v:.0%}</text>' for v in (min(ys), max(ys))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="13">'
        f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="22" font-size="15">Weight of link '
        "in a mixed fleet: what it costs and what it brings</text>"
        f'<path d="M{left},{height - bottom} H{width - 20} M{left},{height - bottom} V30" stroke="#666" fill="none"/>'
        f'<text x="{(width + left) / 2}" y="{height - 8}" text-anchor="middle">GPUs allocated at 100 % arrival</text>'
        f'<text transform="translate(16,{height / 2}) rotate(-90)" text-anchor="middle">ring bandwidth over the '
        "best</text>"
        f'<polyline points="{line}" stroke="#93c5fd" fill="none"/>{dots}{ticks}</svg>\n'
    )
