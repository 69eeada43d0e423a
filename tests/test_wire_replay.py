"""Every body that three real kube-schedulers sent gets an answer they would accept."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from extender.sandbox.cluster import Cluster
from extender.sandbox.machines import carried_machines
from extender.serve import application
from tests.shared import SHARED, needs
from tests.waiting import eventually

FILES = sorted((SHARED / "wire").glob("*.jsonl")) if (SHARED / "wire").exists() else []


def bodies() -> Iterator[object]:
    for path in FILES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            entry = json.loads(line)
            yield pytest.param(entry["verb"], entry["body"], id=f"{path.stem}:{number}:{entry['verb']}")


@needs("wire")
@pytest.mark.parametrize(("verb", "body"), list(bodies()) or [pytest.param("", "", id="absent")])
async def test_replay(verb: str, body: str) -> None:
    cluster = Cluster()
    for name in ("gpu-worker-1", "gpu-worker-2", "gpu-worker-3"):
        cluster.add_node(name, carried_machines()["t4-4"])
    sent = json.loads(body)
    async with cluster.serving() as url, application(url) as (app, not_ready):
        await eventually(lambda: not not_ready(), not_ready)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://berth") as client:
            reply = await client.post(f"/{verb}", content=body)
    assert reply.status_code == 200
    check(verb, sent, reply.json())


def check(verb: str, sent: dict, answer: object) -> None:
    if verb == "filter":
        check_filter(sent, answer)
    elif verb == "prioritize":
        hosts = sent["NodeNames"] or [n["metadata"]["name"] for n in sent["Nodes"]["items"]]
        assert [entry["Host"] for entry in answer] == hosts
        assert all(type(entry["Score"]) is int and 0 <= entry["Score"] <= 10 for entry in answer)
    elif verb == "bind":
        assert set(answer) == {"Error"}
    elif verb == "preempt":
        assert answer["NodeNameToMetaVictims"] == sent["NodeNameToMetaVictims"]


def check_filter(sent: dict, answer: dict) -> None:
    whole = sent["NodeNames"] is None
    names = [n["metadata"]["name"] for n in sent["Nodes"]["items"]] if whole else sent["NodeNames"]
    if answer["Error"]:
        assert "not known yet" in answer["Error"], "the claims of the recording do not exist in this cluster"
        return
    if whole:
        assert answer["NodeNames"] is None
        kept = [n["metadata"]["name"] for n in answer["Nodes"]["items"]]
        assert all(node in sent["Nodes"]["items"] for node in answer["Nodes"]["items"])
    else:
        assert answer["Nodes"] is None
        kept = answer["NodeNames"]
    assert set(kept) <= set(names)
    assert not set(kept) & set(answer["FailedAndUnresolvableNodes"])
    if not sent["Pod"]["spec"].get("resourceClaims"):
        extended = "nvidia.com/gpu" in json.dumps(sent["Pod"]["spec"]["containers"])
        assert set(kept) == set(names) if extended else kept == names
