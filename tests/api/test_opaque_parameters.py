"""Claims whose opaque parameters the API server stores in another form than its own JSON."""

from __future__ import annotations

import json

import pytest

from extender.api.protobuf import merged_claim
from extender.base.berth_errors import WireError
from extender.sandbox import ApiError, sandbox_cluster
from tests.worlds.claim_bytes import Parameters, ServerOfBytes
from tests.worlds.dra_worlds import CLAIMS
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, Json, berthing, claim, pod

pytestmark = pytest.mark.loopback

# As the official Python client and Ansible send them, as Java and JavaScript clients do, and in a file with indents.
TEXTS = {
    "blanks": '{"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}',
    "unescaped": '{"kind":"GpuConfig","filter":"a<b && b>c"}',
    "unsorted, as numbers": '{"z": 1.0, "a": [1e3, {"b": null}], "forbidden": "caf\\u00e9"}',
    "indented": '{\n\t"kind": "GpuConfig",\n\t"say": "a \\" b\\\\"\n}',
    "a rule's words": '{"kind": "GpuConfig", "say": "x: Forbidden: y"}',
    "the server's own": '{"kind":"GpuConfig","filter":"a\\u003cb"}',
}
RESULT = {"pool": "n1", "device": "gpu-0"}
forms = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


@pytest.fixture(autouse=True)
def stored_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_cluster, "ApiServer", ServerOfBytes)


def with_parameters(spec: Json) -> Json:
    spec["devices"]["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": "HERE"}}]
    return spec


async def send(b: Berthing, method: str, path: str, obj: Json, text: str) -> Json:
    """Send an object whose parameters have this text."""
    content = json.dumps(obj).replace('"HERE"', text).replace('"DATA"', TEXTS["blanks"])
    url = f"{b.api}/apis/resource.k8s.io/v1/namespaces/default/{path}"
    answer = await b.client.request(method, url, content=content)
    assert answer.is_success, answer.text
    return answer.json()


async def send_claim(b: Berthing, text: str) -> None:
    made = claim("c")
    with_parameters(made["spec"])
    made["metadata"] |= {"finalizers": ["example.com/other"], "annotations": {"example.com/note": "kept"}}
    await send(b, "POST", "resourceclaims", made, text)


def stored(b: Berthing) -> Json:
    return b.cluster.store["resourceclaims", ("default", "c")]


def text_in(config: list[Json]) -> str:
    (entry,) = config
    assert isinstance(entry["opaque"]["parameters"], Parameters)
    return entry["opaque"]["parameters"].text


@forms
async def test_the_sandbox_refuses_a_patch_as_a_real_api_server_does(text: str) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await send_claim(b, text)
        url = f"{b.api}/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"
        for kind in ("merge", "strategic-merge"):
            headers = {"Content-Type": f"application/{kind}-patch+json"}
            annotated = await b.client.patch(url, json={"metadata": {"labels": {"a": kind}}}, headers=headers)
            assert annotated.status_code == (200 if text == TEXTS["the server's own"] else 422), annotated.text
            assert annotated.is_success or "field is immutable" in annotated.text


@forms
async def test_a_claim_is_bound_and_its_parameters_stay_as_they_are(text: str) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await send_claim(b, text)
        await b.create(pod("p", "c"))
        node = (await b.filter("p"))["NodeNames"][0]
        assert await b.bind("p", node) == ""
        found = stored(b)
        assert found["status"]["reservedFor"][0]["name"] == "p"
        assert found["metadata"]["finalizers"] == ["example.com/other", "resource.kubernetes.io/delete-protection"]
        assert found["metadata"]["annotations"]["example.com/note"] == "kept"
        assert text_in(found["spec"]["devices"]["config"]) == text
        (config,) = found["status"]["allocation"]["devices"]["config"]
        assert config["opaque"]["parameters"] == json.loads(text)


@forms
async def test_a_claim_of_a_template_is_bound(text: str) -> None:
    """The claim controller copies the bytes of the template."""
    async with berthing({"n1": "t4-4"}) as b:
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
        template = {**kind, "metadata": {"name": "t"}, "spec": {"spec": with_parameters(claim("")["spec"])}}
        await send(b, "POST", "resourceclaimtemplates", template, text)
        b.cluster.apply(pod("p", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}]))
        await eventually(b.claims)
        await b.settled()
        assert await b.bind("p", (await b.filter("p"))["NodeNames"][0]) == ""
        assert text_in(b.claims()[0]["spec"]["devices"]["config"]) == text


