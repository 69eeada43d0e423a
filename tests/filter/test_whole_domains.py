"""Of nodes with equal scores, a pod gets one in a partly used clique, rack and spine: whole domains stay whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from extender.allocation import NodeInfo, Snapshot
from extender.api.label_domains import path_of
from extender.api.nodes import Node
from extender.policy import Policy
from extender.scheduling import DomainUses, domain_uses, path_labels
from extender.scheduling.shortlist import shortlist
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, TRAY, GangWorld, cluster, found_in, nvl72

FULL = 4  # GPUs of a node
LEVELS = (CLIQUE, RACK, SPINE)


@pytest.fixture(autouse=True, params=[0, 128], ids=["trees", "a few leaves"])
def few_leaves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees order the places of large fleets, a sort those of small ones: both give one order."""
    monkeypatch.setattr(domain_uses, "_MAX_SORTED", request.param)


def chosen(world: GangWorld, gpus: int, names: Sequence[str] = (), candidates: int = 32) -> list[str]:
    """The nodes of filter's reply for a new pod, the best first. `names` are the nodes in the request; (): all."""
    number = len(world.pods)
    (member,) = world.gang(1, gpus, f"pod-{number}")
    snapshot = world.cache.snapshot()
    requirements = replace(member.requirements, policy=Policy(candidates=candidates))
    ranking = world.rankings.get_or_create(member.requirements)
    ranking.update(snapshot, world.evaluator.evaluation_context(snapshot))
    return list(shortlist(ranking, requirements, snapshot, list(names or snapshot.node_infos)).nodes)


@pytest.mark.parametrize(
    ("layout", "full", "gpus", "node"),
    [
        pytest.param("s/r/a:4 s/r/b:4", (4, 5, 6), 4, "n7", id="the used clique"),
        pytest.param("s/r/a:4 s/r/b:4 s/r/c:4", (0, 4, 5), 4, "n6", id="the used clique with the least room"),
        pytest.param("s/r1/a:2 s/r1/b:2 s/r2/c:2 s/r2/d:2", (6, 7), 4, "n4", id="the used rack"),
        pytest.param("s1/r1/a:2 s1/r2/b:2 s2/r3/c:2 s2/r4/d:2", (6, 7), 4, "n4", id="the used spine"),
        pytest.param("s1/r1/-:2 s2/r2/-:3 s2/r3/-:2", (5, 6), 4, "n2", id="a larger whole rack in a used spine"),
        pytest.param("s1/r1/-:3 s2/r2/-:2", (), 4, "n3", id="of whole racks, the smaller one"),
        pytest.param("s/r1/a:1 s/r1/b:1 s/r1/c:1 s/r2/d:1 s/r2/e:1", (0, 3), 4, "n4", id="the rack with less room"),
        pytest.param("s/r1/-:2 s/r2/-:2", (3,), 4, "n2", id="a rack without cliques"),
        pytest.param("b1/r/-:2 b2/r/-:2", (3,), 4, "n2", id="racks of one name are two racks"),
        pytest.param("s/r/a:2 -/-/-:1", (), 4, "n2", id="a node in no domain"),
        pytest.param("s/r/a:2 -/-/-:1", (0,), 4, "n1", id="a used clique before a node in no domain"),
        pytest.param("-/-/-:3", (0,), 4, "n1", id="no labels: the first name"),
    ],
)
@pytest.mark.parametrize("candidates", [1, 32])
def test_the_partly_used_domain_comes_first(
    layout: str, full: tuple[int, ...], gpus: int, node: str, candidates: int
) -> None:
    world = cluster(layout, busy={f"n{i}": FULL for i in full})
    assert chosen(world, gpus, candidates=candidates)[0] == node


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_after_a_pod_a_whole_rack_still_fits(gpus: int) -> None:
    world = GangWorld()
    nvl72(world, busy=[f"b-{i}" for i in range(1, 18)])
    assert chosen(world, gpus)[0] == "b-18"
    world.use("b-18", [f"gpu-{i}" for i in range(gpus)])
    assert found_in(world.plan(world.gang(18, 4, "big"), "required")) == (CLIQUE, "clique-a")


def test_the_node_need_not_be_among_the_first_candidates() -> None:
    """47 nodes are equal and 40 come first by name. The reply has 32, the one in the used clique first."""
    world = cluster(" ".join(f"s/r/c{i}:8" for i in range(6)), busy={"n9": FULL})
    names = chosen(world, 4)
    assert len(set(names)) == 32
    assert names[0] == "n10"
    assert names[1:3] == ["n0", "n1"], "then as before: by name"


