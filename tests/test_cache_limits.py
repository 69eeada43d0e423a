"""Every cache has an end: each limit is reached here through the parameter that sets it."""

from __future__ import annotations

import gc
import importlib
import itertools
import pkgutil
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import extender
from benchmarks import soak
from benchmarks.fleet import Fleet
from extender.cache import ClusterCache
from extender.cache.request_mix_estimator import RequestMixEstimator
from extender.cel.dra import Dialect, Masks, compile_selector
from extender.console import DecisionHistory
from extender.extension.unfinished_evaluations import UnfinishedEvaluations
from extender.fabric import DRIVER as FABRIC_DRIVER
from extender.fabric import Graphs, ranked
from extender.fabric.sets import Measures, RankedSets
from extender.model import (
    BINARY_SI,
    DEFAULT_MIX,
    NANO,
    Claim,
    ClaimSpec,
    DeviceRequest,
    Graph,
    Node,
    NodeSelection,
    ObjectKey,
    PoolKey,
    Quantity,
    Request,
    Slice,
)
from extender.policy import Policy
from extender.policy.policy_schema import MOST_EFFECTIVE, Override
from extender.records import Attempted, Bound
from extender.runtime.gc_policy import give_back_memory
from extender.scheduling import Attempt, Decision, NodeRanking, RankingCache, ScoredNode
from extender.scoring import ScorePart
from extender.wire import NameOffsets, SliceDecoder
from extender.wire.node_names import NodeNames
from extender.wire.resource_claims import SpecCache


def counted(kind: str, events: int) -> dict[str, int]:
    """After a short soak with few of everything."""
    one = soak.Soak(kind, nodes=4, shapes=6, waiting=10)
    rows = list(one.run(events, samples=1))
    gc.collect()
    return {**one.counted(), **rows[-1].counted}


@pytest.mark.parametrize("kind", ["mig", "mixed"])
def test_a_long_time_leaves_behind_what_is_there_and_a_little(kind: str) -> None:
    """Nodes come and go under names never used before, states change with every claim."""
    found = counted(kind, 1500)
    vacant_states, vacant_statuses = 1024, 16
    assert found["nodes"] == found["hardware"] == 4
    assert found["states"] <= 4 + vacant_states
    assert found["signatures"] <= found["states"] + found["grants"]
    assert found["looks"] <= 4
    assert found["appearances"] <= 4 + vacant_states
    assert found["statuses"] <= 6 * (4 + 4 * vacant_statuses)
    assert found["counters"] <= 4
    assert found["silent"] <= 4
    assert found["agents"] <= 4
    assert found["selectors"] <= 6 + 2
    assert found["masks"] <= (6 + 2) * 4 * 3
    assert found["shortlists"] <= 11
    assert found["rejected"] <= 11


def test_states_of_nodes_are_forgotten_but_for_the_last_ones() -> None:
    """A thousand and more states that no node is in any more, of which four are kept."""
    fleet = Fleet("mixed", vacant_states=4)
    fleet.fill(1, 0.0)
    (node,) = fleet.devices
    for number in range(1, 64):
        taken = [device for bit, device in enumerate(fleet.devices[node]) if number >> bit & 1]
        fleet.hold(0, node, taken)
        fleet.mirror.snapshot()
    gc.collect()
    found = fleet.mirror.interned()
    assert (found["states"], found["signatures"], found["looks"], found["appearances"]) == (5, 5, 1, 1)


def test_counters_of_a_pool_go_with_its_node() -> None:
    fleet = Fleet("mig")
    fleet.fill(2, 0.5)
    fleet.mirror.snapshot()
    assert fleet.mirror.interned()["counters"] == 2
    fleet.remove_node("node-000001")
    fleet.mirror.snapshot()
    gc.collect()
    found = fleet.mirror.interned()
    assert found["counters"] == found["hardware"] == 1


