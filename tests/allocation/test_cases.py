"""The project's own cases of the allocator: results, number of steps, no side effects, and no randomness."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from extender.allocation import Features, Problem, Search
from extender.allocation.what_if import problem_of, usage_of
from extender.api.device_classes import decode_class
from extender.api.nodes import decode_node
from extender.api.resource_claims import decode_claim
from extender.api.resource_slices import DeviceId, SliceDecoder
from extender.base.berth_errors import InvalidClaim
from extender.cel.dra import Masks

ROOT = Path(__file__).resolve().parents[2]
CASES = yaml.safe_load((ROOT / "tests" / "cases" / "allocator.yaml").read_text())


def problem(case: dict) -> Problem:
    spec = {
        "driver": "d",
        "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2 if case.get("counters") else 1},
    }
    slices = [{"metadata": {"name": "s"}, "spec": {**spec, "devices": case["devices"]}}]
    if case.get("counters"):
        slices.append(
            {
                "metadata": {"name": "t"},
                "spec": {**spec, "sharedCounters": case["counters"], "devices": case.get("repeated", [])},
            }
        )
    claims = [
        decode_claim({"metadata": {"name": f"c{i}"}, "spec": {"devices": c}}) for i, c in enumerate(case["claims"])
    ]
    decoder = SliceDecoder()
    decoded = [decoder.decode(s) for s in slices]
    allocated_state = usage_of(decoded, [DeviceId("d", "p", t) for t in case.get("taken", [])], {})
    classes = {"any": decode_class({"metadata": {"name": "any"}, "spec": {}})}
    return problem_of(
        decode_node({"metadata": {"name": "n"}}),
        decoded,
        classes,
        [(str(c.key), c.spec) for c in claims],
        allocated_state,
        Features(**case.get("features", {})),
        Masks(),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict) -> None:
    before = copy.deepcopy(case)
    asked = problem(case)
    search = Search(asked)
    if case["expect"] == "error":
        with pytest.raises(InvalidClaim) as caught:
            search.run()
        assert case["text"] in str(caught.value)
        return
    solution = search.run()
    devices = asked.inventory.devices
    found = None if solution is None else [[devices[p.bit].id.device for p in claim] for claim in solution.picks]
    assert found == (None if case["expect"] == "none" else case["expect"])
    assert search.steps <= case.get("steps", 1000)
    assert case == before, "the question was changed"


SCRIPT = """
import asyncio, hashlib, random, sys
from extender.sandbox.machines import carried_machines, fabric_slice, gpu_slice, node_object
from extender.cache.cluster_cache import ClusterCache
from extender.policy import Policy
from extender.serve.evaluations import Evaluations
from extender.serve.filter import FilterService
from extender.allocation.device_rules import Features
from extender.api.resource_claims import decode_claim
from extender.api.device_classes import decode_class
from extender.api.nodes import decode_node
from extender.api.resource_slices import SliceDecoder
from extender.api import extender_v1 as wire
from extender.api.object_meta import ObjectKey
from extender.scheduling.evaluate import Evaluator
from extender.sandbox.sandbox_cluster import GPU_CLASS
import orjson
cache, decoder, rng = ClusterCache(), SliceDecoder(), random.Random(int(sys.argv[1]))
events = []
for i, (kind, machine) in enumerate(sorted(carried_machines().items()) * 2):
    name = f"{kind}-{i}"
    events.append(lambda n=name, m=machine: cache.apply_node(n, decode_node(node_object(n, m, {}))))
    for obj in (gpu_slice(name, machine), fabric_slice(name, machine)):
        s = decoder.decode(obj)
        events.append(lambda s=s: cache.apply_slice(s.name, s))
rng.shuffle(events)
for event in events: event()
cache.apply_class("gpu.nvidia.com", decode_class(GPU_CLASS))
names = sorted(cache.store.nodes)
rng.shuffle(names)
filter_service = FilterService(cache, Policy(), Evaluator(Features()), Evaluations(lambda: 0.0), lambda: 0.0)
digest = hashlib.sha256()
for count in (1, 2, 4, 8, 9):
    asked = {"deviceClassName": "gpu.nvidia.com", "count": count}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}
    claim = decode_claim({"metadata": {"namespace": "x", "name": f"c{count}", "uid": f"u{count}"}, "spec": spec})
    cache.apply_claim(claim.key, claim)
    metadata = {"namespace": "x", "name": f"p{count}", "uid": f"p{count}"}
    pod = {"metadata": metadata, "spec": {"resourceClaims": [{"name": "g", "resourceClaimName": f"c{count}"}]}}
    body = orjson.dumps({"Pod": pod, "NodeNames": names})
    args = wire.decode_args(body)
    answer = filter_service.filter(args.pod, args.names)
    digest.update(repr((answer.passed, sorted(answer.failed.items()))).encode())
    digest.update(wire.encode_scores(filter_service.prioritize(args.pod, answer.passed)))
print(digest.hexdigest())
"""


def test_same_cluster_same_bytes() -> None:
    """The answers depend neither on the hash seed nor on the order in which objects arrive."""
    found = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, seed], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1
