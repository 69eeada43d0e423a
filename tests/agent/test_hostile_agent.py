"""Impossible values from a node's agent affect only that node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.api.gpu_topology import Source
from extender.api.resource_slices import SliceDecoder
from extender.cache import ClusterCache
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.topology.agent_slices import BOUNDS, MAX_LINKS, MAX_NODE_GPUS, MAX_PROBLEMS
from extender.topology.sets import bandwidth
from tests.worlds.cache_worlds import CountingBuilder
from tests.worlds.eventually import eventually
from tests.worlds.filled_caches import fabric_at, machine_nodes, put, read_agent
from tests.worlds.running_berth import berthing

MACHINES = carried_machines()
DECODER = SliceDecoder()


def said(machine: str, position: int = 0, node: str = "n1", **attributes: object) -> dict:
    """The agent's slice of a machine, with some attributes of one GPU replaced."""
    obj = fabric_slice(node, MACHINES[machine])
    for name, value in attributes.items():
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
        obj["spec"]["devices"][position]["attributes"][name] = {kind: value}
    return obj


IMPOSSIBLE = yaml.safe_load((Path(__file__).parents[1] / "cases" / "agent_values.yaml").read_text())


@pytest.mark.parametrize(("name", "value", "word"), IMPOSSIBLE)
def test_impossible_value_is_named_and_not_believed(name: str, value: Any, word: str) -> None:
    """Attack: report values that no hardware has, to attract pods."""
    honest, _ = read_agent(fabric_slice("n1", MACHINES["dgx1-v100"]))
    found, problems = read_agent(said("dgx1-v100", **{name: value}))
    assert problems
    assert word in problems[0]
    assert "gpu-0" in problems[0]
    assert len(problems[0]) < 200
    assert all(bandwidth(found.graph, mask) <= bandwidth(honest.graph, mask) for mask in (3, 15, 255))


def test_attributes_of_other_domains_are_not_read() -> None:
    """Attack: pass the limits of the API server with an attribute of another domain."""
    honest = read_agent(fabric_slice("n1", MACHINES["dgx1-v100"]))
    lies: dict[str, Any] = {
        "x.example/linkMBps": 10**9,
        "x.example/links": "1:36",
        "x.example/healthy": False,
        "x.example/uuid": "u",
    }
    assert read_agent(said("dgx1-v100", **lies)) == honest


values = st.one_of(
    st.integers(),
    st.booleans(),
    st.text(max_size=80),
    st.sampled_from([value for _, value, _ in IMPOSSIBLE]),
)
names = st.sampled_from(
    [
        "uuid", "links", "distances", "pcieRoot", "clique", "note", "healthy", "stale", "memoryFreeMiB",
        "memoryReservedMiB", *BOUNDS,
    ]
)  # fmt: skip


@given(st.dictionaries(names, values, max_size=4), st.integers(0, 7))
@settings(max_examples=150)
def test_any_value_gives_a_fabric_within_bounds(attributes: dict, position: int) -> None:
    found, problems = read_agent(said("dgx1-v100", position, **attributes))
    assert len(problems) <= MAX_PROBLEMS
    assert all(len(problem) < 200 for problem in problems)
    if found is not None:
        assert all(
            sum(row) + switched <= MAX_LINKS
            for row, switched in zip(found.graph.links, found.graph.switch_links, strict=True)
        )
        assert found.graph.link_gbps <= 200
        assert all(0 <= numa < 1024 for numa in found.graph.numa)
        assert all(gpu.numa is None or 0 <= gpu.numa < 1024 for gpu in found.gpus)
        assert all(len(gpu.pcie_root) in {0, *range(10, 15)} for gpu in found.gpus)


def test_real_machines_have_no_problem() -> None:
    for name, machine in MACHINES.items():
        assert read_agent(fabric_slice("n1", machine))[1] == (), name


def source_of(cache: ClusterCache, node: str) -> Any:
    return fabric_at(cache, node).source


def test_gpus_of_another_node_are_refused() -> None:
    """Attack: describe the GPUs of another node."""
    cache = machine_nodes(n1="dgx1-v100", n2="dgx1-v100")
    other = fabric_slice("n2", MACHINES["dgx1-v100"])["spec"]["devices"][3]["attributes"]["uuid"]["string"]
    put(cache, said("dgx1-v100", 3, uuid=other))
    assert source_of(cache, "n1") is not Source.LIVE
    assert source_of(cache, "n2") is Source.LIVE
    (problem,) = cache.agent_problems["n1"]
    assert other in problem
    assert "node n2" in problem
    assert "n2" not in cache.agent_problems
    put(cache, fabric_slice("n1", MACHINES["dgx1-v100"]))
    assert source_of(cache, "n1") is Source.LIVE
    assert not cache.agent_problems