def test_agents_are_forgotten_with_their_nodes() -> None:
    """Whichever goes first, and whether the agent was silent before."""
    for slice_first, silent_before in itertools.product((True, False), repeat=2):
        cache = ClusterCache()
        agent = Slice(f"{FABRIC_DRIVER}-n", PoolKey(FABRIC_DRIVER, "n"), 1, 1, NodeSelection(node_name="n"))

        def go(kind: str, cache: ClusterCache = cache, agent: Slice = agent) -> None:
            cache.apply_slice(agent.name, None) if kind == "slice" else cache.apply_node("n", None)

        cache.apply_node("n", Node("n"))
        cache.apply_slice(agent.name, agent)
        cache.expire(0.0)
        if silent_before:
            cache.expire(2000.0)
            assert cache.store.silent_agents == {"n"}
        go("slice" if slice_first else "node")
        go("node" if slice_first else "slice")
        cache.expire(2001.0)
        cache.expire(9000.0)
        assert not cache.store.silent_agents
        assert not cache.oldest_agent(9000.0)
        cache.apply_slice(agent.name, agent)
        cache.apply_node("n", Node("n"))
        cache.expire(9001.0)
        cache.expire(20000.0)
        assert cache.store.silent_agents == {"n"}, "a node of that name came back, its agent did not"


def test_a_ranking_keeps_few_statuses_of_states_that_no_node_is_in() -> None:
    fleet = Fleet("mixed")
    fleet.fill(3, 0.0)
    requirements = fleet.requirements(fleet.pod("p", 1, 1))
    (request,) = requirements.specs[0].requests
    option = replace(request.alternatives[0], selectors=(f'device.attributes["{fleet.driver}"].uuid != "x"',))
    spec = replace(requirements.specs[0], requests=(replace(request, alternatives=(option,)),))
    rankings = [NodeRanking(requirements, vacant=2), NodeRanking(replace(requirements, specs=(spec,)), vacant=2)]
    for number in range(1, 64):
        taken = [device for bit, device in enumerate(fleet.devices["node-000001"]) if number >> bit & 1]
        fleet.hold(0, "node-000001", taken)
        snapshot = fleet.mirror.snapshot()
        for ranking in rankings:
            assert ranking.update(snapshot, fleet.judge.evaluation_context(snapshot))
            assert ranking.groups <= 3 + 2 + 2 + 2 * 2
    first, second = ([(name, placement.score) for name, placement in ranking.best(None, 9)] for ranking in rankings)
    assert first == second


def test_rankings_are_bounded_by_bytes_and_the_least_recently_asked_goes_first() -> None:
    fleet = Fleet("mixed")
    fleet.fill(2, 0.5)
    requirements = [fleet.requirements(fleet.pod(f"p{shape}", shape, 1)) for shape in range(6)]
    snapshot = fleet.mirror.snapshot()
    context = replace(fleet.judge.evaluation_context(snapshot), placements=None)  # or rankings would share them
    alone = RankingCache()
    alone.get_or_create(requirements[0]).update(snapshot, context)
    rankings = RankingCache(limit_bytes=int(2.5 * alone.estimated_bytes))
    for which in (0, 1, 0, 2):
        rankings.get_or_create(requirements[which]).update(snapshot, context)
    rankings.peek(requirements[1])
    for which in (3, 4):
        rankings.get_or_create(requirements[which]).update(snapshot, context)
    assert [rankings.has(one) for one in requirements] == [False, False, True, True, True, False]
    assert rankings.evaluations == 10, "those of rankings that are gone count"
    tiny = RankingCache(limit_bytes=1)
    for one in requirements:
        ranking = tiny.get_or_create(one)
        ranking.update(snapshot, context)
        assert ranking.best(None, 1), "the one asked for is there, however large"
    assert len(tiny) == 2


def test_the_estimate_of_a_ranking_grows_with_what_it_keeps() -> None:
    fleet = Fleet("mixed")
    requirements = fleet.requirements(fleet.pod("p", 1, 1))
    ranking, sizes = NodeRanking(requirements), []
    for _ in range(4):
        fleet.fill(3, 0.5)
        snapshot = fleet.mirror.snapshot()
        ranking.update(snapshot, fleet.judge.evaluation_context(snapshot))
        sizes.append(ranking.estimated_bytes)
    assert sizes == sorted(set(sizes))


def test_shortlists_and_rejected_pods_are_bounded() -> None:
    fleet = Fleet("mixed", remembered_pods=3)
    fleet.fill(1, 0.0)
    for number in range(5):
        assert fleet.filter(fleet.pod(f"fits-{number}", 1, 1)).passed
        fleet.mirror.release(f"fits-{number}")
        assert not fleet.filter(fleet.pod(f"waits-{number}", 2, 9)).passed
    found = fleet.judge.remembered()
    assert (found["shortlists"], found["rejected"]) == (3, 3)
    assert fleet.judge.unschedulable_pods() == ["waits-2", "waits-3", "waits-4"]


