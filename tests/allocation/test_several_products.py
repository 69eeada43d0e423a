"""The cheap GPU first, also within a node that has several products, or whole GPUs and parts of GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.policy import Policy
from tests.worlds.filled_caches import required
from tests.worlds.nic_worlds import GPU, NicFleet, counted

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "several_products.yaml").read_text(encoding="utf-8"))


def placed(case: Json) -> tuple[list[str], dict[str, str]]:
    """The names of the devices that the pod gets, and the sentences of the score."""
    fleet = NicFleet({"n": case["machine"]}, Policy.model_validate(case.get("policy", {})))
    fleet.hold("n", [(GPU, name) for name in case.get("held", ())])
    requests = counted(case["asks"]["gpus"], case["asks"]["nics"])
    pod = fleet.pod([one for one in requests if one["exactly"]["count"]])
    notes = {f"berth.dev/{key}": value for key, value in case.get("notes", {}).items()}
    found = fleet.placement("n", required(replace(pod, annotations=notes), fleet.cache, fleet.policy))
    return sorted(fleet.names("n", found)), {part.name: part.sentence for part in found.parts}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_least_valuable_devices_that_serve(case: Json) -> None:
    devices, said = placed(case)
    assert devices == case["gets"]
    for part in ("link", "value"):
        assert said.get(part, "").startswith(case.get(part, ""))
