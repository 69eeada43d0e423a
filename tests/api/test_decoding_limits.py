"""Decoding of slices, claims and selectors remembers no more than its bounds."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest

from benchmarks.fleet import Fleet
from extender.api.resource_claims import ALLOCATOR_ANNOTATION, GROUP_ANNOTATION, SpecCache, decode_claim
from extender.api.resource_slices import Slice, SliceDecoder
from extender.cel.dra import Masks, compile_selector
from tests.worlds.running_berth import claim


def test_masks_are_bounded_as_a_product_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.cel.dra.masks.ALL_MASK_BYTES", 20 * 300)
    fleet = Fleet("mixed")
    slices = [SliceDecoder().decode(fleet.slices(f"n{number}", number)[0]) for number in range(10)]
    masks = Masks(selector_bytes=5 * 4200)
    for expression in range(8):
        for one in slices:
            assert masks.of(f"'{expression}' != ''", one).match
    found = masks.remembered()
    assert found["selectors"] <= 5
    assert 10 <= found["masks"] <= 23
    assert found["mask_bytes"] <= 20 * 300
    assert masks.of("x" * 30_000, slices[0]).error, "an expression too large for the cache is still evaluated"
    for one in slices:
        masks.forget(one.name)
    assert masks.remembered()["masks"] == masks.remembered()["mask_bytes"] == 0


def test_shared_values_of_the_decoder_end_with_their_slices() -> None:
    decoder = SliceDecoder()

    def decode(number: int) -> Slice:
        capacity = {"memory": {"value": f"{number + 1}Gi"}}
        device = {"name": "d", "attributes": {f"a{number}": {"int": 1}}, "capacity": capacity}
        spec = {"driver": "d", "nodeName": "n", "pool": {"name": "p"}, "devices": [device, device]}
        return decoder.decode({"metadata": {"name": "s"}, "spec": spec})

    kept = [decode(number) for number in range(4)]
    assert all(one.devices[0].capacity is one.devices[1].capacity for one in kept)
    assert decode(0).devices[0].capacity is kept[0].devices[0].capacity
    assert decode(1).devices[0].attributes.schema is kept[1].devices[0].attributes.schema
    devices = [one.devices[0] for one in kept]
    shared: list[Any] = [*(ref(one.capacity) for one in devices), *(ref(one.attributes.schema) for one in devices)]
    kept.clear()
    devices.clear()
    gc.collect()
    assert [one() for one in shared] == [None] * 8


def test_specs_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty claims of 640 KB once left 74 MB behind."""
    monkeypatch.setattr("extender.api.resource_claims._SPEC_BYTES", 100_000)
    cache = SpecCache()

    def content(number: int, size: int) -> bytes:
        parameters = b'{"driver":"d","parameters":{"a":"%s"}}' % (b"x" * size)
        return b'{"devices":{"config":[{"opaque":%s}]},"n":%d}' % (parameters, number)

    assert cache.decode(content(0, 10)) is cache.decode(content(0, 10))
    for number in range(60):
        assert cache.decode(content(number, 10_000)).config
    assert 1 < len(cache) <= 4
    before = len(cache)
    assert cache.decode(content(1, 120_000)).config, "too large to be remembered"
    assert len(cache) == before, "too large to be remembered"


def test_a_pattern_remembers_few_texts_and_stays_right() -> None:
    """Devices have more different values than the caches hold, twice: dropped values are looked up again."""
    decoder, selector = SliceDecoder(), compile_selector("device.attributes['d'].v.matches('^[0-9]*7$')")

    def device(number: int) -> Any:
        one = {"name": "d", "attributes": {"v": {"string": str(number)}}}
        spec = {"driver": "d", "nodeName": "n", "pool": {"name": "p"}, "devices": [one]}
        return decoder.decode({"metadata": {"name": "s"}, "spec": spec}).devices[0]

    for number in (*range(200), *range(200)):
        assert selector.match(device(number), "d") == (number % 10 == 7)


