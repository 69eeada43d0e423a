"""A process that saw each edit of the slices shows the same nodes as one that started after the last edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from extender.api.nodes import Node
from extender.api.resource_slices import SliceDecoder
from extender.cache import ClusterCache
from extender.cache.slice_index import NODE_BURST, NODE_SECONDS, TOO_OFTEN
from extender.topology.agent_slices import DRIVER as AGENT
from tests.worlds.filled_caches import fabric_at

NODES = ("n1", "n2", "n3")
GPU_DRIVER = "gpu.nvidia.com"
UUIDS = tuple(f"GPU-{letter}" for letter in "abcd")


class Edit(NamedTuple):
    """A write of the slice `name` with this spec, or its deletion, `seconds` after the edit before it.

    If `name` is one of NODES, the node is created or deleted.
    """

    seconds: float
    name: str
    spec: dict | None


def device(number: int, taints: list[dict], **attributes: str | int | bool) -> dict:
    typed = {
        name: {"bool" if value is True or value is False else "string" if isinstance(value, str) else "int": value}
        for name, value in attributes.items()
    }
    return {"name": f"gpu-{number}", "attributes": typed, "taints": taints}


def of_driver(pool: str, node: str, generation: int, count: int, gpus: Sequence[tuple[str, int, bool]]) -> dict:
    devices = [
        device(
            number,
            [{"key": "k", "effect": "None"}] if is_tainted else [],
            uuid=uuid,
            productName="NVIDIA A100-SXM4-80GB",
            partition2=root,
            **{"resource.kubernetes.io/pcieRoot": f"pci{root:04}:00"},
        )
        for number, (uuid, root, is_tainted) in enumerate(gpus)
    ]
    place = {"nodeName": node} if node else {"allNodes": True}
    return {"driver": GPU_DRIVER, "pool": in_pool(pool, generation, count), "devices": devices, **place}


def of_agent(pool: str, node: str, generation: int, gpus: Sequence[tuple[str, int, int, bool]]) -> dict:
    devices = [
        device(
            number,
            [],
            uuid=uuid,
            switchLinks=links,
            linkMBps=25_000,
            healthy=is_healthy,
            **({"numaNode": numa} if numa >= 0 else {}),
        )
        for number, (uuid, links, numa, is_healthy) in enumerate(gpus)
    ]
    return {"driver": AGENT, "pool": in_pool(pool, generation, 1), "devices": devices, "nodeName": node}


def in_pool(name: str, generation: int, count: int) -> dict:
    return {"name": name, "generation": generation, "resourceSliceCount": count}


uuids, nodes, few = st.sampled_from(UUIDS), st.sampled_from(NODES), st.integers(0, 1)
driver_gpus = st.lists(st.tuples(uuids, few, st.booleans()), max_size=3)
agent_gpus = st.lists(st.tuples(uuids, few, st.integers(-1, 1), st.booleans()), max_size=3)
# Most slices are of the pool of their node.
specs = st.one_of(
    nodes.flatmap(lambda node: st.builds(of_driver, st.just(node), st.just(node), few, st.just(1), driver_gpus)),
    nodes.flatmap(lambda node: st.builds(of_agent, st.just(node), st.just(node), few, agent_gpus)),
    st.builds(of_driver, nodes, st.sampled_from(("", *NODES)), few, st.integers(1, 2), driver_gpus),
    st.builds(of_agent, nodes, nodes, few, agent_gpus),
)


def edits(seconds: SearchStrategy[float]) -> SearchStrategy[list[Edit]]:
    """Edits of few slices, so that most of them change or delete one."""
    names = st.sampled_from([f"s{number}" for number in range(6)])
    of_slices = st.builds(Edit, seconds, names, st.none() | specs | specs | specs)
    return st.lists(of_slices | of_slices | st.builds(Edit, seconds, nodes, st.none() | st.just({})), max_size=30)


def fresh(published: Mapping[str, dict]) -> ClusterCache:
    """A cache that lists the nodes and slices with these names and specs."""
    cache, decoder = ClusterCache(), SliceDecoder()
    for name, spec in sorted(published.items()):
        if name in NODES:
            cache.apply_node(name, Node(name))
        else:
            cache.apply_slice(name, decoder.decode(slice_object(name, spec)))
    return cache


def slice_object(name: str, spec: dict) -> dict:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": spec}


class Seen:
    """A cache that sees each edit, and the nodes and slices that exist after it."""

    def __init__(self) -> None:
        self.published: dict[str, dict] = {name: {} for name in NODES}
        self.cache, self.now = fresh(self.published), 0.0
        self._decoder = SliceDecoder()

    def edit(self, edit: Edit) -> None:
        self.now += edit.seconds
        self.cache.expire(self.now)
        self.published.pop(edit.name, None)
        if edit.spec is not None:
            self.published[edit.name] = edit.spec
        if edit.name in NODES:
            self.cache.apply_node(edit.name, Node(edit.name) if edit.spec is not None else None)
        else:
            obj = slice_object(edit.name, edit.spec) if edit.spec is not None else None
            self.cache.apply_slice(edit.name, self._decoder.decode(obj) if obj else None, self.now)


def shown(cache: ClusterCache, node: str) -> dict[str, object] | None:
    """What a reader of the cache sees of a node; None if it does not exist."""
    info, problems = cache.snapshot().node_infos.get(node), cache.agent_problems.get(node, ())
    return (
        None
        if info is None
        else {
            "devices": [(one.id, one.device) for one in info.inventory.devices],
            "pools": [(pool.key, pool.incomplete, pool.trouble) for pool in info.inventory.pools],
            "fabric": info.fabric,
            "bits": info.gpu_bits,
            "masks": (info.held, info.busy, info.drift, info.troubled, info.inventory.reachable),
            "partitions": info.fabric_partitions,
            "problems": problems,
        }
    )


def equal_nodes(cache: ClusterCache) -> list[tuple[str, ...]]:
    """The nodes that share a status, because they are in one state."""
    return sorted(tuple(state.names) for state in {id(s): s for s in cache.snapshot().states.values()}.values())


@given(edits(st.sampled_from([0.0, 0.0, 1.0, 6.0, 20.0])), st.sets(st.integers(0, 29)))
@settings(max_examples=3 * settings().max_examples)
def test_after_all_waits_the_nodes_are_those_of_a_fresh_cache(made: list[Edit], read: set[int]) -> None:
    """After each edit whose number is in `read`, the test takes a snapshot, so that the cache builds its nodes."""
    seen = Seen()
    for number, edit in enumerate(made):
        seen.edit(edit)
        if number in read:
            seen.cache.snapshot()
    seen.cache.expire(seen.now + 60.0)
    new = fresh(seen.published)
    assert {node: shown(seen.cache, node) for node in NODES} == {node: shown(new, node) for node in NODES}
    assert equal_nodes(seen.cache) == equal_nodes(new)


@given(edits(st.just(NODE_SECONDS)))
def test_edits_that_are_some_seconds_apart_are_seen_at_once(made: list[Edit]) -> None:
    seen = Seen()
    for edit in made:
        seen.edit(edit)
        new = fresh(seen.published)
        assert {node: shown(seen.cache, node) for node in NODES} == {node: shown(new, node) for node in NODES}


@given(st.permutations(range(12)))
def test_of_many_slices_of_an_agent_the_same_ones_count_in_any_order(order: list[int]) -> None:
    """Only some are read. Those that came first were read before, so a new process chose another one."""
    cache, decoder = fresh({"n1": {}, "gpus": of_driver("n1", "n1", 0, 1, [("GPU-a", 0, False)])}), SliceDecoder()
    published = {f"s{number:02}": of_agent("n1", "n1", number, [("GPU-a", number, 0, True)]) for number in order}
    for name, spec in published.items():
        cache.apply_slice(name, decoder.decode(slice_object(name, spec)))
    assert fabric_at(cache).graph.switch_links == (7,), "the newest of the first eight by name"
    for number in range(4):
        cache.apply_slice(f"s{number:02}", None, 1000.0)
    cache.expire(2000.0)
    assert fabric_at(cache).graph.switch_links == (11,), "after the deletion of some, others are read"


def test_a_node_that_is_created_again_does_not_wait() -> None:
    """It kept the wait of the deleted node: its agent's next change was not seen for some seconds."""
    seen = Seen()
    seen.edit(Edit(0.0, "gpus", of_driver("n1", "n1", 0, 1, [("GPU-a", 0, False)])))

    def links(number: int) -> object:
        seen.edit(Edit(NODE_SECONDS / 10, "agent", of_agent("n1", "n1", 0, [("GPU-a", number, 0, True)])))
        fabric = fabric_at(seen.cache)
        return fabric and fabric.graph.switch_links

    for number in range(2 * NODE_BURST):
        links(number)
    assert TOO_OFTEN in seen.cache.agent_problems["n1"]
    seen.edit(Edit(0.0, "n1", None))
    seen.cache.snapshot()
    assert "n1" not in seen.cache.agent_problems
    seen.edit(Edit(0.0, "n1", {}))
    assert [links(number) for number in range(2)] == [(0,), (1,)]
