"""`berth allocate` and `berth explain` give one answer about the pods of files."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from extender.api.fields import Json
from extender.cli.allocate_command import answers_of
from extender.cli.main import commands
from tests.worlds.explain_worlds import GPU, asking, explained, objects_of_world
from tests.worlds.running_berth import pod
from tests.worlds.shared_claim_worlds import claim, fleet, held

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}


def fitting(objects: list[Json], asked: list[Json]) -> list[str]:
    """The nodes that both commands call fitting."""
    answers = answers_of([("", one) for one in [*objects, *asked]], "preferred", None)
    nodes = [one["node"] for one in answers if one["allocations"] is not None]
    assert explained(objects, asked)["fitting"] == len(nodes), answers
    assert all(one["allocations"] is not None or one["why"] for one in answers)
    return nodes


def test_a_claim_that_is_allocated_elsewhere() -> None:
    objects = [*fleet({"n1": "g0", "n2": "k0"}), held("sh", "n2", "k0", "oth")]
    assert fitting(objects, [claim("own", "g"), pod("want", "own", "sh")]) == []
    assert fitting(objects, [pod("want", "sh")]) == ["n2"]


@pytest.mark.parametrize("label", ["true", ""])
def test_admin_access_needs_the_label_of_the_namespace(label: str) -> None:
    labels = {"resource.kubernetes.io/admin-access": label} if label else {}
    namespace = {**NAMESPACE, "metadata": {"name": "default", "labels": labels}}
    objects = [*objects_of_world([{"name": "g0"}]), namespace]
    assert fitting(objects, asking({"adminAccess": True})) == (["n1"] if label else [])


@pytest.mark.parametrize("allocated", [False, True])
def test_a_claim_that_is_being_deleted(allocated: bool) -> None:
    objects, asked = fleet({"n1": "g0"}), claim("own", "g")
    if allocated:
        asked = held("own", "n1", "g0", "oth")
    asked["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert fitting([*objects, asked], [pod("want", "own")]) == []


def test_what_nobody_can_change_in_an_allocated_claim_hinders_no_answer(tmp_path: Path) -> None:
    """Kubernetes 1.34 and 1.35 stored such amounts. The file is refused only where a new claim has one."""
    stored, new = held("old", "n1", "g0", "oth"), claim("new", "g")
    wrong = {"requests": {"memory": "-1Gi"}}
    stored["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = wrong
    path = tmp_path / "objects.json"
    objects = [*fleet({"n1": "g0", "n2": "g0"}), stored]
    path.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects, new]}))
    result = CliRunner().invoke(commands(), ["allocate", str(path), "--output", "json"])
    assert result.exit_code == 0, result.output
    assert "warning" in result.stderr
    assert "must not be negative, is -1Gi" in result.stderr
    new["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = wrong
    path.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects, new]}))
    refused = CliRunner().invoke(commands(), ["allocate", str(path)])
    assert refused.exit_code == 1
    assert "ResourceClaim new, spec.devices.requests[0].exactly.capacity.requests[memory]" in refused.stderr


@pytest.mark.parametrize("name", ["example.com/gpu", f"deviceclass.resource.kubernetes.io/{GPU}"])
@pytest.mark.parametrize("count", [1, 2])
def test_extended_resources(name: str, count: int) -> None:
    objects = objects_of_world([{"name": "g0"}], nodes=2)
    objects[0]["spec"]["extendedResourceName"] = "example.com/gpu"
    limits = {"limits": {name: str(count)}}
    asked = [pod("want", containers=[{"name": "main", "image": "pause", "resources": limits}])]
    assert fitting(objects, asked) == (["n1", "n2"] if count == 1 else [])


def test_node_selectors() -> None:
    objects = objects_of_world([{"name": "g0"}], nodes=2)
    objects[-1]["metadata"]["labels"] = {"zone": "b"}
    asked = asking({})
    asked[-1]["spec"]["nodeSelector"] = {"zone": "b"}
    assert fitting(objects, asked) == ["n2"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_partitions_of_fabric_manager(count: int) -> None:
    """Of four GPUs, the first and the last are a partition, and the two others."""
    driver = "gpu.nvidia.com"
    devices: list[Json] = [
        {
            "name": f"g{i}",
            "driver": driver,
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{i}"},
                "partition2": {"int": int(i in (1, 2))},
            },
        }
        for i in range(4)
    ]
    objects, asked = objects_of_world(devices), asking({"count": count, "deviceClassName": driver})
    assert fitting(objects, asked) == (["n1"] if count == 2 else [])
    if count == 2:
        (found,) = answers_of([("", one) for one in [*objects, *asked]], "preferred", None)
        results = found["allocations"][0]["devices"]["results"]
        assert [one["device"] for one in results] in (["g0", "g3"], ["g1", "g2"])
