"""Names, UID and version are read from a body without decoding the pod, and never from a text inside the pod."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.api import extender_v1 as wire
from extender.api.pods import decode_pod, may_need_devices
from extender.base.berth_errors import WireError
from tests.worlds.running_berth import berthing, claim, pod

_TRAPS = ['"NodeNames":["', ',"NodeNames":["a"]}', "]", "}", '\\"', "x"]


@given(
    st.lists(st.sampled_from(["n1", "n2", "node-3.example.com"]), max_size=3),
    st.lists(st.sampled_from(_TRAPS), max_size=3).map("".join),
)
def test_names_are_found_however_the_body_is_laid_out(names: list[str], note: str) -> None:
    """Names are cut out of the body before it is parsed, and no text inside a pod may be mistaken for them."""
    metadata = {"name": "p", "namespace": "d", "annotations": {"berth.dev/topology": note, note: "y"}}
    pod_with_traps = {"metadata": metadata, "list": [note], "NodeNames": [note]}
    body = {"Pod": pod_with_traps, "Nodes": None, "NodeNames": names}
    layouts = ((",", ":"), (", ", ": "))
    read = [wire.decode_args(json.dumps(body, separators=separators).encode()) for separators in layouts]
    assert all(list(args.names) == names and args.pod.annotations["berth.dev/topology"] == note for args in read)
    assert all(json.loads(wire.encode_passed(args))["NodeNames"] == names for args in read)


@patch.object(wire, "_MAX_OFFSETS", 5)
@patch.object(wire, "_NEAR_BYTES", 12)
@given(
    st.lists(st.permutations([f"node-{i}" for i in range(8)] + ["n", "de-1", 'x"node-2']), min_size=1, max_size=5),
    st.integers(0, 11),
)
def test_names_are_found_wherever_they_stand_and_nowhere_else(orders: list[list[str]], cut: int) -> None:
    """The last offset of a name is only the place to search first."""
    offsets = wire.NameOffsets()
    for shift, order in enumerate(orders):
        given_names = order[:cut]
        before, text = b'{"n"' * shift, json.dumps(given_names, separators=(",", ":")).encode()
        asked = wire.NodeNames(before + text + b',"n"]', slice(len(before), len(before) + len(text)), offsets)
        for name in (*order, "ode-3", "node"):
            if '"' not in name:
                assert asked.has_all([name]) == (name in given_names), name
        assert list(asked) == given_names
    assert len(offsets) <= 5


_TEXTS = st.sampled_from(["u", "u-1", '"uid":"x"', '","uid":"y","resourceVersion":"9', "\\", "{}", "é"])
_NAMES = ["name", "namespace", "uid", "resourceVersion", "annotations", "generation", "labels"]
_FIELDS = st.lists(st.tuples(st.sampled_from(_NAMES), _TEXTS), unique_by=lambda field: field[0])


@given(_FIELDS)
def test_a_pod_is_identified_by_its_own_uid_and_version_or_not_at_all(fields: list[tuple[str, str]]) -> None:
    """They are read without decoding the pod, and no text inside the pod may be mistaken for them."""
    shape = {
        "annotations": lambda text: {"uid": text, "resourceVersion": text},
        "labels": lambda text: {text: text},
        "generation": len,
    }
    metadata = {name: shape.get(name, str)(text) for name, text in fields}
    request = {"Pod": {"metadata": metadata, "spec": {"uid": "z"}}, "Nodes": None, "NodeNames": ["n"]}
    body = json.dumps(request, separators=(",", ":")).encode()
    assert wire.decode_args(body).identity in (("", ""), (metadata.get("uid"), metadata.get("resourceVersion")))


def test_the_time_to_find_uid_and_version_is_bounded() -> None:
    body = b'{"Pod":{"metadata":{%b"name":"p"}},"Nodes":null,"NodeNames":["n"]}' % (b'"uid":"u",' * 500_000)
    assert wire.decode_args(body).identity == ("", "")
    body = b'{"Pod":{"metadata":{"name":"\xff","uid":"\xff","resourceVersion":"1"}},"Nodes":null,"NodeNames":["n"]}'
    args = wire.decode_args(body)
    assert args.identity == ("", "")
    with pytest.raises(WireError, match="not JSON"):
        _ = args.pod


async def test_a_pod_that_the_watch_shows_is_not_read_again_and_a_newer_one_is() -> None:
    async with berthing({"n1": "hgx-h100-8", "n2": "t4-4"}) as b:
        await b.create(claim("c"), pod("p", "c"))
        shown = b.pod("p")

        async def first(version: str, least: str) -> list[str]:
            names = ("name", "namespace", "uid")
            metadata = {
                **{name: shown["metadata"][name] for name in names},
                "resourceVersion": version,
                "annotations": {"berth.dev/expected-memory": least},
            }
            body = {"Pod": {"metadata": metadata, "spec": shown["spec"]}, "Nodes": None, "NodeNames": ["n1", "n2"]}
            return (await b.client.post("/filter", content=json.dumps(body, separators=(",", ":")))).json()["NodeNames"]

        both = await first(shown["metadata"]["resourceVersion"], "60Gi")
        assert set(both) == {"n1", "n2"}, "of this version the watch knows no such annotation"
        assert await first("999", "60Gi") == ["n1"], "of another one the body counts"


async def test_names_that_are_no_json_are_refused_once_they_are_read() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        await b.create(claim("c", 16), pod("p", "c"))
        body = b'{"Pod":%b,"Nodes":null,"NodeNames":["n1" "n2"]}' % json.dumps(b.pod("p")).encode()
        reply = await b.client.post("/filter", content=body)
        assert reply.status_code == 400, reply.text
        assert "NodeNames" in reply.json()["error"], reply.text


_AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "example.com/x"]),
    st.sampled_from([1, "2", "0", "500m", "1Gi"]),
    max_size=2,
)
_CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("c")},
        optional={"resources": st.fixed_dictionaries({}, optional={"limits": _AMOUNTS, "requests": _AMOUNTS})},
    ),
    max_size=2,
)


@given(
    st.fixed_dictionaries(
        {"containers": _CONTAINERS},
        optional={
            "initContainers": _CONTAINERS,
            "resourceClaims": st.lists(st.just({"name": "g", "resourceClaimName": "c"}), max_size=1),
        },
    )
)
def test_no_pod_that_may_need_devices_is_passed_undecoded(spec: dict[str, object]) -> None:
    found = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}
    assert may_need_devices(found) or not decode_pod(found).may_need_devices
    plain = not spec.get("resourceClaims") and "/" not in json.dumps(spec)
    assert not (plain and may_need_devices(found)), "pods without devices are not decoded"
    for broken in ([3], {"a": 1}, "x", [{"resources": 3}]):
        assert may_need_devices({**found, "spec": {**spec, "containers": broken}}), "decoding says what is wrong"


def test_places_of_names_are_remembered_from_the_first_body_on() -> None:
    """An empty NameOffsets must also be used and filled, for kube-scheduler's next body."""
    body = b'{"Pod":{"metadata":{"name":"p","namespace":"d","uid":"u"}},"Nodes":null,"NodeNames":["n1","n2"]}'
    offsets = wire.NameOffsets()
    names = wire.decode_args(body, offsets).names
    assert isinstance(names, wire.NodeNames)
    assert names.has_all(["n2"])
    assert len(offsets) == 1
