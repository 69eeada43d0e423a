"""The rest of DRA, over real HTTP: extended resources, binding conditions, shares, taints, partitions, escape
routes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.cluster import ApiClient, Credentials, Writer
from extender.extension.orphans import OrphanCollector
from extender.model import Container
from extender.policy import Policy
from extender.sandbox.apiserver.registry import RESOURCES
from extender.scheduling.extended_resources import special_claim
from tests.eventually import eventually
from tests.running_berth import Serving, berthing, claim, pod

CLAIMS = RESOURCES["resource.k8s.io", "resourceclaims"]


def legacy(name: str, count: int = 1, **spec: Any) -> dict:
    resources = {"limits": {"nvidia.com/gpu": str(count)}, "requests": {"nvidia.com/gpu": str(count), "cpu": "1"}}
    return pod(name, containers=[{"name": "main", "image": "pause", "resources": resources}], **spec)


# -- extended resources -------------------------------------------------------------------------------------------


async def test_device_plugin_manifest_gets_a_claim() -> None:
    """nvidia.com/gpu: 2 on a node without the device plugin: claim, mapping in the pod's status, devices, Binding."""
    async with berthing({"n1": "a100-pcie-8-bridged"}) as b:
        b.cluster.apply(legacy("old", 2))
        await b.settled()
        assert (await b.filter("old"))["NodeNames"] == ["n1"]
        assert await b.bind("old", "n1") == ""
        (made,) = b.claims()
        assert made["metadata"]["name"].startswith("old-extended-resources-")
        assert made["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
        assert made["metadata"]["ownerReferences"][0]["uid"] == b.pod("old")["metadata"]["uid"]
        assert made["spec"]["devices"]["requests"][0]["name"] == "container-0-request-1"
        status = b.pod("old")["status"]["extendedResourceClaimStatus"]
        assert status == {
            "resourceClaimName": made["metadata"]["name"],
            "requestMappings": [
                {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-1"}
            ],
        }
        assert sorted(b.held()) in ([("n1", f"gpu-{i}"), ("n1", f"gpu-{i + 1}")] for i in (0, 2, 4, 6)), (
            "a bridged pair"
        )


async def test_node_with_device_plugin_needs_no_claim() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        node = b.cluster.store["nodes", ("", "n1")]
        b.cluster.store.put("nodes", ("", "n1"), {**node, "status": {"allocatable": {"nvidia.com/gpu": "4"}}})
        b.cluster.apply(legacy("old"))
        await b.settled()
        assert (await b.filter("old"))["NodeNames"] == ["n1"]
        assert await b.bind("old", "n1") == ""
        assert b.claims() == []


async def test_failed_bind_removes_the_special_claim() -> None:
    from extender.sandbox.apiserver.status_errors import ApiError

    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(legacy("old"))
        await b.settled()
        await b.filter("old")

        async def refuse(method: str, path: str) -> ApiError | None:
            return ApiError(403, "Forbidden", "no") if path.endswith("/binding") else None

        b.cluster.api.intercept = refuse
        assert "no" in await b.bind("old", "n1")
        assert b.claims() == []
        b.cluster.api.intercept = None
        await b.settled()
        assert (await b.filter("old"))["NodeNames"] == ["n1"]
        assert await b.bind("old", "n1") == ""


async def test_empty_special_claim_of_an_earlier_attempt_stops_nothing() -> None:
    """A crash after the claim was created and before it was allocated: it holds nothing and goes with its pod. An
    allocated one is removed first (tests/test_tenant.py)."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(legacy("old"))
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "old",
            "uid": b.pod("old")["metadata"]["uid"],
            "controller": True,
        }
        left = claim("old-extended-resources-abcde")
        notes = {"resource.kubernetes.io/extended-resource-claim": "true"}
        finalizers = ["resource.kubernetes.io/delete-protection"]
        left["metadata"] |= {"annotations": notes, "ownerReferences": [owner], "finalizers": finalizers}
        b.cluster.apply(left)
        await b.settled()
        assert await b.bind("old", (await b.filter("old"))["NodeNames"][0]) == ""
        assert len(b.held()) == 1
        assert len(b.claims()) == 2


async def test_implicit_name() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        resources = {"requests": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}}
        b.cluster.apply(pod("p", containers=[{"name": "m", "image": "pause", "resources": resources}]))
        await b.settled()
        assert await b.bind("p", (await b.filter("p"))["NodeNames"][0]) == ""
        assert len(b.held()) == 1


def test_init_containers_reuse_later_devices() -> None:
    """Sidecars and regular containers have requests of their own; init containers only what is missing, the largest
    once."""
    gpu = "nvidia.com/gpu"
    containers = (
        Container("init-1", ((gpu, 3),), init=True),
        Container("side", ((gpu, 1),), init=True, sidecar=True),
        Container("init-2", ((gpu, 4),), init=True),
        Container("main", (("cpu", 0), (gpu, 1))),
    )
    spec, mappings = special_claim(containers, {gpu: "gpus"})
    assert [(r.name, r.alternatives[0].count) for r in spec.requests] == [
        ("container-1-request-0", 1),
        ("container-2-request-0", 3),
        ("container-3-request-1", 1),
    ]
    assert [(m.container, m.request) for m in mappings] == [
        ("side", "container-1-request-0"),
        ("main", "container-3-request-1"),
        ("init-1", "container-1-request-0"),
        ("init-1", "container-3-request-1"),
        ("init-1", "container-2-request-0"),
        ("init-2", "container-3-request-1"),
        ("init-2", "container-2-request-0"),
    ]


# -- devices of other drivers ---------------------------------------------------------------------------------------


def custom(
    b: Serving,
    devices: list[dict],
    counters: list[dict] | None = None,
    driver: str = "d.example.com",
    node: str = "n1",
) -> None:
    count = 2 if counters else 1
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    b.cluster.apply(
        {
            "kind": "DeviceClass",
            "metadata": {"name": driver},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]},
        }
    )
    b.cluster.apply(
        {
            "kind": "ResourceSlice",
            "metadata": {"name": f"{driver}-{node}-0"},
            "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
        }
    )
    if counters:
        b.cluster.apply(
            {
                "kind": "ResourceSlice",
                "metadata": {"name": f"{driver}-{node}-1"},
                "spec": {"driver": driver, "nodeName": node, "pool": pool, "sharedCounters": counters},
            }
        )


def asks(name: str, **exactly: Any) -> dict:
    return claim(name, **{"deviceClassName": "d.example.com", **exactly})


async def place(b: Serving, name: str) -> str:
    """'' when the pod is bound, else the reason or error."""
    await b.settled()
    answer = await b.filter(name)
    if not answer["NodeNames"]:
        return next(iter(answer["FailedAndUnresolvableNodes"].values()), answer["Error"])
    return await b.bind(name, answer["NodeNames"][0])


def report(b: Serving, name: str, condition: str) -> None:
    """The driver sets a condition of the claim's only device."""
    found = b.cluster.store["resourceclaims", ("default", name)]
    (result,) = found["status"]["allocation"]["devices"]["results"]
    device = {key: result[key] for key in ("driver", "pool", "device")}
    status = {"devices": [{**device, "conditions": [{"type": condition, "status": "True"}]}]}
    b.cluster.api.registry.patch(CLAIMS, ("default", name), {"status": status}, "status", strategic=False)


CONDITIONAL = {"name": "fabric-0", "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("Attached", ""),
        ("Broken", "binding conditions of claim default/p failed"),
    ],
)
async def test_a_binding_condition_is_seen_when_it_changes(condition: str, answer: str) -> None:
    """The bind waits for the driver, and ends with the event that shows its condition."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        b.cluster.apply(pod("p", "p"))
        bind = asyncio.create_task(place(b, "p"))
        await eventually(lambda: b.held() or bind.done())
        assert b.node_of("p") == ""
        assert not bind.done()
        report(b, "p", condition)
        assert await bind == answer
        assert (b.node_of("p"), len(b.held())) == (("n1", 1) if not answer else ("", 0))


async def test_pods_that_share_a_claim_with_failed_conditions_give_it_up_together() -> None:
    """The last of them deallocates it."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("c"))
        names = [f"p{i}" for i in range(6)]
        for name in names:
            b.cluster.apply(pod(name, "c"))
        await b.settled()
        for name in names:
            assert (await b.filter(name))["NodeNames"] == ["n1"]
        binds = [asyncio.create_task(b.bind(name, "n1")) for name in names]
        await eventually(lambda: len(b.claims()[0]["status"].get("reservedFor") or ()) == len(names))
        report(b, "c", "Broken")
        assert set(await asyncio.gather(*binds)) == {"binding conditions of claim default/c failed"}
        assert not b.held()
        assert not b.claims()[0]["status"].get("reservedFor")


@pytest.mark.parametrize(("writer", "held"), [("", 0), ("berth-of-another-process", 1)])
async def test_an_allocation_that_was_found_and_failed_is_freed_unless_another_process_goes_on_with_it(
    writer: str, held: int
) -> None:
    """The in-tree plugin allocated it before; or another replica takes it over while the bind looks at it."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        uid = b.cluster.apply(pod("p", "p"))["metadata"]["uid"]
        result = {"request": "gpu", "driver": "d.example.com", "pool": "n1", "device": "fabric-0"}
        conditions = {key: CONDITIONAL[key] for key in ("bindingConditions", "bindingFailureConditions")}
        entry = {"resource": "pods", "name": "p", "uid": uid}
        status = {"allocation": {"devices": {"results": [{**result, **conditions}]}}, "reservedFor": [entry]}
        registry = b.cluster.api.registry
        registry.patch(CLAIMS, ("default", "p"), {"status": status}, "status", strategic=False)
        report(b, "p", "Broken")
        reads = 0

        async def take_over(method: str, path: str) -> None:
            nonlocal reads
            if method == "GET" and path.endswith("/resourceclaims/p"):
                reads += 1
                if reads == 2 and writer:  # the first read is that of the bind, the second that of its undo
                    mark = {"metadata": {"annotations": {"berth.dev/allocator": writer}}}
                    registry.patch(CLAIMS, ("default", "p"), mark, "", strategic=False)

        b.cluster.api.intercept = take_over
        assert await place(b, "p") == "binding conditions of claim default/p failed"
        assert len(b.held()) == held
        assert reads >= 2


async def test_drivers_have_the_binding_timeout_of_the_policy() -> None:
    async with berthing({"n1": "t4-4"}, Policy(binding_timeout_seconds=1)) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        b.cluster.apply(pod("p", "p"))
        assert await place(b, "p") == "binding conditions of claim default/p timed out"
        assert b.held() == []


async def test_one_call_waits_for_drivers_as_long_as_the_policy_says() -> None:
    """After that the allocation stays, and the scheduler's next call goes on with it."""
    async with berthing({"n1": "t4-4"}, Policy(binding_wait_seconds=1)) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        b.cluster.apply(pod("p", "p"))
        assert await place(b, "p") == "waiting for binding conditions of claim default/p"
        assert len(b.held()) == 1
        report(b, "p", "Attached")
        assert await place(b, "p") == ""
        assert b.node_of("p") == "n1"


async def test_a_process_that_ends_leaves_the_wait_for_drivers_to_the_next() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        b.cluster.apply(pod("p", "p"))
        bind = asyncio.create_task(place(b, "p"))
        await eventually(lambda: b.held() or bind.done())
        await b.app.service.binder.drain(30)
        assert await bind == "waiting for binding conditions of claim default/p"
        assert len(b.held()) == 1, "the allocation stays for the scheduler's next try"


async def test_shares_pack_and_never_exceed() -> None:
    """Shares go onto the device that is shared already, and stop where its memory ends."""
    device = {
        "allowMultipleAllocations": True,
        "capacity": {
            "memory": {
                "value": "80Gi",
                "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
            }
        },
    }
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [{"name": "a", **device}, {"name": "b", **device}])
        for i in range(5):
            b.cluster.apply(asks(f"c{i}", capacity={"requests": {"memory": "30Gi"}}))
            b.cluster.apply(pod(f"p{i}", f"c{i}"))
        outcome = [await place(b, f"p{i}") for i in range(5)]
        assert outcome == ["", "", "", "", "not enough capacity left for request gpu"]
        devices = [device for _, device in b.held()]
        assert devices[0] == devices[1] != devices[2] == devices[3]
        results = [
            c["status"]["allocation"]["devices"]["results"][0] for c in b.claims() if c["status"].get("allocation")
        ]
        assert all(r["consumedCapacity"] == {"memory": "30Gi"} and len(r["shareID"]) == 36 for r in results)


