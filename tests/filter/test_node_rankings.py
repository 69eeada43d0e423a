"""A node ranking that follows changes in small budgets equals one made at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation import Features, Snapshot
from extender.api.device_classes import decode_class
from extender.api.nodes import decode_node
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod, decode_pod
from extender.api.resource_claims import PodClaim, decode_claim
from extender.api.resource_slices import SliceDecoder
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.scheduling import EvaluationContext, NodeRanking
from tests.worlds.evaluation_worlds import MACHINES, steps
from tests.worlds.filled_caches import required
from tests.worlds.running_berth import berthing, claim, pod


async def test_facts_about_the_fleet_reach_the_scores_a_few_at_a_time() -> None:
    """A change of scores never delays a call, and in the end every status uses the newest facts."""
    async with berthing({f"n{i:02}": "dgx1-v100" for i in range(3)}) as b:
        await b.create(claim("c", 2), pod("p", "c", annotations={"berth.dev/topology": "preferred"}))
        assert (await b.filter("p"))["NodeNames"]
        b.cluster.add_node("better", carried_machines()["hgx-h100-8"])
        await b.settled()
        assert (await b.filter("p"))["NodeNames"][0] == "better"
        filter_service, snapshot = b.app.service.filter_service, b.app.service.cache.snapshot()
        requirements = required(decode_pod(b.pod("p")), b.app.service.cache, filter_service.policy)
        ranking, fresh, context = (
            filter_service.rankings.get_or_create(requirements),
            NodeRanking(requirements),
            filter_service.evaluator.evaluation_context(snapshot),
        )
        for _ in range(3):
            ranking.update(snapshot, context)
        fresh.update(snapshot, context)
        assert not ranking.stale
        assert ranking.best(None, 9) == fresh.best(None, 9)


class World:
    """A cache that the test fills, and pod requirements with their rankings."""

    def __init__(self, nodes: str, *, identity: bool = False) -> None:
        """With `identity` the requirements read UUIDs of devices, so that their ranking keeps classes of its own."""
        self.cache, self._decoder, self._masks = ClusterCache(), SliceDecoder(), Masks()
        self.cache.apply_class("gpu.nvidia.com", decode_class({"metadata": {"name": "gpu.nvidia.com"}, "spec": {}}))
        for kind, name in enumerate(nodes):
            self.change(name, kind % 2)
        selector = 'device.attributes["gpu.nvidia.com"].brand == "Nvidia"'
        more = ' && device.attributes["gpu.nvidia.com"].uuid != "x"' if identity else ""
        asked = decode_claim(claim("c", 2, selector + more))
        self.cache.apply_claim(asked.key, asked)
        asking = Pod(ObjectKey("default", "p"), "u", (PodClaim("g", "c"),))
        self.requirements = required(asking, self.cache)

    def change(self, name: str, kind: int) -> None:
        machine = MACHINES[kind % 3]
        self.cache.apply_node(name, decode_node(node_object(name, machine, {})) if kind < 3 else None)
        self.cache.apply_slice(name, self._decoder.decode(gpu_slice(name, machine)) if kind < 3 else None)

    def newest(self) -> tuple[Snapshot, EvaluationContext]:
        snapshot = self.cache.snapshot()
        return snapshot, EvaluationContext(self._masks, Features(), snapshot.baseline)

    def assert_right(self, ranking: NodeRanking) -> None:
        """Assert that the ranking equals a new one that is made without a budget."""
        for _ in range(20):
            ranking.update(*self.newest())
        fresh, node_infos = NodeRanking(self.requirements), self.cache.snapshot().node_infos
        fresh.update(*self.newest())
        assert ranking.best(None, 99) == fresh.best(None, 99)
        assert ranking.main_reason() == fresh.main_reason()
        assert [ranking.status(node_info) for node_info in node_infos.values()] == [
            fresh.status(node_info) for node_info in node_infos.values()
        ]
        assert sum(state.nodes for state in ranking.nodes_by_status()) == ranking.nodes == len(node_infos)


_CHANGES = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3)), max_size=30)


@given(_CHANGES, st.lists(st.integers(0, 12), min_size=30, max_size=30), st.booleans(), st.integers(1, 3))
def test_a_ranking_that_follows_in_small_budgets_equals_one_made_at_once(
    changes: list[tuple[str, int]], ends: list[int], identity: bool, vacant: int
) -> None:
    """Nodes come, go and change while budgets end anywhere, however few of the states that no node is in are
    remembered."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("extender.scheduling.node_ranking._MAX_VACANT", vacant)
        world = World("abcd", identity=identity)
        ranking = NodeRanking(world.requirements)
        for some, (name, kind) in zip(ends, changes, strict=False):
            snapshot, context = world.newest()
            if ranking.update(snapshot, replace(context, deadline=steps(some, ends_one=True))):
                ranking.refresh(snapshot, replace(context, deadline=steps(some, ends_one=True)))
            world.change(name, kind)
        world.assert_right(ranking)


@pytest.mark.parametrize("identity", [False, True])
def test_a_ranking_far_behind_starts_over(identity: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.cache.cluster_cache._MAX_REMEMBERED_CHANGES", 1)
    world = World("abcdef", identity=identity)
    ranking = NodeRanking(world.requirements)
    ranking.update(*world.newest())
    for name, kind in (("a", 2), ("b", 3), ("g", 0)):
        world.change(name, kind)
        world.cache.snapshot()
    assert world.cache.snapshot().changed_since(1) is None
    world.assert_right(ranking)


def test_an_update_continues_from_the_point_where_it_gave_up() -> None:
    outcomes = set()
    for number in range(32):
        world = World("abcdef")
        ranking = NodeRanking(world.requirements)
        snapshot, context = world.newest()
        done = ranking.update(snapshot, replace(context, deadline=steps(number, ends_one=True)))
        outcomes.add(done)
        assert done == (ranking.nodes == 6)
        world.change("c", 1)
        world.change("g", 2)
        world.assert_right(ranking)
    assert outcomes == {False, True}
