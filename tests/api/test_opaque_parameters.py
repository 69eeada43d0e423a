"""Claims whose opaque parameters the API server stores in another form than its own JSON, and so refuses to patch.

tests/e2e/test_writes_on_real_server.py binds such claims.
"""

from __future__ import annotations

from typing import cast

import pytest

from extender.api.group_parts import PodMark
from extender.api.object_meta import ObjectKey
from extender.api.protobuf import merged_claim
from extender.api.resource_claims import Claim, Consumer
from extender.base.berth_errors import WireError
from extender.cluster import ApiClient, Unavailable, Writer
from extender.cluster.api_errors import Invalid

# As kube-apiserver 1.36 sends it, without managedFields.
SPEC = (
    b"\x12r\np\n&\n\x03gpu\x12\x1f\n\x0fgpu.example.com\x1a\nExactCount \x01\x1aF\x12D\nB\n\x0fgpu.example.com"
    b'\x12/\n-{"kind": "GpuConfig", "filter": "a<b && b>c"}'
)
NAMES, CREATED = b'\n\x06shared\x12\x00\x1a\x07default"\x00', b"8\x00B\x08\x08\xdd\xf0\xa0\xd8\x06\x10\x00"
UID, KIND = b"cd2ca5d7-9694-4ef0-bdd5-f675596334a4", b"k8s\0\n#\n\x12resource.k8s.io/v1\x12\rResourceClaim"
REAL = KIND + b"\x12\xc4\x01\nL" + NAMES + b"*$" + UID + b"2\x03209" + CREATED + SPEC + b'\x1a\x00\x1a\x00"\x00'


class Server:
    """In place of ApiClient. It refuses every patch of the claim, and has `stored` as protobuf."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored
        self.puts: list[tuple[str, bytes]] = []

    async def patch(self, *_: object) -> dict:
        raise Invalid("ResourceClaim is invalid: spec: field is immutable")

    async def get_protobuf(self, _: str) -> bytes:
        return self.stored

    async def put(self, path: str, body: bytes) -> dict:
        self.puts.append((path, body))
        metadata = {"name": "shared", "namespace": "default", "uid": UID.decode(), "resourceVersion": "211"}
        return {"metadata": metadata, "spec": {}}


KNOWN = Claim(ObjectKey("default", "shared"), UID.decode(), "210")  # the bind has decided on this version


async def test_a_claim_that_cannot_be_patched_is_put_with_the_version_that_was_decided_on() -> None:
    server = Server(REAL)
    writer = Writer(cast("ApiClient", server), "berth-1")
    assert (await writer.add_finalizer(KNOWN, PodMark("llm"))).resource_version == "211"
    await writer.add_consumers(KNOWN, [Consumer("u", "p")])
    (first, annotated), (second, reserved) = server.puts
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/shared"
    assert (first, second) == (path, f"{path}/status")
    for body in (annotated, reserved):
        assert SPEC in body
        assert b"2\x03210" in body
    assert b"resource.kubernetes.io/delete-protection" in annotated
    assert b"berth.dev/allocator\x12\x07berth-1" in annotated
    assert b"pods" in reserved


async def test_a_claim_that_cannot_be_read_as_protobuf_is_a_lost_answer() -> None:
    writer = Writer(cast("ApiClient", Server(b"<html>")), "berth-1")
    with pytest.raises(Unavailable, match="the answer is not protobuf"):
        await writer.take_over(KNOWN)


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