async def test_burst_of_shares_stays_within_capacity() -> None:
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [device])
        for i in range(8):
            b.cluster.apply(asks(f"c{i}", capacity={"requests": {"memory": "20Gi"}}))
            b.cluster.apply(pod(f"p{i}", f"c{i}"))
        await b.settled()
        outcome = await asyncio.gather(*(b.bind(f"p{i}", "n1") for i in range(8)))
        assert outcome.count("") == 4
        assert len(b.held()) == 4


def mig(name: str, slices: list[int], memory: int) -> dict:
    used = {f"memory-slice-{i}": {"value": "1"} for i in slices}
    return {
        "name": name,
        "attributes": {"profile": {"string": f"{len(slices)}g"}},
        "capacity": {"memory": {"value": f"{memory}Gi"}},
        "consumesCounters": [{"counterSet": "gpu-0", "counters": used}],
    }


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
        for name, size in (("s1", 1), ("s2", 1), ("l1", 2), ("w", 4)):
            b.cluster.apply(asks(name, selectors=[{"cel": {"expression": profile.format(size)}}]))
            b.cluster.apply(pod(name, name))
        assert [await place(b, name) for name in ("s1", "s2", "l1", "w")] == [
            "",
            "",
            "",
            "shared counters are used up for request gpu",
        ]


