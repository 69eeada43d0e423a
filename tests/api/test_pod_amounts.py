"""What a pod requests of its node: containers, init containers, sidecars, the pod as a whole, and its overhead."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from extender.api.pod_amounts import Amounts, requests_of
from extender.base.berth_errors import WireError

Json = dict[str, Any]
MI = 2**20
# The rule is that of https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/ (resource sharing within
# containers), .../scheduling-eviction/pod-overhead/ and .../manage-resources-containers/ (pod-level resources).
CASES: dict[str, tuple[str, int, int]] = {
    "nothing": ("{}", 0, 0),
    "containers together": ("{containers: [{cpu: 1, memory: 64Mi}, {cpu: 250m}]}", 1250, 64),
    "init containers, one after the other": (
        "{init: [{cpu: 2}, {cpu: 3, memory: 8Mi}], containers: [{cpu: 1, memory: 64Mi}]}",
        3000,
        64,
    ),
    "init containers that need less": ("{init: [{cpu: 2}, {cpu: 3}], containers: [{cpu: 2}, {cpu: 2}]}", 4000, 0),
    "a sidecar beside the containers": (
        "{init: [{cpu: 1, memory: 32Mi, sidecar: true}], containers: [{cpu: 2, memory: 64Mi}]}",
        3000,
        96,
    ),
    "an init container beside the sidecar before it": (
        "{init: [{cpu: 1, sidecar: true}, {cpu: 5}], containers: [{cpu: 2}]}",
        6000,
        0,
    ),
    "an init container before the sidecar": (
        "{init: [{cpu: 5}, {cpu: 1, sidecar: true}], containers: [{cpu: 2}]}",
        5000,
        0,
    ),
    "two sidecars around an init container": (
        "{init: [{cpu: 1, sidecar: true}, {cpu: 4}, {cpu: 3, sidecar: true}], containers: [{cpu: 2}]}",
        6000,
        0,
    ),
    "overhead comes on top": (
        "{init: [{cpu: 2}], containers: [{cpu: 1, memory: 64Mi}], overhead: {cpu: 250m, memory: 120Mi}}",
        2250,
        184,
    ),
    "requests of the pod as a whole": (
        "{pod: {requests: {cpu: 1}}, init: [{cpu: 8}], containers: [{cpu: 200m, memory: 64Mi}]}",
        1000,
        64,
    ),
    "requests of the pod as a whole, and overhead": (
        "{pod: {requests: {cpu: 1, memory: 1Mi}}, containers: [{memory: 1Mi}], overhead: {cpu: 250m}}",
        1250,
        1,
    ),
    "a limit of the pod as a whole, below which the containers request": (
        "{pod: {limits: {cpu: 4, memory: 8Mi}}, containers: [{cpu: 1}]}",
        1000,
        8,
    ),
    "limits become requests": ("{containers: [{limits: {cpu: 2, memory: 1Mi}, memory: 2Mi}]}", 2000, 2),
}


def container(described: Json) -> Json:
    limits = described.pop("limits", {})
    kind = {"restartPolicy": "Always"} if described.pop("sidecar", False) else {}
    return {"name": "c", "resources": {"requests": described, "limits": limits}, **kind}


def spec_of(described: Json) -> Json:
    return {
        "initContainers": list(map(container, described.get("init", []))),
        "containers": list(map(container, described.get("containers", []))),
        "overhead": described.get("overhead"),
        "resources": described.get("pod"),
    }


@pytest.mark.parametrize(("text", "cpu", "mebibytes"), CASES.values(), ids=CASES)
def test_what_a_pod_requests(text: str, cpu: int, mebibytes: int) -> None:
    assert requests_of({"spec": spec_of(yaml.safe_load(text))}) == Amounts(cpu, mebibytes * MI, 1)


def test_an_amount_that_is_none_is_named() -> None:
    with pytest.raises(WireError, match="restartPolicy: must be a string"):
        requests_of({"spec": {"initContainers": [{"restartPolicy": 1}]}})
