"""`berth lint --snapshot` warns about a constraint on a PCIe root or NUMA node that no node of the snapshot meets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.worlds.lint_worlds import Json, class_, dra, lint, written
from tests.worlds.nic_worlds import GPU, MACHINES, NIC, counted, paired, slices

ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
SOFT = "remove the constraint: Berth then chooses devices that are near each other (weights.affinity)"


def cluster(*machines: str) -> list[Json]:
    """A node for each machine, with the slices of its drivers, and their classes."""
    found = [class_(driver, f"device.driver == '{driver}'") for driver in (GPU, NIC)]
    for number, name in enumerate(machines):
        node = f"n{number}"
        found.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        found += [{**dra("ResourceSlice", "", {}), **one} for one in slices(node, MACHINES[name])]
    return found


def template(requests: list[Json], attribute: str, covered: Sequence[str] = ()) -> Json:
    devices = {"requests": requests, "constraints": [{"matchAttribute": attribute, "requests": list(covered)}]}
    return dra("ResourceClaimTemplate", "gpu-nic", {"spec": {"devices": devices}})


POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train"},
    "spec": {
        "schedulerName": "berth-scheduler",
        "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": "gpu-nic"}],
        "containers": [{"name": "main", "image": "pause", "resources": {"claims": [{"name": "devices"}]}}],
    },
}


def findings(folder: Path, asked: Json, machines: list[str], *users: Json) -> list[Json]:
    options = ["--output", "json"]
    if machines:
        options += ["--snapshot", str(written(folder / "snapshot.yaml", *cluster(*machines)))]
    return [json.loads(line) for line in lint(folder, asked, *users, options=tuple(options)).stdout.splitlines()]


def job(name: str) -> Json:
    """A Job of the pod."""
    about = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    return {**about, "spec": {"template": {"spec": POD["spec"]}}}


@pytest.mark.parametrize(
    ("machines", "requests", "attribute", "problem"),
    [
        (["gb300"], counted(1, 1), ROOT, f"no NIC that matches the requests publishes {ROOT}"),
        (
            ["agent-against-driver"],
            counted(1, 1),
            ROOT,
            "no node has 1 matching GPU and 1 matching NIC on one PCIe root",
        ),
        (
            ["agent-against-driver", "gb300"],
            counted(2, 2),
            ROOT,
            "no node has 2 matching GPUs and 2 matching NICs on one PCIe root",
        ),
        (["hgx-one-to-one"], counted(4, 4), ROOT, "no node has 4 matching GPUs and 4 matching NICs on one PCIe root"),
        (["a100-efa"], paired(3), ROOT, "no node has 3 matching GPUs and 3 matching NICs on one PCIe root"),
        (["gb300"], counted(2, 2), NUMA, f"no GPU and no NIC that matches the requests publishes {NUMA}"),
    ],
)
def test_a_constraint_that_no_node_meets(
    machines: list[str], requests: list[Json], attribute: str, problem: str, tmp_path: Path
) -> None:
    (found,) = findings(tmp_path, template(requests, attribute), machines, POD)
    assert found["problem"] == problem
    assert found["correction"] == SOFT
    assert found["severity"] == "warning"
    assert found["where"].endswith(f"claim devices, matchAttribute {attribute}")


@pytest.mark.parametrize(
    ("machines", "requests", "covered"),
    [
        ([], counted(4, 4), ()),
        (["hgx-one-to-one"], counted(1, 1), ()),
        (["gb300", "hgx-one-to-one"], counted(1, 1), ()),
        (["a100-efa"], counted(2, 1), ()),
        (["agent-against-driver"], counted(1, 1), ("gpu",)),
    ],
)
def test_a_constraint_that_some_node_meets_or_that_is_not_between_drivers(
    machines: list[str], requests: list[Json], covered: Sequence[str], tmp_path: Path
) -> None:
    assert findings(tmp_path, template(requests, ROOT, covered), machines, POD) == []


@pytest.mark.parametrize(
    ("users", "named"),
    [
        ([POD], "x.yaml, document 2: Pod train, claim devices, "),
        ([job("nightly")], "x.yaml, document 2: Job nightly, claim devices, "),
        ([], "x.yaml: ResourceClaimTemplate gpu-nic, "),
    ],
)
def test_the_object_of_the_file_is_named(users: list[Json], named: str, tmp_path: Path) -> None:
    """Not a pod that the Job will create, and no pod for a template that none uses."""
    (found,) = findings(tmp_path, template(counted(1, 1), ROOT), ["gb300"], *users)
    assert found["where"].endswith(f"{named}matchAttribute {ROOT}")
