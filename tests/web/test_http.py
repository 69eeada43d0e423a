"""A request outside the protocol gets 4xx and a sentence, and the service continues."""

from __future__ import annotations

from itertools import count

from prometheus_client.parser import text_string_to_metric_families

from extender.explain.fleet_rows import FleetStats
from extender.web.console.console_metrics import METRICS as OF_CONSOLE
from extender.web.metrics import GAUGE, HISTOGRAM, SUMMARY, MetricSource, Scrapes
from extender.web.serve_metrics import METRICS as OF_SERVE
from tests.worlds.running_berth import berthing, claim, pod

BAD = [
    ("/filter", b"{", 400, "not JSON"),
    ("/filter", b"[]", 400, "must be an object"),
    ("/filter", b"{}", 400, "Pod"),
    ("/filter", b'{"Pod": 3, "NodeNames": []}', 400, "Pod"),
    ("/filter", b'{"Pod": {"metadata": {"name": "p"}}}', 400, "neither NodeNames nor Nodes"),
    ("/filter", b'{"Pod": {"metadata": {"name": "p"}}, "NodeNames": [1]}', 400, "NodeNames[0]"),
    (
        "/filter",
        b'{"Pod": {"metadata": {"name": "p"}, "spec": {"resourceClaims": [3]}}, "NodeNames": []}',
        400,
        "spec.resourceClaims[0]",
    ),
    ("/prioritize", b"null", 400, "must be an object"),
    ("/bind", b'{"PodName": "p"}', 400, "PodNamespace"),
    # the name would become a part of a path of the API
    ("/bind", b'{"PodName": "../x", "PodNamespace": "a", "PodUID": "u", "Node": "n1"}', 400, "PodName: '../x'"),
    ("/bind", b'{"PodName": "p", "PodNamespace": "a/pods/p?x", "PodUID": "u", "Node": "n1"}', 400, "PodNamespace: '"),
    ("/preempt", b'{"NodeNameToMetaVictims": 3}', 400, "NodeNameToMetaVictims"),
    *((f"/{verb}", b"", 400, "not JSON") for verb in ("filter", "prioritize", "bind", "preempt")),
    ("/nothing", b"{}", 404, "no such path"),
]


def test_a_text_of_metrics_answers_all_requests_of_a_second() -> None:
    """Attack: slow filter requests with a flood of requests to the probes' address."""
    now, readings = [0.0], count(1)
    scrapes = Scrapes((MetricSource("x", GAUGE, "Readings", lambda _: float(next(readings))),), None, lambda: now[0])
    assert [scrapes.answer().body for _ in range(3)] == [b"# HELP x Readings\n# TYPE x gauge\nx 1.0\n"] * 3
    now[0] += 1.0
    assert scrapes.answer().body.endswith(b"\nx 2.0\n")


async def test_bad_requests_get_an_error_and_serve_continues() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for path, body, status, words in BAD:
            reply = await b.client.post(path, content=body)
            assert reply.status_code == status, (path, body, reply.text)
            assert words in reply.text, (path, body, reply.text)
        assert (await b.client.get("/filter")).status_code == 405
        assert (await b.client.get("/readyz")).text == "ok"


async def test_huge_body_is_refused() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for path, size in (("/filter", 20), ("/v1/explain", 5)):
            reply = await b.client.post(path, content=b" " * (size * 1024 * 1024))
            assert reply.status_code == 413
            assert "larger than" in reply.text
        assert (await b.client.get("/livez")).status_code == 200


def samples_of(text: str) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in text.strip().split("\n") if not line.startswith("#"))


def types_of(text: str) -> dict[str, str]:
    return {family.name: family.type for family in text_string_to_metric_families(text)}