async def allocated_by_another_scheduler(b: Berthing, text: str) -> None:
    """kube-scheduler copies the bytes into `status.allocation`, and a driver has written data about the device.

    The API server compares both in the same way, and asks for a right on resourceclaims/driver if the data differ.
    """
    await send_claim(b, text)
    found = json.loads(json.dumps(stored(b)))
    config = [{"source": "FromClaim", **with_parameters({"devices": {}})["devices"]["config"][0]}]
    result = {"request": "gpu", "driver": "gpu.nvidia.com", **RESULT}
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    allocation = {"devices": {"results": [result], "config": config}, "nodeSelector": {"nodeSelectorTerms": [on_node]}}
    status = {"allocation": allocation, "devices": [{"driver": "gpu.nvidia.com", **RESULT, "data": "DATA"}]}
    await send(b, "PUT", "resourceclaims/c/status", {**found, "status": status}, text)
    for name in ("p", "q"):
        b.cluster.apply(pod(name, "c"))
    await b.settled()


@forms
async def test_pods_share_an_allocation_that_another_scheduler_wrote(text: str) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await allocated_by_another_scheduler(b, text)
        for name in ("p", "q"):
            await b.filter(name)
            assert await b.bind(name, "n1") == ""
        assert [entry["name"] for entry in stored(b)["status"]["reservedFor"]] == ["p", "q"]
        assert text_in(stored(b)["status"]["allocation"]["devices"]["config"]) == text
        assert stored(b)["status"]["devices"][0]["data"].text == TEXTS["blanks"]


@forms
async def test_a_failed_bind_takes_its_writes_back(text: str) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await allocated_by_another_scheduler(b, text)
        b.cluster.api.intercept = no_binding
        assert "no right" in await b.bind("p", "n1")
        assert not stored(b)["status"].get("reservedFor")
        assert text_in(stored(b)["status"]["allocation"]["devices"]["config"]) == text


async def no_binding(method: str, path: str) -> ApiError | None:
    return ApiError(403, "Forbidden", "no right") if path.endswith("/binding") else None


async def test_a_claim_that_changes_between_read_and_write_is_written_again() -> None:
    """The PUT has the resourceVersion that the bind has decided on, not the one of its read."""
    async with berthing({"n1": "t4-4"}) as b:
        await send_claim(b, TEXTS["blanks"])
        await b.create(pod("p", "c"))
        node = (await b.filter("p"))["NodeNames"][0]
        changes: list[str] = []

        async def change(method: str, path: str) -> None:
            if (method, path.rpartition("/")[2]) in (("GET", "c"), ("PUT", "c")) and len(changes) < 2:
                changes.append(method)
                labels = {"metadata": {"labels": {"changed": str(len(changes))}}}
                b.cluster.api.registry.patch(CLAIMS, ("default", "c"), labels, "", strategic=False)

        b.cluster.api.intercept = change
        assert await b.bind("p", node) == ""
        assert changes == ["GET", "PUT"]
        assert stored(b)["metadata"]["labels"] == {"changed": "2"}


# As kube-apiserver 1.36 sends it, without managedFields.
SPEC = (
    b"\x12r\np\n&\n\x03gpu\x12\x1f\n\x0fgpu.example.com\x1a\nExactCount \x01\x1aF\x12D\nB\n\x0fgpu.example.com"
    b'\x12/\n-{"kind": "GpuConfig", "filter": "a<b && b>c"}'
)
NAMES, CREATED = b'\n\x06shared\x12\x00\x1a\x07default"\x00', b"8\x00B\x08\x08\xdd\xf0\xa0\xd8\x06\x10\x00"
UID, KIND = b"cd2ca5d7-9694-4ef0-bdd5-f675596334a4", b"k8s\0\n#\n\x12resource.k8s.io/v1\x12\rResourceClaim"
REAL = KIND + b"\x12\xc4\x01\nL" + NAMES + b"*$" + UID + b"2\x03209" + CREATED + SPEC + b'\x1a\x00\x1a\x00"\x00'


def test_a_change_of_a_real_servers_answer_leaves_its_other_bytes() -> None:
    guard = {"uid": UID.decode(), "resourceVersion": "210"}
    consumers = [{"resource": "pods", "name": "p", "uid": "u"}]
    change = {**guard, "finalizers": ["x/y"], "annotations": {"a": "b", "absent": None}}
    changed = merged_claim(REAL, {"metadata": change, "status": {"reservedFor": consumers}})
    assert SPEC in changed
    assert NAMES in changed
    assert CREATED in changed
    assert b"2\x03210" in changed
    assert b"b\x06\n\x01a\x12\x01b" in changed
    assert b"r\x03x/y" in changed
    assert b'\x1a\x0e\x12\x0c\x1a\x04pods"\x01p*\x01u' in changed
    again = merged_claim(changed, {"metadata": {**guard, "annotations": {"a": None}}, "status": {"reservedFor": None}})
    assert b"b\x06" not in again
    assert b"pods" not in again
    assert b"r\x03x/y" in again


@pytest.mark.parametrize("answer", [b"", b"k8s\0\x12", b"k8s\0\x13", b"<html>", b"k8s\0\x12\x05\x0a"])
async def test_an_answer_that_is_no_protobuf_is_an_error(answer: bytes) -> None:
    with pytest.raises(WireError):
        merged_claim(answer, {"metadata": {"uid": "u", "resourceVersion": "1"}})
