"""Shares, partitions, taints, alternatives, adminAccess, and allocations that no pod uses, over real HTTP."""

from __future__ import annotations

import asyncio

import pytest

from extender.cluster import ApiClient, Credentials, Writer
from extender.sandbox.apiserver.registry import RESOURCES
from extender.serve.orphans import OrphanCollector
from tests.worlds.dra_worlds import CLAIMS, asks, custom, mig, place
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, berthing, claim, drop_fields, pod
from tests.worlds.tenant_worlds import allocated

pytestmark = pytest.mark.loopback
SHARED_DEVICE = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}


def add(b: Berthing, *claims: dict) -> list[str]:
    """Claims, each with a pod of its name that uses it. Returns the names."""
    for one in claims:
        b.cluster.apply(one)
        b.cluster.apply(pod(one["metadata"]["name"], one["metadata"]["name"]))
    return [one["metadata"]["name"] for one in claims]


def claimed(name: str, **devices: list[dict]) -> dict:
    """A claim with these requests and constraints."""
    return {**claim(name), "spec": {"devices": devices}}


def allocate(b: Berthing, name: str, **allocation: dict) -> None:
    """Write the allocation of a claim as its scheduler does."""
    change = {"status": {"allocation": allocation}}
    b.cluster.api.registry.patch(CLAIMS, ("default", name), change, "status", strategic=False)


async def test_shares_pack_and_never_exceed() -> None:
    """Shares go onto the device that is shared already, and stop where its memory ends."""
    steps = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    device = {**SHARED_DEVICE, "capacity": {"memory": {"value": "80Gi", "requestPolicy": steps}}}
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [device, {**device, "name": "b"}])
        names = add(b, *(asks(f"c{i}", capacity={"requests": {"memory": "30Gi"}}) for i in range(5)))
        outcome = [await place(b, name) for name in names]
        assert outcome == ["", "", "", "", "not enough capacity left for request gpu"]
        devices = [device for _, device in b.held()]
        assert devices[0] == devices[1] != devices[2] == devices[3]
        results = [
            c["status"]["allocation"]["devices"]["results"][0] for c in b.claims() if c["status"].get("allocation")
        ]
        assert all(r["consumedCapacity"] == {"memory": "30Gi"} and len(r["shareID"]) == 36 for r in results)


async def test_burst_of_shares_stays_within_capacity() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [SHARED_DEVICE])
        names = add(b, *(asks(f"c{i}", capacity={"requests": {"memory": "20Gi"}}) for i in range(8)))
        await b.settled()
        outcome = await asyncio.gather(*(b.bind(name, "n1") for name in names))
        assert outcome.count("") == 4
        assert len(b.held()) == 4


async def test_partitions_share_counters_and_keep_large_profiles_possible() -> None:
    """Two small partitions go into one half, so that the large profile still fits beside them."""
    devices = [
        mig("large-0", [0, 1], 40),
        mig("large-2", [2, 3], 40),
        *(mig(f"small-{i}", [i], 20) for i in range(4)),
        mig("whole", [0, 1, 2, 3], 80),
    ]
    counters = [{"name": "gpu-0", "counters": {f"memory-slice-{i}": {"value": "1"} for i in range(4)}}]
    profile = "device.attributes['d.example.com'].profile == '{}g'"
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, devices, counters)
        sizes = {"s1": 1, "s2": 1, "l1": 2, "w": 4}
        selectors = {name: [{"cel": {"expression": profile.format(size)}}] for name, size in sizes.items()}
        names = add(b, *(asks(name, selectors=selector) for name, selector in selectors.items()))
        outcome = [await place(b, name) for name in names]
        assert outcome == ["", "", "", "shared counters are used up for request gpu"]


async def test_taints_and_taint_rules() -> None:
    """NoSchedule excludes, None only informs, a rule taints from outside, a toleration helps."""
    async with berthing({"n1": "t4-4"}) as b:
        tainted = {"sick": "NoSchedule", "cough": "None"}
        devices = [{"name": name, "taints": [{"key": "xid", "effect": effect}]} for name, effect in tainted.items()]
        custom(b, [*devices, {"name": "well"}])
        add(b, *map(asks, "pqr"), asks("t", tolerations=[{"operator": "Exists"}]))
        assert await place(b, "p") == ""
        assert b.held()[-1][1] == "well"
        taint = {"key": "m", "effect": "NoSchedule"}
        rule = {
            "kind": "DeviceTaintRule",
            "metadata": {"name": "maintenance"},
            "spec": {"deviceSelector": {"driver": "d.example.com", "device": "cough"}, "taint": taint},
        }
        b.cluster.apply(rule)
        everything = {"taint": {"key": "m", "effect": "NoExecute"}}
        b.cluster.apply({**rule, "metadata": {"name": "no-selector"}, "spec": everything})
        assert await place(b, "q") == "matching devices are tainted for request gpu"
        b.cluster.api.registry.delete(RESOURCES["resource.k8s.io", "devicetaintrules"], ("", "maintenance"))
        assert await place(b, "r") == ""
        assert await place(b, "t") == ""


