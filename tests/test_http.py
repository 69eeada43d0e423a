"""What is not our protocol gets 4xx and a sentence, and the service goes on."""

from __future__ import annotations

import pytest

from extender.web.metrics import READINGS
from tests.berthing import berthing

BAD = [
    ("/filter", b"{", 400, "not JSON"),
    ("/filter", b"[]", 400, "must be an object"),
    ("/filter", b"{}", 400, "Pod"),
    ("/filter", b'{"Pod": 3, "NodeNames": []}', 400, "Pod"),
    ("/filter", b'{"Pod": {"metadata": {"name": "p"}}}', 400, "neither NodeNames nor Nodes"),
    ("/filter", b'{"Pod": {"metadata": {"name": "p"}}, "NodeNames": [1]}', 400, "NodeNames[0]"),
    ("/filter", b'{"Pod": {"metadata": {"name": "p"}, "spec": {"resourceClaims": [3]}}, "NodeNames": []}', 400, "spec.resourceClaims[0]"),
    ("/prioritize", b"null", 400, "must be an object"),
    ("/bind", b'{"PodName": "p"}', 400, "PodNamespace"),
    ("/preempt", b'{"NodeNameToMetaVictims": 3}', 400, "NodeNameToMetaVictims"),
    ("/nothing", b"{}", 404, "Not Found"),
]


async def test_bad_requests_are_told_and_harm_nothing() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for path, body, status, words in BAD:
            reply = await b.client.post(path, content=body)
            assert reply.status_code == status, (path, body, reply.text)
            assert words in reply.text, (path, body, reply.text)
        assert (await b.client.get("/filter")).status_code == 405
        assert (await b.client.get("/readyz")).text == "ok"


async def test_huge_body_is_refused() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        reply = await b.client.post("/filter", content=b" " * (20 * 1024 * 1024))
        assert reply.status_code == 413 and "larger than" in reply.text
        assert (await b.client.get("/livez")).status_code == 200


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt"])
async def test_empty_body(verb: str) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        assert (await b.client.post(f"/{verb}")).status_code == 400


async def test_metrics_count_what_happened() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await b.client.post("/filter", content=b"{")
        b.app.service.collector.deallocated += 2
        text = (await b.client.get("/metrics")).text
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert {reading.name for reading in READINGS} <= samples.keys()
    assert (samples["berth_ready"], samples["berth_nodes"], samples["berth_claims_deallocated_total"]) == ("1.0", "1.0", "2.0")
    assert samples['berth_call_seconds_count{status="400",verb="filter"}'] == "1.0"
