"""The config entries that Berth writes to an allocation: their form, and how many the API server stores."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cli.allocate_command import answer
from tests.worlds.running_berth import berthing, claim, pod

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "allocation_config.yaml").read_text())


def entries(owner: str, count: int) -> list[Json]:
    return [{"opaque": {"driver": "d", "parameters": {"of": owner, "number": i}}} for i in range(count)]


def devices_of(case: Json) -> Json:
    """spec.devices of the claim."""
    requests: list[Json] = []
    for name, form in case["requests"].items():
        if isinstance(form, str):
            requests.append({"name": name, "exactly": {"deviceClassName": form}})
        else:
            alternatives = [{"name": sub, "deviceClassName": class_} for sub, class_ in form.items()]
            requests.append({"name": name, "firstAvailable": alternatives})
    named = [{"requests": names} for names in case["config"] for _ in range(case.get("repeat", 1))]
    config = [{**of, **entry} for of, entry in zip(named, entries("claim", len(named)), strict=True)]
    return {"requests": requests, "config": config}


def classes_of(case: Json) -> list[Json]:
    return [{"metadata": {"name": n}, "spec": {"config": entries(n, count)}} for n, count in case["classes"].items()]


def allocated(case: Json, *gates: str) -> Json:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": "n", "pool": pool, "devices": [{"name": f"x{i}"} for i in range(8)]}
    world = {
        "name": case["name"],
        "features": ["DRAPrioritizedList", *gates],
        "node": {"metadata": {"name": "n"}},
        "resourceSlices": [{"metadata": {"name": "s"}, "spec": spec}],
        "deviceClasses": classes_of(case),
        "claims": [{"metadata": {"namespace": "x", "name": "c", "uid": "c"}, "spec": {"devices": devices_of(case)}}],
    }
    found = answer(world, "preferred")
    assert found == {**answer(world, "in-tree"), "allocations": found["allocations"]}
    return found


def written(found: Json) -> list[list[str]]:
    """The owner of each config entry and the requests that it names."""
    config = found["allocations"][0]["devices"].get("config", [])
    return [[entry["opaque"]["parameters"]["of"], *entry.get("requests", [])] for entry in config]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_form_and_number(case: Json) -> None:
    found = allocated(case, "1.37")
    if "excess" in case:
        assert found["allocations"] is None
        assert f"would have {case['excess']} config entries" in found["error"]
        return
    assert found["error"] is None
    assert len(written(found)) <= 64
    assert [entry for entry, _ in groupby(written(found))] == case["expect"]
    if "before" in case:
        assert written(allocated(case)) == case["before"]


async def test_a_claim_with_nine_entries_for_eight_requests_is_bound() -> None:
    """Each entry was written once for each request: 72, of which the API server stores 64."""
    async with berthing({"n1": "hgx-h100-8"}) as b:
        case = next(case for case in CASES if case.get("repeat") == 9)
        made = claim("c")
        made["spec"]["devices"] = devices_of({**case, "requests": dict.fromkeys(case["requests"], "gpu.nvidia.com")})
        await b.create(made, pod("p", "c"))
        assert (await b.filter("p"))["NodeNames"] == ["n1"]
        assert await b.bind("p", "n1") == ""
        stored = b.cluster.store.get("resourceclaims", ("default", "c"))
        assert stored is not None
        config = stored["status"]["allocation"]["devices"]["config"]
        assert [entry.get("requests") for entry in config] == [None] * 9


async def test_filter_and_explain_refuse_more_entries_than_the_api_server_stores() -> None:
    async with berthing({"n1": "l40s-8-pix"}) as b:
        case = next(case for case in CASES if case.get("excess") == 96)
        for class_ in classes_of(case):
            b.cluster.apply({"kind": "DeviceClass", **class_})
        made = claim("c")
        made["spec"]["devices"] = devices_of(case)
        await b.create(made, pod("p", "c"))
        refused = (await b.filter("p"))["FailedAndUnresolvableNodes"]["n1"]
        assert "its allocation would have 96 config entries" in refused
        explanation = (await b.client.get("/v1/explain/default/p")).json()
        assert "its allocation would have 96 config entries" in explanation["sentence"]
