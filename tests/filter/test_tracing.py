"""The spans that a collector gets; a dead collector does not affect serve."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import httpx
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from extender.base.berth_errors import BerthError
from extender.sandbox import listening
from extender.serve import Traces
from extender.web.asgi import Receive, Scope, Send
from tests.worlds.eventually import HANG_SECONDS
from tests.worlds.process_worlds import filtered, served
from tests.worlds.running_berth import claim, pod


class Collector:
    """An OTLP/HTTP receiver that keeps every span."""

    def __init__(self) -> None:
        self.spans: list = []
        self.services: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        assert scope["path"] == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            self.spans += [span for scoped in resource.scope_spans for span in scoped.spans]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


async def place(verbs: int, folder: Path, name: str) -> dict:
    """Filter and bind one pod with a claim; the pod as it was sent."""
    api = yaml.safe_load((folder / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
    async with httpx.AsyncClient(timeout=HANG_SECONDS, verify=False) as client:
        assert (
            await client.post(f"{api}/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", json=claim(name))
        ).status_code == 201
        sent = (await client.post(f"{api}/api/v1/namespaces/default/pods", json=pod(name, name))).json()
        found = await filtered(client, verbs, {"Pod": sent, "NodeNames": ["n1", "n2"]})
        await client.post(f"http://127.0.0.1:{verbs}/prioritize", json={"Pod": sent, "NodeNames": found["NodeNames"]})
        bind = {
            "PodName": name,
            "PodNamespace": "default",
            "PodUID": sent["metadata"]["uid"],
            "Node": found["NodeNames"][0],
        }
        assert (await client.post(f"http://127.0.0.1:{verbs}/bind", json=bind)).json()["Error"] == ""
    return sent


async def test_the_trace_of_a_pod_has_its_uid(tmp_path: Path) -> None:
    collector = Collector()
    async with listening(collector, "127.0.0.1", 0) as url:
        async with served(tmp_path, "--traces", url) as (verbs, _):
            sent = await place(verbs, tmp_path, "one")
        uid = uuid.UUID(sent["metadata"]["uid"])
        spans = {span.name: span for span in collector.spans if span.trace_id == uid.bytes}
        assert collector.services == {"berth"}
        assert set(spans) == {"filter", "prioritize", "bind", "write claims", "write barrier", "write binding"}
        for name in ("filter", "prioritize", "bind"):
            assert spans[name].parent_span_id == uid.bytes[8:], "right below the pod"
            assert {a.key: a.value.string_value for a in spans[name].attributes}["k8s.pod.name"] == "one"
        for name in ("write claims", "write barrier", "write binding"):
            assert spans[name].parent_span_id == spans["bind"].span_id
        asked = {a.key: a.value.int_value for a in spans["filter"].attributes}
        assert asked["berth.nodes.asked"] == 2
        assert asked["berth.nodes.passed"] >= 1


async def test_an_absent_collector_does_not_affect_serve(tmp_path: Path) -> None:
    """Verbs go on, and the process still ends with 0 (asserted where it is ended)."""
    async with served(tmp_path, "--traces", "http://127.0.0.1:1") as (verbs, _):
        await place(verbs, tmp_path, "one")


def test_a_wrong_url_and_missing_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BerthError, match="--traces: must be http://HOST:PORT or https://HOST:PORT, is 'collector'"):
        Traces("collector")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # as where it is not installed
    with pytest.raises(BerthError, match=r"pip install 'berth\[traces\]'"):
        Traces("http://127.0.0.1:4318")
