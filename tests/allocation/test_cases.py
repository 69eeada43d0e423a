"""The project's own cases of the allocator: results, number of steps, no side effects, and no randomness."""

from __future__ import annotations

import copy
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import yaml

from extender.allocation import Features, Problem, Search
from extender.allocation.what_if import problem_of, usage_of
from extender.api import extender_v1 as wire
from extender.api.device_classes import decode_class
from extender.api.nodes import decode_node
from extender.api.resource_claims import decode_claim
from extender.api.resource_slices import DeviceId, SliceDecoder
from extender.base.berth_errors import InvalidClaim
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.policy import Policy
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.scheduling import Evaluator
from extender.serve.evaluations import Evaluations
from extender.serve.filter import FilterService
from tests.worlds.filled_caches import class_of_driver, put
from tests.worlds.running_berth import claim, pod

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


def digest(seed: int) -> str:
    """Of all that filter and prioritize answer about a fleet whose objects arrive in an order of this seed."""
    cache, rng = put(ClusterCache(), class_of_driver("gpu.nvidia.com")), random.Random(seed)
    objects = []
    for i, (kind, machine) in enumerate(sorted(carried_machines().items()) * 2):
        name = f"{kind}-{i}"
        objects += [node_object(name, machine, {}), gpu_slice(name, machine), fabric_slice(name, machine)]
    rng.shuffle(objects)
    names = sorted(put(cache, *objects).store.nodes)
    rng.shuffle(names)
    filter_service = FilterService(cache, Policy(), Evaluator(Features()), Evaluations(lambda: 0.0), lambda: 0.0)
    found = hashlib.sha256()
    for count in (1, 2, 4, 8, 9):
        put(cache, claim(f"c{count}", count))
        args = wire.decode_args(orjson.dumps({"Pod": pod(f"p{count}", f"c{count}"), "NodeNames": names}))
        answer = filter_service.filter(args.pod, args.names)
        found.update(repr((answer.passed, sorted(answer.failed.items()))).encode())
        found.update(wire.encode_scores(filter_service.prioritize(args.pod, answer.passed or [])))
    return found.hexdigest()


def test_same_cluster_same_bytes() -> None:
    """The answers depend neither on the seed of hashes, which each process has, nor on the order of the objects."""
    command = [sys.executable, "-c", "import sys, tests.allocation.test_cases as t; sys.stdout.write(t.digest(1))"]
    environment = {**os.environ, "PYTHONHASHSEED": "4"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
    assert done.stdout == digest(0)
