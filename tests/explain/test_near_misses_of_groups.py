"""The end of one pod of a gang wastes the whole gang, so such a change counts as all of it and is proposed last."""

from __future__ import annotations

from extender.api.pods import decode_pod
from extender.explain import explain
from tests.worlds.explained_gangs import apply, explained, members, occupy, racked, sentences
from tests.worlds.gang_worlds import CLIQUE, POLICY, GangWorld
from tests.worlds.running_berth import claim, pod


def job(world: GangWorld, *places: tuple[str, int]) -> None:
    """A bound gang `llm` with a pod of four GPUs on each of these nodes, from this device on."""
    for i, (node, first) in enumerate(places):
        occupy(world, f"llm-{i}", node, first, 4, group="llm")


def test_pods_without_a_group_are_named_before_one_pod_of_a_gang() -> None:
    """On a2 one pod must end, which belongs to a gang of four; on b2 two pods must end."""
    world = racked("a1", "a2", "b1", "b2", "c1")
    job(world, ("a2", 0), ("c1", 0), ("c1", 4))
    occupy(world, "one", "b2", 0, 2)
    occupy(world, "two", "b2", 4, 2)
    members(world, 2, topology="required")
    found = explained(world)
    assert sentences(found) == (
        "fits with topology preferred instead of required, across the cluster",
        f"fits in {CLIQUE}=clique-b without default/one (2 devices on b2) and default/two (2 devices on b2)",
        f"fits in {CLIQUE}=clique-a without default/llm-0 (4 devices on a2, group llm of 3 pods)",
    )
    assert [miss.pods for miss in found.misses] == [0, 2, 3]


def test_a_domain_offers_pods_without_a_group_first_and_a_gang_counts_once() -> None:
    world = racked("a1", "a2", "a3")
    job(world, ("a1", 0), ("a1", 4), ("a3", 0))
    occupy(world, "last", "a3", 4, 4)
    occupy(world, "one", "a2", 0, 4)
    occupy(world, "two", "a2", 4, 4)
    members(world, 2, gpus=4, topology="none")
    (miss,) = explained(world).misses
    assert not any(one.group for one in miss.holders)
    assert miss.pods == 2
    world = racked("a1")
    job(world, ("a1", 0), ("a1", 4))
    members(world, 2, gpus=4, topology="none")
    (miss,) = explained(world).misses
    assert (miss.pods, len(miss.holders)) == (2, 2)


def test_the_explanation_of_a_pod_names_pods_of_gangs_last_and_with_the_gang() -> None:
    world = racked("a1", "b1")
    job(world, ("a1", 0), ("a1", 4))
    occupy(world, "large", "b1", 0, 7)
    world.add_claim(claim("wanted", 4))
    apply(world, "p", "wanted")
    snapshot = world.cache.snapshot()
    asked = decode_pod(pod("p", "wanted"))
    found = explain(asked, snapshot, POLICY, world.evaluator.evaluation_context(snapshot))
    freed = [text for text in found.misses if text.startswith("fits on")]
    assert ["b1" in text for text in freed] == [True, False], freed
    assert "held by pod default/large, were free" in freed[0]
    assert "held by pod default/llm-0 of group llm, were free" in freed[1]
