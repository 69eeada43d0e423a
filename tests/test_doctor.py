"""`berth doctor` names what hurts and what mends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import yaml

from extender.cli.doctor import configuration, waiting
from extender.sandbox.cluster import Cluster
from extender.sandbox.machines import carried_machines, gpu_slice, node_object
from tests.berthing import claim, pod
from tests.test_docs import ROOT

CONFIG = (ROOT / "scheduler-config" / "berth-scheduler.yaml").read_text()


def changed(edit) -> str:
    config = yaml.safe_load(CONFIG)
    edit(config)
    return yaml.safe_dump(config)


def test_the_project_s_own_configuration_is_healthy() -> None:
    assert list(configuration(CONFIG)) == []


@pytest.mark.parametrize(("edit", "words"), [
    (lambda c: c.pop("percentageOfNodesToScore"), "percentageOfNodesToScore is None"),
    (lambda c: c["profiles"][0]["plugins"].pop("filter"), "DynamicResources is on at filter"),
    (lambda c: c["extenders"].pop(), "filterVerb and bindVerb"),
    (lambda c: c["extenders"][0].update(nodeCacheCapable=False), "nodeCacheCapable is False"),
    (lambda c: c["extenders"][1].update(ignorable=True), "ignorable is True"),
    (lambda c: c["extenders"][0].update(managedResources=[{"name": "nvidia.com/gpu"}]), "managedResources"),
])
def test_traps_of_the_configuration(edit, words: str) -> None:
    (found,) = configuration(changed(edit))
    assert words in found.what and found.why and found.mend


def test_pods_that_name_another_scheduler() -> None:
    mine, other = pod("a", "c"), pod("b", "c", schedulerName="default-scheduler")
    (found,) = waiting([mine, other])
    assert "default/b" in found.what and "default/a" not in found.what


async def test_a_cluster_with_troubles(tmp_path: Path) -> None:
    cluster = Cluster()
    machine = carried_machines()["t4-4"]
    cluster.add_node("n1", machine)
    cluster.apply(node_object("n2", machine, {}))
    cluster.apply(gpu_slice("n2", machine))
    for name in ("x", "y"):
        one = claim(name)
        one["metadata"]["uid"] = name
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
        one["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"resource": "pods", "name": name, "uid": name}]}
        cluster.store.put("resourceclaims", ("default", name), one)
    async with cluster.serving() as api:
        config = {"clusters": [{"name": "c", "cluster": {"server": api}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                  "current-context": "c", "users": [{"name": "u", "user": {}}]}
        (tmp_path / "k").write_text(yaml.safe_dump(config))
        (tmp_path / "s").write_text(CONFIG)
        import asyncio

        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "extender", "doctor", "--kubeconfig", str(tmp_path / "k"), "--scheduler-config", str(tmp_path / "s"), "--output", "json",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = await process.communicate()
    found = [orjson.loads(line)["what"] for line in out.splitlines()]
    assert process.returncode == 1, err
    assert len(found) == 3, found
    assert "1 of 2 GPU nodes have no fresh agent: n2" in found[0]
    assert "2 claims were allocated by another scheduler" in found[1] and "gpu-0 is allocated to default/x, default/y" in found[2]
