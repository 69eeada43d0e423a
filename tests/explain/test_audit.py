"""The auditor reports each inconsistency once and changes no object."""

from __future__ import annotations

import copy

import pytest

from tests.worlds.running_berth import Berthing, berthing, claim, pod


def allocated(name: str, *devices: str, node: str = "n1", reserved: bool = True, consumed: str = "") -> dict:
    made = claim(name)
    results = [
        {
            "request": "gpu",
            "driver": "gpu.nvidia.com",
            "pool": node,
            "device": d,
            **({"shareID": f"{name}-{d}", "consumedCapacity": {"memory": consumed}} if consumed else {}),
        }
        for d in devices
    ]
    made["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": name}] if reserved else [],
    }
    made["metadata"]["uid"] = f"uid-{name}"
    return made


async def audited(b: Berthing, *claims: dict) -> list[str]:
    for one in claims:
        b.cluster.store.put("resourceclaims", ("default", one["metadata"]["name"]), one)
    await b.settled()
    await b.console.auditor.round()
    assert b.console.auditor.findings == [], "a fault of one round may be ending"
    await b.console.auditor.round()
    return [f["check"] for f in (await b.client.get("/v1/audit")).json()]


@pytest.mark.parametrize(
    ("claims", "checks"),
    [
        ([allocated("a", "gpu-0"), allocated("b", "gpu-1")], []),
        ([allocated("a", "gpu-0"), allocated("b", "gpu-0")], ["double"]),
        ([allocated("a", "gpu-0", consumed="1Gi"), allocated("b", "gpu-0")], ["double"]),
        ([allocated("a", "gpu-0", consumed="10Gi"), allocated("b", "gpu-0", consumed="10Gi")], ["overdrawn-capacity"]),
        ([allocated("a", "gpu-0", consumed="5Gi"), allocated("b", "gpu-0", consumed="5Gi")], []),
        ([allocated("a", "gpu-77")], ["vanished"]),
        ([allocated("a", "gpu-0", reserved=False)], ["unreserved"]),
    ],
)
async def test_findings(claims: list[dict], checks: list[str]) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        assert await audited(b, *copy.deepcopy(claims)) == checks


async def test_a_round_writes_few_events() -> None:
    """A driver that published nothing for a minute once caused an Event for each allocated device, all in one burst."""
    async with berthing({"n1": "t4-4"}) as b:
        await audited(b, *(allocated(f"c{number:02}", "gpu-0", reserved=False) for number in range(60)))

        def written() -> int:
            return len(b.cluster.store.all("events"))

        first = written()
        await b.console.auditor.round()
        assert first < written(), "the others follow"
        for _ in range(3):
            await b.console.auditor.round()
        assert written() == 120, "each claim gets one about the device that all have, and one about itself"
    assert first == 60 + 49, "one finding is about all claims"


async def test_each_claim_gets_one_event_and_is_not_written() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await audited(b, allocated("a", "gpu-0"), allocated("b", "gpu-0"))
        for _ in range(3):
            await b.console.auditor.round()
        events = b.cluster.store.all("events")
        assert sorted(e["regarding"]["name"] for e in events) == ["a", "b"]
        assert all(e["reason"] == "AuditFinding" for e in events)
        assert await b.metrics("berth_audit_double 1.0")
        assert all(len(c["status"]["allocation"]["devices"]["results"]) == 1 for c in b.claims())


async def test_a_cache_that_went_wrong_is_noticed() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await b.create(claim("c"), pod("p", "c"))
        node = (await b.filter("p"))["NodeNames"][0]
        assert await b.bind("p", node) == ""
        await b.settled()
        cache = b.app.service.cache
        key, known = next(iter(cache.store.claims.items()))
        from dataclasses import replace

        cache.apply_claim(key, replace(known, allocation=None))
        await b.console.auditor.round()
        assert b.console.auditor.differing == 1


async def test_reading_the_findings_changes_nothing() -> None:
    """GET shows the findings of the last rounds: it starts no round, writes no Event and lists no claims."""
    async with berthing({"n1": "t4-4"}) as b:
        for one in (allocated("a", "gpu-0"), allocated("b", "gpu-0")):
            b.cluster.store.put("resourceclaims", ("default", one["metadata"]["name"]), one)
        await b.settled()
        requests = dict(b.cluster.api.requests)
        for _ in range(3):
            assert (await b.client.get("/v1/audit")).json() == []
        assert b.cluster.api.requests == requests
        assert b.console.auditor.rounds == 0