def test_any_number_of_equal_cliques_is_compared() -> None:
    """20 racks of 10 cliques with one node each. Each rack has one full node, rack r13 has two."""
    full = (*range(0, 200, 10), 137)
    world = cluster(" ".join(f"s/r{i // 10}/c{i}:1" for i in range(200)), busy={f"n{i}": FULL for i in full})
    assert chosen(world, 4)[0] == "n131"
    world.use("n52", [f"gpu-{i}" for i in range(FULL)])
    world.use("n53", [f"gpu-{i}" for i in range(FULL)])
    assert chosen(world, 4)[0] == "n51"
    assert chosen(world, 4, [f"n{i}" for i in range(200) if i // 10 != 5])[0] == "n131", "of most nodes"
    assert chosen(world, 4, [f"n{i}" for i in range(200) if i % 5 == 4])[0] == "n54", "of some nodes"


def test_any_number_of_used_cliques_without_room_is_passed_over() -> None:
    """300 partly used cliques have no room for the pod. Of the 60 whole ones, those in the last rack come first."""
    busy = {f"n{i}": 1 for i in range(300)} | {"n350": FULL}
    world = cluster(" ".join(f"s/r{i // 10}/c{i}:1" for i in range(360)), busy=busy)
    assert chosen(world, 4)[0] == "n351"


def test_only_nodes_of_the_request_count() -> None:
    world = cluster("s/r/a:4 s/r/b:4", busy={"n4": FULL})
    offered = ["n0", "n1", "n2", "n6"]
    assert chosen(world, 4, offered)[0] == "n6"
    assert chosen(world, 4, ["n0", "n1"]) == ["n0", "n1"]


def test_a_better_score_comes_before_a_whole_domain() -> None:
    """A node in use fits better than the free nodes of the used clique."""
    world = cluster("s/r/a:4 s/r/b:4", busy={"n0": 2, "n4": FULL, "n5": FULL})
    assert chosen(world, 2)[0] == "n0"


@pytest.mark.parametrize("seed", range(20))
def test_counts_that_follow_changes_equal_new_counts(seed: int) -> None:
    """Devices come and go, nodes get other labels, disappear and come back."""
    rng, world = random.Random(seed), GangWorld()
    names = [f"n{i}" for i in range(12)]

    def changed(name: str) -> None:
        step = rng.randrange(4)
        if step == 0:
            world.cache.apply_node(name, None)
        elif step == 1:
            labels = {label: f"d{rng.randrange(3)}" for label in LEVELS if rng.random() < 0.8}
            world.add_node(name, TRAY, labels)
        elif world.cache.store.nodes.get(name) is not None:
            world.use(name, [f"gpu-{i}" for i in range(FULL) if rng.random() < 0.4])

    for name in names:
        world.add_node(name, TRAY, {label: f"d{rng.randrange(3)}" for label in LEVELS})
    follows = DomainUses(LEVELS)
    for _ in range(60):
        for name in rng.sample(names, rng.randint(1, 3)):
            changed(name)
        snapshot = world.cache.snapshot()
        new = DomainUses(LEVELS)
        follows.update(snapshot)
        new.update(snapshot)
        for name, node_info in snapshot.node_infos.items():
            assert [follows.use(level, name) for level in LEVELS] == [new.use(level, name) for level in LEVELS]
            state = {node_info.state.number}
            first, again = (one.first(state, None) for one in (follows, new))
            assert first == again == _by_brute_force(new, snapshot, state)
        known = list(snapshot.node_infos)
        assert not known or follows.first_of(known) == new.first_of(known)
        assert follows.size == new.size == len({_path(world.cache.store.nodes[name]) for name in known})


def _by_brute_force(uses: DomainUses, snapshot: Snapshot, states: set[int]) -> str:
    """The first node by the use of its clique, rack and spine, then by their sizes and labels, then by name."""

    def key(info: NodeInfo) -> Any:
        labels = [path_of(info.node.labels, path_labels(level, LEVELS)) or () for level in LEVELS]
        name = info.node.name
        sizes = [uses.free_gpus(level, name) for level in LEVELS]
        return [uses.use(level, name) for level in LEVELS], sizes, labels, name

    return min((one for one in snapshot.node_infos.values() if one.state.number in states), key=key).node.name


def _path(node: Node) -> tuple[str | None, ...]:
    return tuple(node.labels.get(label) for label in LEVELS)


def test_the_order_in_which_nodes_were_seen_does_not_matter() -> None:
    """Processes see nodes in different orders, also because Python's sets of names have another order in each."""
    world = cluster(" ".join(f"s/r{i}/c{i}:2" for i in range(6)))
    snapshot = world.cache.snapshot()
    node_infos = list(snapshot.node_infos.items())
    found = set()
    for seed in range(5):
        random.Random(seed).shuffle(node_infos)
        uses = DomainUses(LEVELS)
        uses.update(replace(snapshot, node_infos=dict(node_infos)))
        found.add(uses.first({info.state.number for _, info in node_infos}, None))
    assert found == {"n0"}