async def test_claim_on_a_node_that_no_longer_fits_is_given_back() -> None:
    """Allocated, reserved for no pod, pinned to a node that is not offered: deallocated in the background, then
    served."""
    async with berthing({"n1": "t4-4", "n2": "t4-4", "n3": "t4-4"}) as b:
        b.cluster.apply(claim("c"))
        b.cluster.apply(pod("p", "c"))
        on_n1 = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
        pinned = {"nodeSelectorTerms": [{"matchFields": [on_n1]}]}
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
        allocate(b, "c", devices={"results": [result]}, nodeSelector=pinned)
        await b.settled()
        reasons = (await b.filter("p", ["n2", "n3"]))["FailedAndUnresolvableNodes"]
        assert set(reasons.values()) == {"claim is allocated for other nodes"}
        await eventually(lambda: b.claims()[0]["status"].get("allocation") is None)
        await eventually(lambda: b.app.service.orphans.unsuitable == 1)
        await b.settled()
        assert (await b.filter("p", ["n2", "n3"]))["NodeNames"]


@pytest.mark.parametrize("writer", ["berth", ""], ids=["of Berth", "of another scheduler"])
async def test_an_allocation_of_berth_is_given_back_if_no_node_has_room_for_the_pods_other_claim(writer: str) -> None:
    """A process that ended between two claims of a pod left it. The pod fits on another node."""
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        b.cluster.occupy("n1", [0, 1, 2])
        for name in ("c", "d"):
            b.cluster.apply(claim(name))
        b.cluster.apply(pod("p", "c", "d"))
        allocated(b, "c", "gpu-3", "p", writer=writer)
        await b.settled()
        assert not (await b.filter("p"))["NodeNames"]
        orphans = b.app.service.orphans
        await eventually(lambda: not orphans.busy)
        assert orphans.unsuitable == bool(writer)
        await b.settled()
        assert (await b.filter("p"))["NodeNames"] == (["n2"] if writer else [])


async def test_an_allocation_of_berth_without_reservation_is_collected() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for name, notes in (("ours", {"berth.dev/allocator": "berth"}), ("foreign", {})):
            obj = claim(name)
            obj["metadata"]["annotations"] = notes
            b.cluster.apply(obj)
            result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": f"gpu-{len(notes)}"}
            allocate(b, name, devices={"results": [result]})
        await b.settled()
        now = [0.0]
        async with ApiClient(Credentials(b.api, None, lambda: None)) as client:
            orphans = OrphanCollector(
                b.app.service.cache,
                Writer(client, "test"),
                lambda: now[0],
                b.app.service.supervisor,
                lambda _: False,
                grace_seconds=60.0,
            )
            await orphans.sweep()
            now[0] = 59.0
            await orphans.sweep()
            early = orphans.busy
            assert not early, "the bind may still add the consumer"
            now[0] = 60.0
            await orphans.sweep()
            assert orphans.busy == 1, "the claim of another allocator is not even read"
            await eventually(lambda: orphans.without_consumer == 1)
        await eventually(lambda: len(b.held()) == 1)
        assert b.cluster.store["resourceclaims", ("default", "foreign")]["status"]["allocation"]


async def test_server_that_drops_a_field_is_not_trusted() -> None:
    """A share without its identifier would look exclusive: the allocation is released, the error says why."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [SHARED_DEVICE])
        add(b, asks("p"))

        def drop_shares(_: str, obj: dict) -> None:
            for result in ((obj.get("status", {}).get("allocation") or {}).get("devices") or {}).get("results", []):
                result.pop("shareID", None)

        drop_fields(b.cluster, drop_shares)
        assert "dropped share_id" in await place(b, "p")
        assert b.held() == []


async def test_claim_built_to_explode_is_given_up() -> None:
    """A search that gave up has another reason than one that found the request impossible."""
    async with berthing({"n1": "l40s-8-pix"}) as b:
        exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
        requests = [{"name": f"r{i}", "exactly": exactly} for i in range(8)]
        constraints = [{"requests": ["r6", "r7"], "matchAttribute": "gpu.nvidia.com/uuid"}]
        add(b, claimed("p", requests=requests, constraints=constraints))
        assert await place(b, "p") == "gave up searching: the claims allow too many combinations"


async def test_first_available_prefers_the_first_across_nodes() -> None:
    """A node with the preferred alternative ranks above one with the second."""
    async with berthing({"small": "t4-4", "large": "hgx-h100-8"}) as b:
        product = "device.attributes['gpu.nvidia.com'].productName.contains('{}')"
        one = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
        forms = [
            {**one, "name": n.lower(), "selectors": [{"cel": {"expression": product.format(n)}}]}
            for n in ("H100", "T4")
        ]
        for order, expected in (((0, 1), "large"), ((1, 0), "small")):
            name = f"p-{expected}"
            add(b, claimed(name, requests=[{"name": "gpu", "firstAvailable": [forms[i] for i in order]}]))
            await b.settled()
            assert (await b.filter(name))["NodeNames"][0] == expected


@pytest.mark.parametrize("labelled", [True, False])
async def test_admin_access_needs_the_label_and_occupies_nothing(labelled: bool) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        if labelled:
            space = b.cluster.store["namespaces", ("", "default")]
            b.cluster.store.put(
                "namespaces",
                ("", "default"),
                {**space, "metadata": {**space["metadata"], "labels": {"resource.kubernetes.io/admin-access": "true"}}},
            )
        add(b, claim("busy", 4))
        assert await place(b, "busy") == ""
        watch = claim("watch", adminAccess=True, allocationMode="All")
        del watch["spec"]["devices"]["requests"][0]["exactly"]["count"]
        add(b, watch)
        assert await place(b, "watch") == ("" if labelled else "namespace default does not allow adminAccess")
        assert len(b.held()) == (8 if labelled else 4)