async def test_taints_and_taint_rules() -> None:
    """NoSchedule excludes, None only informs, a rule taints from outside, a toleration helps."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(
            b,
            [
                {"name": "sick", "taints": [{"key": "xid", "effect": "NoSchedule"}]},
                {"name": "cough", "taints": [{"key": "xid", "effect": "None"}]},
                {"name": "well"},
            ],
        )
        for name in ("p", "q", "r"):
            b.cluster.apply(asks(name))
            b.cluster.apply(pod(name, name))
        b.cluster.apply(asks("t", tolerations=[{"operator": "Exists"}]))
        b.cluster.apply(pod("t", "t"))
        assert await place(b, "p") == ""
        assert b.held()[-1][1] == "well"
        rule = {
            "kind": "DeviceTaintRule",
            "metadata": {"name": "maintenance"},
            "spec": {
                "deviceSelector": {"driver": "d.example.com", "device": "cough"},
                "taint": {"key": "m", "effect": "NoSchedule"},
            },
        }
        b.cluster.apply(rule)
        b.cluster.apply(
            {**rule, "metadata": {"name": "no-selector"}, "spec": {"taint": {"key": "m", "effect": "NoExecute"}}}
        )
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
        pinned = {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
        }
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
        b.cluster.api.registry.patch(
            CLAIMS,
            ("default", "c"),
            {"status": {"allocation": {"devices": {"results": [result]}, "nodeSelector": pinned}}},
            "status",
            strategic=False,
        )
        await b.settled()
        reasons = (await b.filter("p", ["n2", "n3"]))["FailedAndUnresolvableNodes"]
        assert set(reasons.values()) == {"claim is allocated for other nodes"}
        await eventually(lambda: b.claims()[0]["status"].get("allocation") is None)
        assert b.app.service.orphans.deallocated == 1
        await b.settled()
        assert (await b.filter("p", ["n2", "n3"]))["NodeNames"]


async def test_allocation_of_ours_that_nobody_reserves_is_collected() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for name, notes in (("ours", {"berth.dev/allocator": "berth"}), ("foreign", {})):
            obj = claim(name)
            obj["metadata"]["annotations"] = notes
            b.cluster.apply(obj)
            result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": f"gpu-{len(notes)}"}
            b.cluster.api.registry.patch(
                CLAIMS,
                ("default", name),
                {"status": {"allocation": {"devices": {"results": [result]}}}},
                "status",
                strategic=False,
            )
        await b.settled()
        now = [0.0]
        async with ApiClient(Credentials(b.api, None, lambda: None)) as client:
            orphans = OrphanCollector(
                b.app.service.cache,
                Writer(client, "test"),
                lambda: now[0],
                b.app.service.supervisor,
                grace_seconds=60.0,
            )
            orphans.sweep()
            now[0] = 60.0
            orphans.sweep()
            await eventually(lambda: orphans.collected == 1)
        await eventually(lambda: len(b.held()) == 1)
        assert b.cluster.store["resourceclaims", ("default", "foreign")]["status"]["allocation"]


async def test_server_that_drops_a_field_is_not_trusted() -> None:
    """A share without its identifier would look exclusive: the allocation is taken back, the error says why."""
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [device])
        b.cluster.apply(asks("c"))
        b.cluster.apply(pod("p", "c"))

        def drop_shares(_: str, obj: dict) -> None:
            for result in ((obj.get("status", {}).get("allocation") or {}).get("devices") or {}).get("results", []):
                result.pop("shareID", None)

        b.cluster.api.registry.prune = drop_shares
        assert "dropped share_id" in await place(b, "p")
        assert b.held() == []


async def test_claim_built_to_explode_is_given_up() -> None:
    """Gave up is not impossible, and the reason says which."""
    async with berthing({"n1": "l40s-8-pix"}) as b:
        requests = [
            {
                "name": f"r{i}",
                "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1},
            }
            for i in range(8)
        ]
        spec = {
            "devices": {
                "requests": requests,
                "constraints": [{"requests": ["r6", "r7"], "matchAttribute": "gpu.nvidia.com/uuid"}],
            }
        }
        b.cluster.apply({"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default"}, "spec": spec})
        b.cluster.apply(pod("p", "c"))
        assert await place(b, "p") == "gave up searching: the claims allow too many combinations"


async def test_first_available_prefers_the_first_across_nodes() -> None:
    """A node with the preferred alternative ranks above one with the second."""
    async with berthing({"small": "t4-4", "large": "hgx-h100-8"}) as b:
        product = "device.attributes['gpu.nvidia.com'].productName.contains('{}')"
        forms = [
            {
                "name": n.lower(),
                "deviceClassName": "gpu.nvidia.com",
                "allocationMode": "ExactCount",
                "count": 1,
                "selectors": [{"cel": {"expression": product.format(n)}}],
            }
            for n in ("H100", "T4")
        ]
        for order, expected in (((0, 1), "large"), ((1, 0), "small")):
            name = f"p-{expected}"
            b.cluster.apply(
                {
                    "kind": "ResourceClaim",
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": [forms[i] for i in order]}]}},
                }
            )
            b.cluster.apply(pod(name, name))
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
        b.cluster.apply(claim("busy", 4))
        b.cluster.apply(pod("busy", "busy"))
        assert await place(b, "busy") == ""
        watch = claim("watch", adminAccess=True, allocationMode="All")
        del watch["spec"]["devices"]["requests"][0]["exactly"]["count"]
        b.cluster.apply(watch)
        b.cluster.apply(pod("watch", "watch"))
        assert await place(b, "watch") == ("" if labelled else "namespace default does not allow adminAccess")
        assert len(b.held()) == (8 if labelled else 4)


async def test_a_pod_with_very_many_extended_resources_is_refused_at_once() -> None:
    """Each of many short init containers may use each of many long-lived ones: that is a product."""
    async with berthing({"n1": "t4-4"}) as b:
        many = {"limits": {"nvidia.com/gpu": "1000000000"}, "requests": {"nvidia.com/gpu": "1000000000"}}
        one = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
        spec: dict[str, Any] = {
            "initContainers": [{"name": f"i{i}", "image": "pause", "resources": many} for i in range(500)],
            "containers": [{"name": f"c{i}", "image": "pause", "resources": one} for i in range(500)],
        }
        b.cluster.apply(pod("p", **spec))
        await b.settled()
        reply = await b.filter("p")
        assert "1000 requests for extended resources, more than 64" in next(
            iter(reply["FailedAndUnresolvableNodes"].values())
        )
