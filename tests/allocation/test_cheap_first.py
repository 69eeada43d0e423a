"""The cheap GPU first: a pod without a wish takes the product of least value, and leaves whole sets to large jobs."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from benchmarks import quality
from extender.allocation import Features
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod, decode_pod
from extender.api.resource_claims import Allocation, Result
from extender.api.resource_slices import DeviceId
from extender.base.deadline import NO_DEADLINE
from extender.cache import ClusterCache
from extender.policy import Policy, PolicyError, load_policy
from extender.sandbox import carried_machines
from extender.sandbox.machines import Machine
from extender.sandbox.sandbox_cluster import GPU_CLASS
from extender.scheduling import Evaluator, Placement, PodRequirements, requirements_of
from extender.serve.evaluations import Evaluations
from extender.serve.filter import FilterService
from extender.topology.score_parts import product_gbps, thrift
from tests.worlds.filled_caches import add_machine, put
from tests.worlds.running_berth import Berthing, berthing, claim, pod
from tests.worlds.vendor_worlds import node_info, nvidia

V100, A100, L40S, H100 = "dgx1-v100", "a100-pcie-8-bridged", "l40s-8-pix", "hgx-h100-8"
T4, B200, TRAY = "t4-4", "hgx-b200-8-degraded", "gb200-nvl72-tray"
EACH = {machine: machine for machine in (T4, L40S, V100, A100, H100, B200, TRAY)}  # the least valuable first
CLIQUE = "nvidia.com/gpu.clique"


async def placed(b: Berthing, name: str, count: int, **annotations: str) -> str:
    """The node of a pod for so many GPUs, after its bind."""
    notes = {f"berth.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    await b.create(claim(name, count), pod(name, name, annotations=notes))
    node: str = (await b.filter(name))["NodeNames"][0]
    assert await b.bind(name, node) == ""
    await b.settled()
    return node


async def parts_of(b: Berthing, name: str) -> dict[str, Any]:
    best = (await b.client.get(f"/v1/explain/default/{name}")).json()["best"][0]
    return {part["name"]: part["sentence"] for part in best["parts"]}


async def test_two_gpus_without_a_wish_go_to_the_least_valuable_product_that_is_left() -> None:
    async with berthing(EACH) as b:
        found = [await placed(b, f"notebook-{i:02}", 2) for i in range(19)]
    assert found == sorted(found, key=list(EACH).index), "each step the least valuable product"
    assert found[-5:] == [H100] * 4 + [B200]


@pytest.mark.parametrize(
    ("count", "annotations", "machine"),
    [
        (2, {}, T4),
        (2, {"topology": "required"}, V100),
        (2, {"topology": "preferred"}, B200),
        (2, {"bandwidth": "100"}, A100),
        (2, {"bandwidth": "300"}, H100),
        (2, {"bandwidth": "500"}, B200),
        (2, {"bandwidth": "9000"}, B200),
        (2, {"min_bandwidth_gbps": "100"}, A100),
        (2, {"expected_memory": "20Gi"}, L40S),
        (4, {"bandwidth": "70"}, V100),
        (8, {"bandwidth": "300"}, H100),
        (8, {"topology": "required"}, V100),
    ],
)
async def test_a_pod_gets_what_it_asks_for_and_no_more(count: int, annotations: dict[str, str], machine: str) -> None:
    async with berthing(EACH) as b:
        assert await placed(b, "p", count, **annotations) == machine


async def test_explain_says_what_the_links_and_the_value_are_compared_with() -> None:
    async with berthing({"n1": A100}) as b:
        await b.create(claim("none", 2), pod("none", "none"))
        links = await parts_of(b, "none")
        assert links["link"].startswith("predicted ring of 2 GPUs: 240 GB/s, 2 x NVIDIA A100 80GB PCIe can offer 240 (")
        assert links["value"] == "NVIDIA A100 80GB PCIe of value 213 (GiB and GB/s)"
        assert "headroom" not in links, "explain does not name memory: the pod asked for none"
        await b.create(claim("one"), pod("one", "one", annotations={"berth.dev/bandwidth": "300"}))
        value = (await parts_of(b, "one"))["value"]
        assert value == "NVIDIA A100 80GB PCIe of value 213 (GiB and GB/s), 1 of 2 joined GPUs that are all free"
        for annotation, said in (("bandwidth", "300"), ("min-bandwidth-gbps", "100")):
            await b.create(
                claim(annotation, 2), pod(annotation, annotation, annotations={f"berth.dev/{annotation}": said})
            )
            assert f"240 GB/s, {said} asked for (" in (await parts_of(b, annotation))["link"]


@pytest.mark.parametrize(
    ("product", "count", "value"),
    [
        ("NVIDIA H100 80GB HBM3", 4, 451),
        ("NVIDIA H100 80GB HBM3", 1, 451),
        ("NVIDIA GH200 480GB", 1, 451),
        ("Tesla V100-SXM2-32GB", 3, 67),
        ("NVIDIA H100 NVL", 2, 80),
        ("NVIDIA A100-PCIE-40GB", 1, 53),
        ("NVIDIA A40", 2, 53),
        ("Tesla T4", 1, 27),
        ("no product of the files", 2, 53),
    ],
)
def test_without_an_agent_links_are_worth_what_the_vendor_says_of_the_product(
    product: str, count: int, value: int
) -> None:
    """All have 80 GiB here. No agent reports whether a bridge joins the cards."""
    found = node_info(gpu_nvidia_com=[nvidia(i, product) for i in range(count)])
    assert found.fabric is not None
    assert thrift(found, found.fabric, 1, {}, {})[1].startswith(f"{product} of value {value}")


@pytest.mark.parametrize(
    ("policy", "machine"),
    [
        ("products: {T4: 900}", L40S),
        ("products: {T4: 900, L40: 30, L40S: 900}", L40S),
        ("overrides: [{namespaces: [default], products: {T4: 900}}]", L40S),
        ("overrides: [{namespaces: [other], products: {T4: 900}}]", T4),
        ("headroom: roomy", B200),
    ],
)
async def test_the_policy_sets_the_value_of_a_product(policy: str, machine: str) -> None:
    async with berthing(EACH, load_policy(policy)) as b:
        assert await placed(b, "p", 2) == machine


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("products: {H100: yes}", "products.H100: must not be true or false"),
        ("products: {H100: -1}", "products.H100: must be at least 0 (is -1"),
        ("products: {H100: dear}", "products.H100: must be a number"),
        ("products: {'': 1}", "products: the name '' must have at least 2 characters (line 1, column 12)"),
        ("overrides: [{products: {A: 1}}]", "overrides.0.products: the name 'A' must have at least 2 characters"),
        ("products: 7", "products: must be an object"),
        ("overrides: [{products: {H100: -1}}]", "overrides.0.products.H100: must be at least 0"),
    ],
)
def test_values_that_are_none_are_refused(text: str, fault: str) -> None:
    with pytest.raises(PolicyError) as error:
        load_policy(text)
    assert fault in str(error.value)


async def test_nodes_that_differ_only_in_the_product_do_not_share_a_score() -> None:
    machine = carried_machines()[L40S]
    readings = tuple(replace(reading, product="NVIDIA L40") for reading in machine.readings)
    async with berthing({"n1": L40S}, load_policy("products: {L40S: 900}")) as b:
        b.cluster.add_node("n2", replace(machine, product="NVIDIA L40", readings=readings))
        await b.settled()
        assert await placed(b, "p", 2) == "n2"


async def test_a_whole_clique_stays_whole_while_a_broken_one_has_trays() -> None:
    """Four trays of two cliques each have the same score; names alone would break the first clique."""
    nodes = {f"n{i}": TRAY for i in range(8)}
    async with berthing(nodes) as b:
        for i in range(8):
            node = b.cluster.store["nodes", ("", f"n{i}")]
            node["metadata"].setdefault("labels", {})[CLIQUE] = f"c{i // 4}"
            b.cluster.store.put("nodes", ("", f"n{i}"), node)
        await b.settled()
        b.cluster.occupy("n6", (0,))
        await b.settled()
        await b.create(claim("first", 4), pod("first", "first"))
        assert (await b.client.get("/v1/explain/default/first")).json()["best"][0]["node"] == "n4"
        found = [await placed(b, f"p{i}", 4) for i in range(4)]
    assert found == ["n4", "n5", "n7", "n0"]


class Fleet:
    """Nodes with names such as t4-4-00: `count` of each machine. Serve's filter places pods on them, one by one.

    The nodes of a machine in `cliques` are one clique.
    """

    def __init__(
        self, machines: Mapping[str, Machine], count: Mapping[str, int], cliques: Collection[str] = ()
    ) -> None:
        self.cache = put(ClusterCache(), GPU_CLASS)
        for kind, number in count.items():
            for i in range(number):
                labels = {CLIQUE: kind} if kind in cliques else {}
                add_machine(self.cache, f"{kind}-{i:02}", machines[kind], **labels)
        self.names = sorted(self.cache.store.nodes)
        self.filter_service = FilterService(
            self.cache, Policy(), Evaluator(Features()), Evaluations(lambda: 0.0), lambda: 0.0
        )

    @property
    def free_gpus(self) -> dict[str, int]:
        """By node."""
        infos = self.cache.snapshot().node_infos
        return {name: infos[name].positions(~infos[name].busy).bit_count() for name in self.names}

    def create(self, name: str, count: int) -> Pod:
        """A pod and its claim for so many GPUs."""
        asked, obj = claim(name, count), pod(name, name)
        asked["metadata"]["uid"], obj["metadata"]["uid"] = f"u-{name}", f"p-{name}"
        put(self.cache, asked)
        return decode_pod(obj)

    def place(self, number: int, count: int) -> bool:
        """Place a pod on the best node, as filter and bind would. Returns whether it has a place."""
        asking = self.create(f"c{number}", count)
        passed = self.filter_service.filter(asking, self.names).passed
        self.cache.release(asking.uid)
        if passed:
            snapshot = self.cache.snapshot()
            requirements = requirements_of(asking, snapshot, self.filter_service.policy)
            assert isinstance(requirements, PodRequirements)
            placement = self.filter_service.status_for_bind(requirements, passed[0], snapshot, NO_DEADLINE)
            assert isinstance(placement, Placement)
            (results,) = placement.results(snapshot.node_infos[passed[0]])
            self._allocate(f"c{number}", results)
        return bool(passed)

    def occupy(self, node: str, gpus: Collection[int]) -> None:
        """Allocate GPUs of a node to another pod."""
        self.create(f"held-{node}", len(gpus))
        self._allocate(f"held-{node}", tuple(Result("gpu", DeviceId("gpu.nvidia.com", node, f"gpu-{i}")) for i in gpus))

    def _allocate(self, name: str, results: tuple[Result, ...]) -> None:
        key = ObjectKey("default", name)
        self.cache.apply_claim(key, replace(self.cache.store.claims[key], allocation=Allocation(results)))


@pytest.mark.parametrize(("slow", "fast"), list(permutations(carried_machines(), 2)))
def test_a_set_with_the_wanted_bandwidth_comes_before_a_cheaper_one_just_below_it(slow: str, fast: str) -> None:
    """The slow node has GPUs in use, so that packing prefers it, too; the fast one has whole sets to break."""
    names, size = [f"{slow}-00", f"{fast}-00"], carried_machines()[slow].count
    for wanted, held in ((2, 0), (4, 0), (2, size - 2), (4, max(size - 4, 0))):
        fleet = Fleet(carried_machines(), {slow: 1, fast: 1})
        if held:
            fleet.occupy(names[0], range(held))
        below, above = (product_gbps(fleet.cache.snapshot().node_infos[name], (1 << wanted) - 1) for name in names)
        asked = below * 1.02
        if 0 < asked <= above:
            asking = replace(fleet.create("p", wanted), annotations={"berth.dev/bandwidth": f"{asked:g}"})
            passed = fleet.filter_service.filter(asking, names).passed
            assert passed, "both nodes have room"
            assert passed[0] == names[1], (wanted, held, asked, above)


def whole_board() -> Machine:
    """A board of B200 all of whose links work."""
    degraded = carried_machines()[B200]
    return replace(degraded, readings=tuple(replace(one, switch_links=18) for one in degraded.readings))


@pytest.mark.parametrize("held", [0, 20, 40, 60])
@pytest.mark.parametrize("size", quality.SIZES)
def test_trays_are_whole_as_long_as_other_nodes_have_room(size: int, held: int) -> None:
    """Jobs of eight hold many boards: then a typical job needs a board, and none would miss the GPUs of a tray."""
    rng = random.Random(100 * size + held)
    machines = {**carried_machines(), "b200": whole_board()}
    others = dict.fromkeys(rng.sample([L40S, V100, A100, H100], rng.randint(0, 2)), 1)
    fleet = Fleet(machines, {**others, "b200": held + 3, TRAY: rng.randint(1, 4)}, cliques=(TRAY,))
    for number in range(held + 1):  # the last one is partly in use
        fleet.occupy(f"b200-{number:02}", range(8 if number < held else rng.randint(1, 3)))
    left = fleet.free_gpus
    for number in range(sum(gpus // size for name, gpus in left.items() if not name.startswith(TRAY))):
        assert fleet.place(number, size)
        broken = [name for name, gpus in fleet.free_gpus.items() if name.startswith(TRAY) and gpus < 4]
        assert not broken, f"pod {number} of {held=} {others=}"