def test_masks_are_bounded_as_a_product_by_bytes() -> None:
    fleet = Fleet("mixed")
    slices = [SliceDecoder().decode(fleet.slices(f"n{number}", number)[0]) for number in range(10)]
    masks = Masks(selector_bytes=5 * 4200, mask_bytes=20 * 300)
    for expression in range(8):
        for one in slices:
            assert masks.of(f"'{expression}' != ''", one).match
    found = masks.remembered()
    assert found["selectors"] <= 5
    assert 10 <= found["masks"] <= 23
    assert found["mask_bytes"] <= 20 * 300
    assert masks.of("x" * 30_000, slices[0]).error, "an expression too large to be remembered is still judged"
    for one in slices:
        masks.forget(one.name)
    assert masks.remembered()["masks"] == masks.remembered()["mask_bytes"] == 0


def candidate(text: str) -> ScoredNode:
    return ScoredNode("n", 1.0, (text,), 0.0, 0.0, "", (ScorePart("link", 1.0, text),))


def refused(name: str, uid: str, reason: str) -> Attempted:
    return Attempted(ObjectKey("x", name), uid, Attempt("", 0, 1, ((reason, 1),)))


def test_the_decision_history_is_bounded_by_pods_and_by_bytes() -> None:
    few = DecisionHistory(pods=3)
    for number in range(5):
        few.record_attempt(refused(f"p{number}", f"u{number}", "why"))
    assert [entry.uid for entry in few.recent(9)] == ["u4", "u3", "u2"]
    assert few.newest(ObjectKey("x", "p1")) is None
    small = DecisionHistory(limit_bytes=100_000)
    for number in range(20):
        for attempt in range(10):
            small.record_attempt(refused(f"p{number}", f"u{number}", f"{attempt}" * 1000))
        small.record_decision(Bound(ObjectKey("x", f"p{number}"), f"u{number}", Decision("", candidate("y" * 500))))
    kept = small.recent(99)
    assert 5 <= len(kept) <= 9
    assert sum(entry.size for entry in kept) <= 100_000
    assert {len(entry.attempts) for entry in kept} == {8}
    small.record_attempt(refused("large", "large", "z" * 200_000))
    assert [entry.uid for entry in small.recent(9)] == ["large"], "the newest stays, however large"


def test_a_pod_uid_has_one_name_in_the_decision_history() -> None:
    history = DecisionHistory()
    for number in range(5):
        history.record_attempt(refused(f"p{number}", "uid", "why"))
    assert [number for number in range(5) if history.newest(ObjectKey("x", f"p{number}"))] == [4]


def test_the_decision_history_counts_objects_and_wide_characters() -> None:
    history = DecisionHistory()
    devices = tuple("%02x" % (number % 256) for number in range(1000))
    parts = tuple(ScorePart("é" * 20, 1.0, "\N{GRINNING FACE}" * 1000) for _ in range(10))
    for name, chosen in (
        ("devices", ScoredNode("n", 1.0, devices, 0.0, 0.0, "", ())),
        ("parts", ScoredNode("n", 1.0, (), 0.0, 0.0, "", parts)),
    ):
        history.record_decision(Bound(ObjectKey("x", name), name, Decision("", chosen)))
    sizes = {entry.uid: entry.size for entry in history.recent(9)}
    assert sizes["devices"] >= 1000 * 51, "a text of two letters is an object of 51 bytes"
    assert sizes["parts"] >= 10 * 4000, "four bytes per character"


def graph(size: int, gbps: float = 20.0) -> Graph:
    links = tuple(tuple(int(i != j) for j in range(size)) for i in range(size))
    return Graph(links, (0,) * size, gbps, 10.0, links, (0,) * size)


def test_graphs_are_bounded_and_equal_ones_are_one() -> None:
    graphs = Graphs(limit=2)
    first = graphs.intern(graph(4))
    assert graphs.intern(graph(4)) is first
    graphs.intern(graph(5))
    graphs.intern(graph(6))
    assert graphs.intern(graph(4)) is not first
    assert graphs.intern(graph(4)) == first


def test_machines_that_differ_in_their_links_never_share_a_state() -> None:
    """However many graphs are forgotten meanwhile: a key made of addresses would one day be equal."""
    fleet = Fleet("mixed")
    fleet.fill(5, 0.0)
    states = {node_info.state.allocation_class for node_info in fleet.mirror.snapshot().node_infos.values()}
    assert len(states) == 4, "five machines, two of which are alike"


