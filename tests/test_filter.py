"""Filter and prioritize over real HTTP: choices, reasons, holds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation import Features, Snapshot
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.model import CallBudget, ObjectKey, Pod, PodClaim, WireError
from extender.policy import Policy
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.scheduling import EvaluationContext, NodeRanking, PodRequirements, requirements_of
from extender.wire import SliceDecoder, decode_claim, decode_class, decode_node, decode_pod
from extender.wire import extender_v1 as wire
from extender.wire import node_names as names_module
from extender.wire.core import may_need_devices
from tests.eventually import eventually
from tests.running_berth import berthing, claim, pod


async def test_first_choice_is_held() -> None:
    """Two pods filtered before either is bound do not get the same last device."""
    async with berthing({"n1": "t4-4"}) as b:
        for i in range(5):
            b.cluster.apply(claim(f"c{i}"))
            b.cluster.apply(pod(f"p{i}", f"c{i}"))
        await b.settled()
        answers = [await b.filter(f"p{i}") for i in range(5)]
        assert [bool(a["NodeNames"]) for a in answers] == [True] * 4 + [False]
        assert answers[4]["FailedAndUnresolvableNodes"] == {"n1": "matching devices are held by a pod being scheduled"}


async def test_only_nodes_that_were_asked_about_are_chosen() -> None:
    """The best nodes of all are looked at first; where the scheduler has ruled one of them out, the best of the rest
    come."""
    async with berthing({f"n{i}": "t4-4" if i % 2 else "hgx-h100-8" for i in range(6)}) as b:
        b.cluster.apply(claim("c", 1))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        everybody = (await b.filter("p"))["NodeNames"]
        assert len(everybody) == 6
        assert (await b.filter("p", [*everybody[1:], "n-unheard-of"]))["NodeNames"] == everybody[1:]
        assert (await b.filter("p", everybody[4:]))["NodeNames"] == everybody[4:]


async def test_filtering_again_replaces_the_hold() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(claim("c", 4))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        for _ in range(3):
            assert (await b.filter("p"))["NodeNames"] == ["n1"]


async def test_reasons_are_stable_and_name_the_request() -> None:
    """The same cause gives the same text every time: a text that varies wakes the pod at once."""
    async with berthing({"n1": "t4-4", "n2": "l40s-8-pix"}) as b:
        b.cluster.apply(claim("none", 1, "device.attributes['gpu.nvidia.com'].productName == 'H100'"))
        b.cluster.apply(claim("many", 9))
        b.cluster.apply(pod("p", "none"))
        b.cluster.apply(pod("q", "many"))
        await b.settled()
        for _ in range(2):
            assert set((await b.filter("p"))["FailedAndUnresolvableNodes"].values()) == {
                "no device matches request gpu"
            }
            assert set((await b.filter("q"))["FailedAndUnresolvableNodes"].values()) == {
                "too few devices match request gpu"
            }


async def test_broken_objects_are_named_and_stop_nobody_else() -> None:
    """Unknown classes, broken CEL and a runtime error: a reason with object and cause; other pods are served."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(claim("unknown", deviceClassName="nope"))
        b.cluster.apply(claim("broken", 1, "device.attributes["))
        b.cluster.apply(claim("fails", 1, "device.attributes['gpu.nvidia.com'].nope == 1"))
        b.cluster.apply(claim("good"))
        for name in ("unknown", "broken", "fails", "good"):
            b.cluster.apply(pod(name, name))
        await b.settled()
        reasons = {
            name: (await b.filter(name))["FailedAndUnresolvableNodes"].get("n1")
            for name in ("unknown", "broken", "fails", "good")
        }
        assert reasons["unknown"] == "claim default/unknown, request gpu: device class nope does not exist"
        assert "selector #0: CEL compile error" in reasons["broken"]
        assert "1:19" in reasons["broken"]
        assert "no such key: nope" in reasons["fails"]
        assert reasons["good"] is None


