"""Every expression that an explanation proposes compiles, and matches as many devices as the sentence says."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from extender.allocation import Features
from extender.api.fields import Json
from extender.api.pods import decode_pod
from extender.api.resource_slices import Device
from extender.cel import CelError
from extender.cel.dra import Dialect, compile_selector
from extender.cli.cluster_objects import dump_of
from extender.explain.selector_stats import selector_stats
from extender.policy import Policy
from extender.scheduling import Evaluator, PodRequirements, requirements_of
from tests.worlds.explain_worlds import GPU, asking, objects_of_world

PRODUCTS = ["NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA L40S", "H100"]
VERSIONS = ["7.0.0", "7.10.0", "9.0.0-rc.1", "9.0.0", "12.1.0"]
AMOUNTS = ["16Gi", "81559Mi", "80Gi", "1500m", "81560Mi"]
OPERATORS = ["==", "<", "<=", ">", ">="]
# Some of these names are those of the devices, some are alike, and some are nothing like them.
NAMES = {"text": ["productName", "product", "model"], "version": ["capability", "Capability", "numanode"],
         "number": ["numaNode", "numa"], "amount": ["memory", "Memory", "vram"]}  # fmt: skip


def random_device(number: int, rng: random.Random) -> Json:
    values: Json = {
        "productName": {"string": rng.choice(PRODUCTS)},
        "capability": {"version": rng.choice(VERSIONS)},
        "other.example.com/numaNode": {"int": rng.randrange(3)},
        "linked": {"bool": rng.random() < 0.5},
    }
    attributes = {name: value for name, value in values.items() if rng.random() < 0.8}
    capacity = {"memory": {"value": rng.choice(AMOUNTS)}} if rng.random() < 0.8 else {}
    return {"name": f"g{number}", "attributes": attributes, "capacity": capacity}


def random_term(rng: random.Random) -> str:
    """A comparison or a test of an attribute or a capacity, with the constant on either side."""
    kind = rng.choice(list(NAMES))
    domain = rng.choice([GPU, "other.example.com"])
    of = "capacity" if kind == "amount" else "attributes"
    read, operator = f'device.{of}["{domain}"].{rng.choice(NAMES[kind])}', rng.choice(OPERATORS)
    if kind == "number":
        pair = [read, str(rng.randrange(5))]
    elif kind == "text":
        pair, operator = [read, f'"{rng.choice([*PRODUCTS, "h100", "T4", "A100"])}"'], "=="
    else:
        constant = rng.choice([*AMOUNTS, "1Gi", "200Gi"] if kind == "amount" else [*VERSIONS, "1.0.0", "99.0.0"])
        pair = [read, f'{"quantity" if kind == "amount" else "semver"}("{constant}")']
    left, right = rng.sample(pair, 2)
    tests = {"text": ["startsWith", "contains", "matches"], "number": []}.get(kind, ["isLessThan", "isGreaterThan"])
    forms = [f"{left} {operator} {right}"] if kind in ("text", "number") else []
    forms += [f"{left}.{test}({right})" for test in tests]
    if kind in ("version", "amount"):
        forms += [f"{left}.compareTo({right}) {operator} 0", f"0 {operator} {left}.compareTo({right})"]
    return rng.choice(forms)


def matching(expression: str, devices: list[Device]) -> int:
    selector = compile_selector(expression, Dialect())  # raises CompileError

    def matches(device: Device) -> bool:
        try:
            return selector.match(device, GPU)
        except CelError:
            return False

    return sum(map(matches, devices))


def check_world(rng: random.Random) -> int:
    """How many expressions are proposed for a random term on random devices. Each is checked."""
    term = random_term(rng)
    objects = objects_of_world([random_device(number, rng) for number in range(rng.randrange(1, 6))])
    asked = asking({"selectors": [{"cel": {"expression": term}}]})
    snapshot = dump_of([*objects, *asked]).snapshot()
    requirements = requirements_of(decode_pod(asked[-1]), snapshot, Policy())
    assert isinstance(requirements, PodRequirements)
    devices = [one for info in snapshot.node_infos.values() for slice_, _ in info.inventory.offsets
               for one in slice_.devices]  # fmt: skip
    stats = selector_stats(requirements, snapshot, None, Evaluator(Features()).evaluation_context(snapshot))
    sentence = next(one for one in stats if one.term == term).sentence()
    proposed = re.findall(r"`([^`]*)` matches (\d+)(?! of)\b", sentence)
    for expression, count in proposed:
        assert int(count) > 0, sentence
        assert matching(expression, devices) == int(count), sentence
        assert "device." in expression, sentence
    products = Counter(str(one.attributes.get(f"{GPU}/productName")) for one in devices)
    for count, product in re.findall(r"(\d+) ha(?:ve|s) '([^']*)'", sentence):
        assert products[product] == int(count), sentence
    return len(proposed)


@pytest.mark.parametrize("block", range(4))
def test_a_proposed_expression_matches_as_many_devices_as_the_sentence_says(block: int) -> None:
    rng = random.Random(block)
    assert sum(check_world(rng) for _ in range(100)) > 10