def test_a_driver_that_publishes_uuids_of_another_node_voids_no_data_of_its_agent() -> None:
    """Attack: void the data of another node's agent, with a driver that publishes the same UUIDs."""
    cache = machine_nodes(n1="dgx1-v100", n2="dgx1-v100")
    lie = gpu_slice("n1", MACHINES["dgx1-v100"])
    lie["spec"]["devices"] = gpu_slice("n2", MACHINES["dgx1-v100"])["spec"]["devices"]
    put(cache, lie)
    put(cache, said("dgx1-v100", node="n2", readAt=1))  # the next heartbeat of the honest agent
    assert source_of(cache, "n2") is Source.LIVE
    assert "n2" not in cache.agent_problems


def test_a_node_with_thousands_of_gpus_has_no_graph() -> None:
    """5,120 GPUs took 15 s of each filter request: the distances of a graph are a square table."""
    cache = machine_nodes(n2="dgx1-v100")
    put(cache, node_object("n1", MACHINES["dgx1-v100"], {}))
    one = gpu_slice("n1", MACHINES["dgx1-v100"])
    one["spec"]["devices"] = one["spec"]["devices"][:1]
    for number in range(MAX_NODE_GPUS + 1):
        one["metadata"]["name"], one["spec"]["pool"]["name"] = f"s{number}", f"p{number}"
        one["spec"]["devices"][0]["attributes"]["uuid"] = {"string": f"GPU-{number}"}
        put(cache, one, now=5.0 * number)
        fabric = fabric_at(cache)
        assert (fabric is None) is (number == MAX_NODE_GPUS)
    assert cache.agent_problems == {"n1": ("its driver publishes 65 GPUs, where a node has at most 64",)}
    cache.apply_slice("s0", None)
    assert fabric_at(cache) is not None
    assert not cache.agent_problems
    assert source_of(cache, "n2") is Source.LIVE


def test_pool_is_named_after_the_node() -> None:
    """Attack: publish data of another node by the pool's name."""
    cache = machine_nodes(n1="dgx1-v100")
    for number in range(20):
        lie = said("dgx1-v100", switchLinks=18)
        lie["metadata"]["name"] = f"lie-{number}"
        lie["spec"]["pool"] |= {"name": "n2", "generation": 999}
        put(cache, lie)
    assert source_of(cache, "n1") is Source.LIVE
    assert not any(fabric_at(cache).graph.switch_links)
    assert all("lie-" in problem and "'n2'" in problem for problem in cache.agent_problems["n1"])
    assert len(cache.agent_problems["n1"]) <= 2 * MAX_PROBLEMS
    for number in range(20):
        cache.apply_slice(f"lie-{number}", None)
    cache.snapshot()
    assert not cache.agent_problems


def test_view_that_cannot_be_built_stops_no_other() -> None:
    """Attack: break the cache of all nodes with data that cannot be read."""
    cache = ClusterCache()
    builder = CountingBuilder(cache)
    for node in ("n1", "n2", "n3"):
        put(cache, node_object(node, MACHINES["t4-4"], {}), gpu_slice(node, MACHINES["t4-4"]))
    before = cache.snapshot().node_infos["n2"]
    builder.failing = frozenset({"n2"})
    for node in ("n1", "n2"):
        put(cache, fabric_slice(node, MACHINES["t4-4"]))
    node_infos = cache.snapshot().node_infos
    assert source_of(cache, "n1") is Source.LIVE
    assert node_infos["n2"] is before
    assert cache.failed_nodes == {"n2": "ValueError: no view of n2"}
    builder.failing = frozenset()
    put(cache, node_object("n2", MACHINES["t4-4"], {"x": "y"}))
    assert source_of(cache, "n2") is Source.LIVE
    assert not cache.failed_nodes


async def test_readiness_metrics_and_audit_name_the_node() -> None:
    async with berthing({"n1": "dgx1-v100", "n2": "t4-4"}) as b:
        lie = said("dgx1-v100", links="1:" + "9" * 50)
        b.cluster.store.put("resourceslices", ("", lie["metadata"]["name"]), lie)
        cache = b.app.service.cache

        def is_reported() -> bool:
            cache.snapshot()
            return bool(cache.agent_problems)

        await eventually(is_reported)
        cache.failed_nodes["n2"] = "ValueError: made up"
        for _ in range(2):
            await b.console.auditor.round()
        found = {(finding["check"], finding["about"]) for finding in (await b.client.get("/v1/audit")).json()}
        assert ("agent", "n1") in found
        assert ("unbuilt", "n2") in found
        ready = await b.client.get("/readyz")
        assert ready.status_code == 200
        assert "the NodeInfo of node n2 cannot be built: ValueError: made up" in ready.text


def test_admission_policy_has_the_same_bounds() -> None:
    manifest = Path(__file__).resolve().parents[2] / "manifests" / "base" / "agent-own-slice.yaml"
    spec = next(yaml.safe_load_all(manifest.read_text()))["spec"]
    most = next(variable["expression"] for variable in spec["variables"] if variable["name"] == "most")
    assert json.loads(most) == {name: limit for name, (_, limit) in BOUNDS.items()}