async def test_malformed_slice_breaks_only_its_pool() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        obj = b.cluster.store["resourceslices", ("", "00000-gpu.nvidia.com-n1")]
        bad = {
            **obj,
            "spec": {**obj["spec"], "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "lots"}}}]},
        }
        b.cluster.store.put("resourceslices", ("", "00000-gpu.nvidia.com-n1"), bad)
        b.cluster.apply(claim("c", 4))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        assert (await b.filter("p"))["NodeNames"] == ["n2"]
        reason = (await b.filter("p", ["n1"]))["FailedAndUnresolvableNodes"]["n1"]
        assert "spec.devices[0].capacity[memory].value" in reason
        assert "'lots'" in reason


async def test_extended_resource_backed_by_a_class_is_never_bound_without_a_device() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        limits = {"limits": {"nvidia.com/gpu": "1"}}
        b.cluster.apply(pod("legacy", containers=[{"name": "m", "image": "pause", "resources": limits}]))
        b.cluster.apply(
            pod("other", containers=[{"name": "m", "image": "pause", "resources": {"limits": {"example.com/x": "1"}}}])
        )
        await b.settled()
        answer = await b.filter("legacy")
        assert answer["NodeNames"] == [] or (
            await b.bind("legacy", answer["NodeNames"][0]) == "" and len(b.held()) == 1
        )
        assert (await b.filter("other"))["NodeNames"] == ["n1"]


async def test_best_node_gets_ten_and_order_follows_the_links() -> None:
    async with berthing({"pcie": "l40s-8-pix", "bridged": "a100-pcie-8-bridged", "switched": "hgx-h100-8"}) as b:
        b.cluster.apply(claim("c", 8))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        names = (await b.filter("p"))["NodeNames"]
        assert names[0] == "switched"
        found = await b.prioritize("p", names)
        assert found["switched"] == 10
        assert found["bridged"] < 10
        assert found["pcie"] < 10


async def test_annotations_filter_by_topology_and_bandwidth() -> None:
    async with berthing({"pcie": "l40s-8-pix", "bridged": "a100-pcie-8-bridged"}) as b:
        b.cluster.apply(claim("c", 2))
        b.cluster.apply(claim("d", 4))
        b.cluster.apply(pod("p", "c", annotations={"berth.dev/topology": "required"}))
        b.cluster.apply(pod("q", "d", annotations={"berth.dev/min-bandwidth-gbps": "100"}))
        b.cluster.apply(pod("r", "c", annotations={"berth.dev/topology": "always"}))
        await b.settled()
        assert (await b.filter("p"))["NodeNames"] == ["bridged"]
        assert set((await b.filter("q"))["FailedAndUnresolvableNodes"].values()) == {
            "no free device set has the required bandwidth"
        }
        assert "'always' is not one of" in (await b.filter("r"))["FailedAndUnresolvableNodes"]["pcie"]


async def test_candidates_bound_the_answer() -> None:
    nodes = {f"n{i}": "t4-4" for i in range(6)}
    async with berthing(nodes, Policy(candidates=2)) as b:
        b.cluster.apply(claim("c"))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        assert (await b.filter("p"))["NodeNames"] == ["n0", "n1"]


async def test_unknown_claim_is_an_error_that_is_retried() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(pod("p", "later"))
        await b.settled()
        assert "claim default/later is not known yet" in (await b.filter("p"))["Error"]


async def test_rejected_pod_is_woken_when_a_slice_brings_devices() -> None:
    """The marker class is touched once, and only because a pod waits."""
    from extender.sandbox import carried_machines
    from extender.sandbox.machines import gpu_slice, node_object

    async with berthing({"n1": "t4-4"}) as b:
        machine = carried_machines()["hgx-h100-8"]
        b.cluster.apply(node_object("n2", machine, {}))
        b.cluster.apply(claim("c", 8))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        assert (await b.filter("p"))["NodeNames"] == []
        before = b.cluster.store["deviceclasses", ("", "berth.dev")]["metadata"]["resourceVersion"]
        b.cluster.apply(gpu_slice("n2", machine))
        await eventually(
            lambda: b.cluster.store["deviceclasses", ("", "berth.dev")]["metadata"]["resourceVersion"] != before
        )
        assert (await b.filter("p"))["NodeNames"] == ["n2"]
        assert b.app.service.requeuer.touches == 1


async def test_facts_about_the_fleet_reach_the_scores_a_few_at_a_time() -> None:
    """A change of scores never holds up a call, and in the end every status is of the newest facts."""
    async with berthing({f"n{i:02}": "dgx1-v100" for i in range(3)}) as b:
        b.cluster.apply(claim("c", 2))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        assert (await b.filter("p"))["NodeNames"]
        b.cluster.add_node("better", carried_machines()["hgx-h100-8"])
        await b.settled()
        assert (await b.filter("p"))["NodeNames"][0] == "better"
        filter_service, snapshot = b.app.service.filter_service, b.app.service.cache.snapshot()
        requirements = requirements_of(decode_pod(b.pod("p")), snapshot, filter_service.policy)
        assert isinstance(requirements, PodRequirements)
        ranking, fresh, context = (
            filter_service.rankings.get_or_create(requirements),
            NodeRanking(requirements),
            filter_service.evaluation_context(snapshot),
        )
        for _ in range(3):
            ranking.update(snapshot, context)
        fresh.update(snapshot, context)
        assert not ranking.stale
        assert ranking.best(None, 9) == fresh.best(None, 9)


_TRAPS = ['"NodeNames":["', ',"NodeNames":["a"]}', "]", "}", '\\"', "x"]


@given(
    st.lists(st.sampled_from(["n1", "n2", "node-3.example.com"]), max_size=3),
    st.lists(st.sampled_from(_TRAPS), max_size=3).map("".join),
)
def test_names_are_found_however_the_body_is_laid_out(names: list[str], note: str) -> None:
    """Names are cut out of the body before it is parsed; no text inside a pod may be taken for them."""
    body = {
        "Pod": {
            "metadata": {"name": "p", "namespace": "d", "annotations": {"berth.dev/x": note, note: "y"}},
            "list": [note],
            "NodeNames": [note],
        },
        "Nodes": None,
        "NodeNames": names,
    }
    read = [
        wire.decode_args(json.dumps(body, separators=separators).encode()) for separators in ((",", ":"), (", ", ": "))
    ]
    assert all(list(args.names) == names and args.pod.annotations["berth.dev/x"] == note for args in read)
    assert all(json.loads(wire.encode_passed(args))["NodeNames"] == names for args in read)


@given(
    st.lists(st.permutations([f"node-{i}" for i in range(8)] + ["n", "de-1", 'x"node-2']), min_size=1, max_size=5),
    st.integers(0, 11),
)
def test_names_are_found_wherever_they_stand_and_nowhere_else(orders: list[list[str]], cut: int) -> None:
    """Where a name stood before only tells where to look first."""
    offsets = names_module.NameOffsets(most=5, near=12)
    for shift, order in enumerate(orders):
        given_names = order[:cut]
        before, text = b'{"n"' * shift, json.dumps(given_names, separators=(",", ":")).encode()
        asked = names_module.NodeNames(before + text + b',"n"]', slice(len(before), len(before) + len(text)), offsets)
        for name in (*order, "ode-3", "node"):
            if '"' not in name:
                assert asked.has_all([name]) == (name in given_names), name
        assert list(asked) == given_names


def test_names_are_counted_and_only_estimated_for_people() -> None:
    """Texts of equal length need not hold equally many names."""
    offsets = names_module.NameOffsets()
    two, one = (names_module.NodeNames(text, slice(0, len(text)), offsets) for text in (b'["n1","n2"]', b'["node-12"]'))
    assert [names_module.estimated_len(names) for names in (two, one)] == [2, 2]
    assert (len(two), len(one)) == (2, 1)
    assert names_module.estimated_len(one) == 1


_TEXTS = st.sampled_from(["u", "u-1", '"uid":"x"', '","uid":"y","resourceVersion":"9', "\\", "{}", "é"])
_FIELDS = st.lists(
    st.tuples(
        st.sampled_from(["name", "namespace", "uid", "resourceVersion", "annotations", "generation", "labels"]), _TEXTS
    ),
    unique_by=lambda field: field[0],
)


@given(_FIELDS)
def test_a_pod_is_told_by_its_own_uid_and_version_or_not_at_all(fields: list[tuple[str, str]]) -> None:
    """Without reading it: no text inside a pod may be taken for them."""
    shape = {
        "annotations": lambda text: {"uid": text, "resourceVersion": text},
        "labels": lambda text: {text: text},
        "generation": len,
    }
    metadata = {name: shape.get(name, str)(text) for name, text in fields}
    body = json.dumps(
        {"Pod": {"metadata": metadata, "spec": {"uid": "z"}}, "Nodes": None, "NodeNames": ["n"]}, separators=(",", ":")
    ).encode()
    assert wire.decode_args(body).identity in (("", ""), (metadata.get("uid"), metadata.get("resourceVersion")))


def test_nobody_can_make_looking_for_them_take_long() -> None:
    body = b'{"Pod":{"metadata":{%b"name":"p"}},"Nodes":null,"NodeNames":["n"]}' % (b'"uid":"u",' * 500_000)
    assert wire.decode_args(body).identity == ("", "")
    body = b'{"Pod":{"metadata":{"name":"\xff","uid":"\xff","resourceVersion":"1"}},"Nodes":null,"NodeNames":["n"]}'
    args = wire.decode_args(body)
    assert args.identity == ("", "")
    with pytest.raises(WireError, match="not JSON"):
        _ = args.pod


async def test_a_pod_that_the_watch_shows_is_not_read_again_and_a_newer_one_is() -> None:
    async with berthing({"n1": "hgx-h100-8", "n2": "t4-4"}) as b:
        b.cluster.apply(claim("c"))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        shown = b.pod("p")

        async def first(version: str, least: str) -> list[str]:
            names = ("name", "namespace", "uid")
            metadata = {
                **{name: shown["metadata"][name] for name in names},
                "resourceVersion": version,
                "annotations": {"berth.dev/expected-memory": least},
            }
            body = {"Pod": {"metadata": metadata, "spec": shown["spec"]}, "Nodes": None, "NodeNames": ["n1", "n2"]}
            return (await b.client.post("/filter", content=json.dumps(body, separators=(",", ":")))).json()["NodeNames"]

        both = await first(shown["metadata"]["resourceVersion"], "60Gi")
        assert set(both) == {"n1", "n2"}, "of this version the watch knows no such annotation"
        assert await first("999", "60Gi") == ["n1"], "of another one the body counts"


async def test_names_that_are_no_json_are_refused_once_they_are_read() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        b.cluster.apply(claim("c", 16))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        body = b'{"Pod":%b,"Nodes":null,"NodeNames":["n1" "n2"]}' % json.dumps(b.pod("p")).encode()
        reply = await b.client.post("/filter", content=body)
        assert reply.status_code == 400, reply.text
        assert "NodeNames" in reply.json()["error"], reply.text


_MACHINES = [carried_machines()[name] for name in ("t4-4", "dgx1-v100", "a100-pcie-8-bridged")]


_AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "example.com/x"]),
    st.sampled_from([1, "2", "0", "500m", "1Gi"]),
    max_size=2,
)
_CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("c")},
        optional={"resources": st.fixed_dictionaries({}, optional={"limits": _AMOUNTS, "requests": _AMOUNTS})},
    ),
    max_size=2,
)


