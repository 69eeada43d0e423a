"""Rankings that follow changes of shared pools give what new rankings give, and evaluate no more than they must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation import Features, NodeInfo
from extender.allocation.nodes import PoolGroup, SharedUse
from extender.allocation.what_if import hypothetical_snapshot
from extender.api.device_classes import DeviceClass
from extender.api.nodes import decode_node
from extender.api.object_meta import ObjectKey
from extender.api.pods import decode_pod
from extender.api.resource_claims import decode_claim
from extender.cache import ClusterCache
from extender.scheduling import Evaluator, NodeRanking, PodRequirements
from tests.worlds.filled_caches import required
from tests.worlds.shared_pool_worlds import (
    GPU,
    NET,
    OTHER_SIDE,
    SELECTOR,
    apply,
    filled,
    hold,
    slice_object,
    steps,
    two_nodes,
)

# Requests as (DeviceClass, number of devices, selector), by pod.
PODS = {
    "a GPU": [(GPU, 1, "")],
    "two GPUs with a selector": [(GPU, 2, "device.attributes['gpu.nvidia.com'].productName != 'x'")],
    "a shared device": [(NET, 1, "")],
    "three shared devices": [(NET, 3, "")],
    "a GPU and a shared device": [(GPU, 1, ""), (NET, 1, "")],
    "any device": [("any", 1, "")],
    "a GPU by its UUID": [(GPU, 1, "device.attributes['gpu.nvidia.com'].uuid != 'x'")],
    "a shared device under an attribute that it lacks": [(NET, 1, "device.attributes['a.b'].c == 1")],
}


def with_pods(cache: ClusterCache, pods: Mapping[str, list[tuple[str, int, str]]] = PODS) -> dict[str, PodRequirements]:
    for name, selector in ((GPU, f"device.driver == '{GPU}'"), (NET, f"device.driver == '{NET}'"), ("any", "true")):
        cache.apply_class(name, DeviceClass(name, (selector,)))
    found = {}
    for number, (name, requests) in enumerate(pods.items()):
        uid = f"pod-{number}"
        asked = [
            {"name": f"r{i}", "exactly": {"deviceClassName": class_, "count": count, **_selectors(selector)}}
            for i, (class_, count, selector) in enumerate(requests)
        ]
        metadata = {"namespace": "x", "name": uid, "uid": uid, "resourceVersion": "1"}
        cache.apply_claim(
            ObjectKey("x", uid), decode_claim({"metadata": metadata, "spec": {"devices": {"requests": asked}}})
        )
        spec = {"resourceClaims": [{"name": "c", "resourceClaimName": uid}]}
        found[name] = required(decode_pod({"metadata": metadata, "spec": spec}), cache)
    return found


def _selectors(text: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": text}}]} if text else {}


def answer(ranking: NodeRanking, cache: ClusterCache, evaluator: Evaluator) -> dict[str, Any]:
    """The status of each node: the chosen devices and the score, or the reason."""
    snapshot = cache.snapshot()
    context = evaluator.evaluation_context(snapshot)
    assert ranking.update(snapshot, context)
    assert ranking.refresh(snapshot, context)
    best = {name: (placement.solution.mask, placement.score) for name, placement in ranking.best(None, 100)}
    by_node = {
        name: getattr(ranking.status(info), "text", None) or best[name] for name, info in snapshot.node_infos.items()
    }
    assert {name: by_node[name] for name in best} == best
    assert ranking.reasons() == {name: text for name, text in by_node.items() if name not in best}
    return by_node


@given(steps, st.data())
def test_a_ranking_that_follows_gives_what_a_new_one_gives(sequence: list[tuple[str, int, Any]], data: Any) -> None:
    cache = filled()
    requirements = with_pods(cache)
    evaluator = Evaluator(Features())
    followed = {name: NodeRanking(one) for name, one in requirements.items()}
    for step in sequence:
        apply(cache, step)
        if data.draw(st.booleans()):
            answer(followed[data.draw(st.sampled_from(sorted(PODS)))], cache, evaluator)
    for name, ranking in followed.items():
        new = NodeRanking(requirements[name])
        assert answer(ranking, cache, evaluator) == answer(new, cache, Evaluator(Features())), name


def test_a_claim_on_a_shared_device_evaluates_only_pods_that_can_have_one() -> None:
    cache, evaluator = filled(), Evaluator(Features())
    followed = {name: NodeRanking(one) for name, one in with_pods(cache).items()}
    for ranking in followed.values():
        answer(ranking, cache, evaluator)
    before = {name: ranking.evaluations for name, ranking in followed.items()}
    hold(cache, "all", "d0")
    for ranking in followed.values():
        answer(ranking, cache, evaluator)
    evaluated = {name for name, ranking in followed.items() if ranking.evaluations > before[name]}
    assert not evaluated & {"a GPU", "two GPUs with a selector"}
    assert evaluated >= {"a shared device", "three shared devices", "a GPU and a shared device", "any device"}


def test_a_use_that_comes_and_goes_while_nodes_are_built_hides_no_node() -> None:
    """One of two equal nodes is built with a use that ends before the next snapshot."""
    cache, evaluator = filled(), Evaluator(Features())
    for name in ("n6", "n7"):
        cache.apply_node(name, decode_node({"metadata": {"name": name}}))
    requirements = with_pods(cache)["a GPU"]
    cache.snapshot()
    hold(cache, "all", "d0")
    cache.apply_node("n6", decode_node({"metadata": {"name": "n6", "labels": {"a": "b"}}}))
    cache.rebuild(1)
    cache.release("d0")
    cache.apply_node("n6", decode_node({"metadata": {"name": "n6"}}))
    assert answer(NodeRanking(requirements), cache, evaluator).keys() == {f"n{number}" for number in range(8)}


def test_each_of_thousands_of_groups_has_a_status_and_counts_as_memory() -> None:
    """A driver may publish a slice with a node selector for each node: then each node has a group of its own."""
    cache, evaluator = filled(), Evaluator(Features())
    requirements = with_pods(cache)["a GPU"]
    snapshot = cache.snapshot()
    one = snapshot.node_infos["n5"]
    infos = {f"n{number}": _in_own_group(one, f"n{number}") for number in range(5000)}
    many = hypothetical_snapshot(snapshot, infos, 1)
    ranking, few = NodeRanking(requirements), NodeRanking(requirements)
    assert ranking.update(many, evaluator.evaluation_context(many))
    assert not [name for name, info in infos.items() if ranking.status(info) is None]
    assert few.update(snapshot, evaluator.evaluation_context(snapshot))
    assert ranking.estimated_bytes > few.estimated_bytes + 100 * len(infos)
    before = ranking.estimated_bytes
    del infos, many
    assert ranking.update(snapshot, evaluator.evaluation_context(snapshot))
    assert ranking.estimated_bytes < before / 2, "nothing is kept for groups without nodes"


def _in_own_group(info: NodeInfo, name: str) -> NodeInfo:
    use = info.state.shared
    assert use is not None
    own = SharedUse(PoolGroup(use.group.pools), use.pools, use.busy, use.held)
    state = info.state.with_shared(own)
    state.names.append(name)
    return replace(info, node=replace(info.node, name=name), state=state)


@pytest.mark.parametrize(("side", "node"), [("left", "a"), ("right", "b")])
def test_a_group_can_have_a_device_that_only_some_of_its_nodes_reach(side: str, node: str) -> None:
    devices = [
        {"name": "d0", "nodeSelector": SELECTOR, "attributes": {"side": {"string": "left"}}},
        {"name": "d1", "nodeSelector": OTHER_SIDE, "attributes": {"side": {"string": "right"}}},
    ]
    cache = two_nodes(slice_object("sides", perDeviceNodeSelection=True, devices=devices))
    selector = f"device.attributes['{NET}'].side == '{side}'"
    requirements = with_pods(cache, {"one side": [(NET, 1, selector)]})["one side"]
    ranking, evaluator = NodeRanking(requirements), Evaluator(Features())
    assert isinstance(answer(ranking, cache, evaluator)[node], tuple)
    hold(cache, "sides", "d0" if side == "left" else "d1")
    assert answer(ranking, cache, evaluator) == answer(NodeRanking(requirements), cache, evaluator)