def test_a_claim_with_a_huge_spec_is_invalid_and_its_text_is_not_kept() -> None:
    """150 claims of 1.4 MB, which any tenant may create, once took more memory than the container has."""
    huge = claim("c", selectors=[{"cel": {"expression": "\U0001f600" * 10_000}}] * 32)
    huge["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    device = {"request": "gpu", "driver": "d", "pool": "p", "device": "dev"}
    huge["status"] = {"allocation": {"devices": {"results": [device]}}}
    found = decode_claim(huge)
    assert "spec: has 1280" in found.problem
    assert found.allocation is not None
    assert found.allocation.results, "its devices are in use"
    assert not found.spec.content


DENSE: dict[str, dict] = {
    "tolerations": {"tolerations": [{"key": f"k{number}", "operator": "Exists"} for number in range(3_000)]},
    "wide texts": {"selectors": [{"cel": {"expression": "\U0001f600" + "x" * 10_000}}] * 12},
    "finalizers": {},
}


@pytest.mark.parametrize("name", DENSE)
def test_a_claim_that_takes_much_more_memory_than_its_json_is_invalid(name: str) -> None:
    """300 claims below 128 KiB once took 410 MiB."""
    dense = claim("c", **DENSE[name])
    if name == "finalizers":
        dense["metadata"]["finalizers"] = [f"a.b/{number}" for number in range(10_000)]
    found = decode_claim(dense)
    assert found.problem.startswith("metadata.finalizers" if name == "finalizers" else "spec: takes more than 262144")
    assert (found.spec.content, found.finalizers) == (b"", ())


@pytest.mark.parametrize("field", ["owner", "mark", "group"])
def test_what_a_tenant_writes_beside_a_spec_is_cut(field: str) -> None:
    long, written = "x" * 1_000_000, claim("c")
    owner = {"kind": "Pod", "controller": True, "uid": long, "name": long}
    written["metadata"] |= {"ownerReferences": [owner]} if field == "owner" else {}
    written["metadata"]["annotations"] = {ALLOCATOR_ANNOTATION: long} if field == "mark" else {GROUP_ANNOTATION: long}
    found = decode_claim(written)
    assert not found.problem
    assert max(map(len, (found.owner_pod_uid, found.allocator, found.group))) == 510


def test_a_claim_with_32_usual_requests_is_valid() -> None:
    selector = {"cel": {"expression": "device.attributes['gpu.nvidia.com'].productName.matches('^NVIDIA [AH]100')"}}
    request = {"deviceClassName": "gpu.nvidia.com", "selectors": [selector] * 4, "count": 1}
    usual = claim("c")
    usual["spec"]["devices"]["requests"] = [{"name": f"gpu{number}", "exactly": request} for number in range(32)]
    assert not decode_claim(usual).problem


@pytest.mark.parametrize("per_device", [False, True])
def test_a_slice_whose_node_selectors_are_too_long_is_invalid(per_device: bool) -> None:
    """Each event of a slice with 150,000 names of nodes, of 1.1 MB, took 0.35 s, and 60 MiB of memory."""

    def published(values: int) -> Slice:
        names = [f"n{number}" for number in range(values)]
        halves = [names[: values // 2], names[values // 2 :]] if per_device else [names]
        chosen = [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": h}]} for h in halves
        ]
        selectors = [{"nodeSelectorTerms": [term]} for term in chosen]
        devices = [{"name": f"d{number}", "nodeSelector": one} for number, one in enumerate(selectors)]
        spec: dict[str, Any] = {"driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}
        by_device = {"perDeviceNodeSelection": True, "devices": devices}
        spec |= by_device if per_device else {"nodeSelector": selectors[0], "devices": [{"name": "d"}]}
        return SliceDecoder().decode({"metadata": {"name": "s"}, "spec": spec})

    assert not published(8190).problem
    found = published(8193)
    assert found.problem == "spec: the node selectors have more than 8192 values"
    assert found.devices == ()
    assert found.selection.selector is None