@given(
    st.fixed_dictionaries(
        {"containers": _CONTAINERS},
        optional={
            "initContainers": _CONTAINERS,
            "resourceClaims": st.lists(st.just({"name": "g", "resourceClaimName": "c"}), max_size=1),
        },
    )
)
def test_no_pod_that_may_need_devices_is_passed_undecoded(spec: dict[str, object]) -> None:
    found = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}
    assert may_need_devices(found) or not decode_pod(found).may_need_devices
    plain = not spec.get("resourceClaims") and "/" not in json.dumps(spec)
    assert not (plain and may_need_devices(found)), "pods without devices are not decoded"
    for broken in ([3], {"a": 1}, "x", [{"resources": 3}]):
        assert may_need_devices({**found, "spec": {**spec, "containers": broken}}), "decoding says what is wrong"


class World:
    """A cache filled by hand, and pod requirements with their rankings."""

    def __init__(self, nodes: str, remembered_changes: int = 4096, *, identity: bool = False) -> None:
        """With `identity` the requirements read UUIDs of devices, so that their ranking keeps classes of its own."""
        self.mirror, self._decoder, self._masks = (
            ClusterCache(remembered_changes=remembered_changes),
            SliceDecoder(),
            Masks(),
        )
        self.mirror.apply_class("gpu.nvidia.com", decode_class({"metadata": {"name": "gpu.nvidia.com"}, "spec": {}}))
        for kind, name in enumerate(nodes):
            self.change(name, kind % 2)
        selector = 'device.attributes["gpu.nvidia.com"].brand == "Nvidia"'
        more = ' && device.attributes["gpu.nvidia.com"].uuid != "x"' if identity else ""
        asked = decode_claim(claim("c", 2, selector + more))
        self.mirror.apply_claim(asked.key, asked)
        asking = Pod(ObjectKey("default", "p"), "u", (PodClaim("g", "c"),))
        requirements = requirements_of(asking, self.mirror.snapshot(), Policy())
        assert isinstance(requirements, PodRequirements)
        self.requirements = requirements

    def change(self, name: str, kind: int) -> None:
        machine = _MACHINES[kind % 3]
        self.mirror.apply_node(name, decode_node(node_object(name, machine, {})) if kind < 3 else None)
        self.mirror.apply_slice(name, self._decoder.decode(gpu_slice(name, machine)) if kind < 3 else None)

    def newest(self) -> tuple[Snapshot, EvaluationContext]:
        snapshot = self.mirror.snapshot()
        return snapshot, EvaluationContext(self._masks, Features(), snapshot.baseline)

    def assert_right(self, ranking: NodeRanking) -> None:
        """As one made anew and at once."""
        for _ in range(20):
            ranking.update(*self.newest())
        fresh, node_infos = NodeRanking(self.requirements), self.mirror.snapshot().node_infos
        fresh.update(*self.newest())
        assert ranking.best(None, 99) == fresh.best(None, 99)
        assert ranking.unschedulable_counts() == fresh.unschedulable_counts()
        assert [ranking.status(node_info) for node_info in node_infos.values()] == [
            fresh.status(node_info) for node_info in node_infos.values()
        ]
        assert sum(state.nodes for state in ranking.status_groups()) == ranking.nodes == len(node_infos)