def test_ranked_sets_are_bounded_by_bytes() -> None:
    sets = RankedSets(limit_bytes=5000)
    for free in range(1, 256):
        assert sets.of(graph(8), free, 1) == ranked(graph(8), free, 1)
    assert 1 < len(sets) <= 5000 // 256
    assert len(RankedSets(limit_bytes=100).of(graph(8), 255, 4)) == 70, (
        "a result too large to be remembered is still given"
    )


def test_what_the_decoder_shares_goes_with_the_slices() -> None:
    decoder = SliceDecoder(orders=2)

    def decode(number: int) -> Slice:
        device = {
            "name": "d",
            "attributes": {f"a{number}": {"int": 1}},
            "capacity": {"memory": {"value": f"{number + 1}Gi"}},
        }
        return decoder.decode(
            {
                "metadata": {"name": "s"},
                "spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p"}, "devices": [device, device]},
            }
        )

    kept = [decode(number) for number in range(4)]
    assert all(one.devices[0].capacity is one.devices[1].capacity for one in kept)
    assert decode(0).devices[0].capacity is kept[0].devices[0].capacity
    assert decoder.interned() == {"schemas": 4, "capacities": 4, "orders": 2}
    kept.clear()
    gc.collect()
    assert decoder.interned() == {"schemas": 0, "capacities": 0, "orders": 2}


def test_specs_are_bounded_by_their_bytes() -> None:
    """Sixty claims of 640 KB once left 74 MB behind."""
    cache = SpecCache(limit_bytes=100_000)

    def content(number: int, size: int) -> bytes:
        return b'{"devices":{"config":[{"opaque":{"driver":"d","parameters":{"a":"%s"}}}]},"n":%d}' % (
            b"x" * size,
            number,
        )

    assert cache.decode(content(0, 10)) is cache.decode(content(0, 10))
    for number in range(60):
        assert cache.decode(content(number, 10_000)).config
    assert 1 < len(cache) <= 5
    assert cache.content_bytes <= 50_000
    before = len(cache)
    assert cache.decode(content(1, 640_000)).config, "too large to be remembered"
    assert len(cache) == before, "too large to be remembered"


# -- functions that remember --------------------------------------------------------------------------------------

SMALL = Graph(((0,),), (0,), 1.0, 1.0, ((0,),), (0,))
# Arguments of every one of them, different for every number.
REMEMBER: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "_compiled": lambda i: (f"device.driver == '{i}'",),
    "environment_of": lambda i: (Dialect((1, i)),),
    "_in_order": lambda i: (tuple(range(i)),),
    "_left_side": lambda i: (f"device.driver == '{i}'", Dialect()),
    "_reads": lambda i: (compile_selector(f"device.driver == '{i}'"),),
    "_stranded": lambda i: ((i,), DEFAULT_MIX),
    "best_gbps": lambda i: (SMALL, i, 0),
    "flat_graph": lambda i: (f"product {i}", 2),
    "natural": lambda i: (f"n{i}",),
    "parse_quantity": lambda i: (str(i),),
    "parse_semver": lambda i: (f"{i}.0.0",),
    "regex": lambda i: (f"x{i}",),
    "split_terms": lambda i: (f"true && {i} == 1",),
    "usual_graph": lambda i: (f"H100 {i}", 2),
}
ONCE = {"carried_machines"}  # takes no argument
BY_PARAMETER = {"ring_gbps", "count_links_inside", "_quality"}  # see test_measures_of_sets_are_bounded


def remembering() -> dict[str, Any]:
    """Every function with an lru_cache, by its name."""
    names = (module.name for module in pkgutil.walk_packages(extender.__path__, "extender."))
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    values = [value for module in modules for value in vars(module).values()]
    wrapped = (value for value in values if callable(getattr(value, "cache_info", None)))
    found = {id(value): value for value in wrapped if value.__module__.startswith("extender.")}
    by_name = {value.__name__: value for value in found.values()}
    assert len(by_name) == len(found), "each has a name of its own"
    return by_name


def test_every_function_that_remembers_is_listed_here() -> None:
    assert set(remembering()) == REMEMBER.keys() | ONCE | BY_PARAMETER


@pytest.mark.parametrize("name", REMEMBER)
def test_a_function_remembers_no_more_than_its_bound(name: str) -> None:
    function = remembering()[name]
    most = function.cache_parameters()["maxsize"]
    function.cache_clear()
    for number in range(most + 3):
        function(*REMEMBER[name](number))
    assert function.cache_info().currsize == most
    assert function.cache_info().misses >= most + 3
    function.cache_clear()


