"""What a pod requests of its node: containers, init containers, sidecars, the pod as a whole, and its overhead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.api.pod_amounts import Amounts, requests_of
from extender.base.berth_errors import WireError

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "pod_amounts.yaml").read_text())


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_a_pod_requests(case: Json) -> None:
    cpu, mebibytes = case["expect"]
    assert requests_of({"spec": spec_of(case)}) == Amounts(cpu, mebibytes << 20, 1)


def test_an_amount_that_is_none_is_named() -> None:
    with pytest.raises(WireError, match="restartPolicy: must be a string"):
        requests_of({"spec": {"initContainers": [{"restartPolicy": 1}]}})