_CHANGES = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3)), max_size=30)


@given(_CHANGES, st.lists(st.integers(0, 12), min_size=30, max_size=30), st.booleans(), st.integers(1, 3))
def test_a_ranking_that_follows_in_small_budgets_equals_one_made_at_once(
    changes: list[tuple[str, int]], steps: list[int], identity: bool, vacant: int
) -> None:
    """Nodes come, go and change while budgets end anywhere, however few of the states that no node is in are
    remembered."""
    world = World("abcd", identity=identity)
    ranking = NodeRanking(world.requirements, vacant=vacant)
    for some, (name, kind) in zip(steps, changes, strict=False):
        snapshot, context = world.newest()
        if ranking.update(snapshot, replace(context, budget=CallBudget(1.0, some, lambda: 0.0))):
            ranking.refresh(snapshot, replace(context, budget=CallBudget(1.0, some, lambda: 0.0)))
        world.change(name, kind)
    world.assert_right(ranking)


@pytest.mark.parametrize("identity", [False, True])
def test_a_ranking_far_behind_starts_over(identity: bool) -> None:
    world = World("abcdef", remembered_changes=1, identity=identity)
    ranking = NodeRanking(world.requirements)
    ranking.update(*world.newest())
    for name, kind in (("a", 2), ("b", 3), ("g", 0)):
        world.change(name, kind)
        world.mirror.snapshot()
    assert world.mirror.snapshot().changed_since(1) is None
    world.assert_right(ranking)


def test_who_gave_up_half_way_goes_on_from_there() -> None:
    outcomes = set()
    for steps in range(16):
        world = World("abcdef")
        ranking = NodeRanking(world.requirements)
        snapshot, context = world.newest()
        done = ranking.update(snapshot, replace(context, budget=CallBudget(1.0, steps, lambda: 0.0)))
        outcomes.add(done)
        assert done == (ranking.nodes == 6)
        world.change("c", 1)
        world.change("g", 2)
        world.assert_right(ranking)
    assert outcomes == {False, True}


def test_places_of_names_are_remembered_from_the_first_body_on() -> None:
    """An empty memory of places is a memory, too: kube-scheduler's next body is read with it."""
    body = b'{"Pod":{"metadata":{"name":"p","namespace":"d","uid":"u"}},"Nodes":null,"NodeNames":["n1","n2"]}'
    offsets = names_module.NameOffsets()
    names = wire.decode_args(body, offsets).names
    assert isinstance(names, names_module.NodeNames)
    assert names.has_all(["n2"])
    assert len(offsets) == 1