def test_measures_of_sets_are_bounded() -> None:
    measures, known = Measures(remembered=5), Measures()
    for mask in range(1, 64):
        assert measures.quality(graph(6), mask, 63) == known.quality(graph(6), mask, 63)
    for table in (measures.bandwidth, measures.links_inside, measures.quality):
        assert table.cache_info().currsize == 5


# -- the rest ---------------------------------------------------------------------------------------------------


def test_a_policy_remembers_few_sets_of_overrides() -> None:
    """Pods choose the classes that they ask for: ten overrides by class make a thousand policies."""
    policy = Policy(overrides=tuple(Override(classes=(f"c{i}",), packing="spread") for i in range(10)))
    subsets = [frozenset(f"c{i}" for i in range(10) if number >> i & 1) for number in range(1, MOST_EFFECTIVE + 3)]
    found = [policy.effective("n", subset) for subset in subsets]
    assert policy.effective("n", subsets[-1]) is found[-1], "the last is remembered"
    assert policy.effective("n", subsets[0]) is not found[0]
    assert policy.effective("n", subsets[0]) == found[0]


def test_names_whose_place_is_remembered_are_bounded() -> None:
    offsets = NameOffsets(most=3)
    text = b'["a","b","c","d","e"]'
    names = NodeNames(text, slice(0, len(text)), offsets)
    for _ in range(2):
        for name in "abcde":
            assert names.has_all([name])
            assert 1 <= len(offsets) <= 3


def asked(count: int, eighths: int = 0) -> ClaimSpec:
    """For GPUs, or for eighths of the memory of one."""
    memory = {"memory": Quantity(eighths * (10 << 30) * NANO, BINARY_SI)} if eighths else None
    return ClaimSpec((Request("r", (DeviceRequest("r", "c", count=count, capacity=memory),)),))


def test_of_many_rare_sizes_the_largest_share_is_expected() -> None:
    """39 sizes: each share alone rounds to 0, and then no size was expected."""
    sizes = [asked(count) for count in range(1, 33)] + [asked(1, eighths) for eighths in range(1, 8)]
    book = RequestMixEstimator()
    for number, spec in enumerate([*sizes * 5, asked(7)]):
        book.observe(Claim(ObjectKey("x", f"c{number}"), f"u{number}", spec=spec))
    ((shape, share),) = book.mix(80 << 30)
    assert (shape.gpus, share > 0) == (7, True)


def test_expected_demand_is_that_of_the_last_claims() -> None:
    book = RequestMixEstimator(window=40)
    for number in range(90):
        book.observe(Claim(ObjectKey("x", f"c{number}"), f"u{number}", spec=asked(8 if number < 50 else 1)))
    ((shape, share),) = book.mix(80 << 30)
    assert (shape.gpus, share) == (1, 1.0), "the first fifty are forgotten"


def test_unfinished_demands_are_bounded_by_their_pods() -> None:
    fleet, unfinished = Fleet("mixed"), UnfinishedEvaluations(3)
    fleet.fill(1, 0.0)
    for number in range(5):
        unfinished.add(fleet.requirements(fleet.pod(f"u{number}", number, 1)), f"u{number}")
    assert len(unfinished) == 3


def test_a_pattern_remembers_few_texts_and_stays_right() -> None:
    """More different values than are remembered, twice: what was forgotten is looked for again."""
    decoder, selector = SliceDecoder(), compile_selector("device.attributes['d'].v.matches('^[0-9]*7$')")

    def device(number: int) -> Any:
        one = {"name": "d", "attributes": {"v": {"string": str(number)}}}
        spec = {"driver": "d", "nodeName": "n", "pool": {"name": "p"}, "devices": [one]}
        return decoder.decode({"metadata": {"name": "s"}, "spec": spec}).devices[0]

    for number in (*range(200), *range(200)):
        assert selector.match(device(number), "d") == (number % 10 == 7)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back on request")
def test_memory_of_large_objects_that_are_gone_goes_back_to_the_system() -> None:
    """A buffer that stays at the end of the heap keeps all that was freed before it."""
    texts = [bytes(20_000) for _ in range(5_000)]
    last = bytes(20_000)
    before = resident_bytes()
    texts.clear()
    assert give_back_memory(kept_bytes=32 << 20), "the C library keeps 100 MB"
    assert resident_bytes() < before - (64 << 20)
    assert not give_back_memory(kept_bytes=1 << 40), "it may keep so much"
    assert last