async def test_metrics_count_events() -> None:
    """The metrics of serve cover its calls, those of the console the fleet."""
    async with berthing({"n1": "dgx1-v100", "n2": "t4-4"}) as b:
        await b.client.post("/filter", content=b"{")
        b.app.service.orphans.unsuitable += 2
        for name, count in (("pair", 2), ("never", 20)):
            b.cluster.apply(claim(name, count))
            b.cluster.apply(pod(name, name, annotations={"berth.dev/topology": "preferred"}))
        await b.settled()
        assert (await b.filter("never"))["NodeNames"] == []
        node = (await b.filter("pair"))["NodeNames"][0]
        assert node == "n1"
        assert await b.bind("pair", node) == ""
        await b.settled()
        b.console.fleet_sampler.sample()
        hostile = 'GPU\u2028 "x"\n\\ 7'  # the author of a slice chooses the product's name
        b.console.fleet_sampler.stats[hostile] = FleetStats(gpus=3)
        await b.metrics("berth_bandwidth_ratio_count 1.0")
        serve, console = [(await b.client.get(path)).text for path in ("/metrics", "/console/metrics")]
        b.app.service.orphans.unsuitable += 1
        again = await b.metrics("berth_claims_deallocated_total 3.0")
    for text, readings in ((serve, OF_SERVE), (console, OF_CONSOLE)):
        names = {name.partition("{")[0] for name in samples_of(text)}
        missing = {r.name + ("_count" if r.family in (SUMMARY, HISTOGRAM) else "") for r in readings} - names
        assert missing <= EMPTY, "no sample: a counter's name ends in _total; EMPTY has metrics without a first value"
        assert set(types_of(text)) == {r.name.removesuffix("_total") for r in readings}
        assert not any(word in text for word in ("default/", "node=", "pod="))
    assert types_of(again) == types_of(serve)
    check_serve(serve)
    families = {family.name: family for family in text_string_to_metric_families(console)}
    assert {s.labels["product"]: s.value for s in families["berth_gpus"].samples}[hostile] == 3
    check_console(samples_of(console))


# They have labels, and no value before the first fault or, in one process with serve, before the first request.
EMPTY = {"berth_bind_failures_total", "berth_gangs_waiting", "berth_gangs_not_planned_total"}


def check_serve(text: str) -> None:
    families = {family.name: family for family in text_string_to_metric_families(text)}
    calls = [
        s
        for s in families["berth_call_seconds"].samples
        if s.labels["verb"] == "filter" and s.labels["status"] == "200"
    ]
    assert calls[0].labels["le"] == "0.0005"
    assert calls[-3].labels["le"] == "+Inf"
    assert (calls[-3].value, calls[-2].name, calls[-2].value, calls[-1].name) == (
        2,
        "berth_call_seconds_count",
        2,
        "berth_call_seconds_sum",
    )
    assert sorted(s.value for s in calls[:-2]) == [s.value for s in calls[:-2]]
    assert calls[-1].value > 0
    samples = samples_of(text)
    assert (samples["berth_ready"], samples["berth_nodes"], samples["berth_claims_deallocated_total"]) == (
        "1.0",
        "2.0",
        "2.0",
    )
    assert samples['berth_call_seconds_count{status="400",verb="filter"}'] == "1.0"
    assert samples['berth_refusals_total{code="TOO_FEW"}'] == "1.0"
    assert samples["berth_fence_wait_seconds_count"] == "1.0"
    assert samples["berth_evaluations_total"] != "0.0"
    assert float(samples['berth_api_requests_total{method="PATCH",status="200"}']) >= 2
    assert float(samples['berth_watch_silence_seconds{kind="resourceclaims"}']) >= 0


def check_console(samples: dict[str, str]) -> None:
    v100 = '{product="Tesla V100-SXM2-16GB"}'
    assert (samples["berth_gpus" + v100], samples["berth_gpus_free" + v100]) == ("8.0", "6.0")
    assert samples["berth_largest_free_nvlink_set" + v100] == "6.0"
    assert 0 <= float(samples["berth_gpus_stranded" + v100]) <= 6
    assert float(samples["berth_gpu_memory_unclaimed_bytes" + v100]) == 6 * 16160 * 2**20
    assert samples["berth_bandwidth_ratio_count"] == "1.0"
    assert 0 < float(samples["berth_bandwidth_ratio_sum"]) <= 1
