"""Clusters that Berth did not schedule, as a case of tests/cases/assess.yaml describes them: objects, and a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.assess import pod as pod_objects
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, nic_slice, node_object
from tests.worlds.commands import berth

Json = dict[str, Any]
CASES: list[Json] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "assess.yaml").read_text())
GPU_CLASS: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
}


RESULT = "status.allocation.devices.results.0"  # of a claim


def objects_of(case: Json) -> list[Json]:
    """The objects of a case. `agent`: Berth's agent publishes the links of all nodes."""
    found = [{**GPU_CLASS, "spec": GPU_CLASS["spec"] | case.get("class", {})}]
    for name, described in case["nodes"].items():
        found += _node(name, {"machine": described} if isinstance(described, str) else described, case)
    for described in case.get("pods", ()):
        found += _pod(described)
    return found


def _node(name: str, described: Json, case: Json) -> Iterator[Json]:
    machine = carried_machines()[described["machine"]]
    node = node_object(name, machine, described.get("labels", {}))
    node["status"]["allocatable"] |= described.get("plugin", {})
    if "taint" in described:
        node["spec"] = {"taints": [{"key": described["taint"], "effect": "NoSchedule"}]}
    if described.get("cordoned"):
        node["spec"] = {"unschedulable": True}
    yield node
    if "plugin" in described and not described.get("slices"):
        return
    gpus = gpu_slice(name, machine)
    for index in described.get("tainted", ()):
        gpus["spec"]["devices"][index]["taints"] = [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
    yield gpus
    if machine.nics:
        yield nic_slice(name, machine)
    if case.get("agent"):
        yield fabric_slice(name, machine)


def _pod(described: Json) -> list[Json]:
    name, gpus, node = described["name"], described.get("gpus", []), described.get("node", "")
    count = described.get("count", len(gpus))
    pod, claim = pod_objects(name, count, node, gpus, described.get("group", ""))
    pod["metadata"].setdefault("annotations", {}).update(described.get("annotations", {}))
    if "nics" in described:
        claim["spec"]["devices"]["requests"].append(
            {"name": "nic", "exactly": {"deviceClassName": "dranet.net", "count": len(described["nics"])}}
        )
        nics = ({"request": "nic", "driver": "dra.net", "pool": node, "device": one} for one in described["nics"])
        claim["status"]["allocation"]["devices"]["results"] += nics
    pod["spec"]["containers"][0]["resources"]["requests"] |= described.get("requests", {})
    pod["metadata"]["labels"] |= described.get("labels", {})
    if "selector" in described:
        pod["spec"]["nodeSelector"] = described["selector"]
    if "told" in described:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pod["status"]["conditions"] = [{**condition, "message": described["told"]}]
    if "plugin" in described:
        del pod["spec"]["resourceClaims"]
        pod["metadata"]["namespace"] = described.get("namespace", "default")
        pod["spec"]["containers"][0]["resources"]["requests"] |= described["plugin"]
        if "init" in described:
            pod["spec"]["initContainers"] = [{"name": "init", "resources": {"requests": described["init"]}}]
        return [pod]
    return [pod, claim]


def snapshot_file(folder: Path, objects: list[Json], name: str = "snapshot.json") -> Path:
    """A file of these objects, as kubectl and berth snapshot write it."""
    path = folder / name
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return path


def assessed(path: Path, *words: str, replays: bool = False) -> Json:
    """The JSON of berth assess; without a replay, which takes most of the time, unless it `replays`."""
    no_replay = [] if replays else ["--no-replay"]
    code, out, err = berth(["assess", str(path), *no_replay, "--output", "json", *words])
    assert code == 0, err
    found: Json = json.loads(out)
    return found


def changed(objects: list[Json], kind: str, name: str, path: str, value: object) -> None:
    """Set a field of an object; a number in the path is a position."""
    at: Any = next(one for one in objects if one["kind"] == kind and one["metadata"]["name"].startswith(name))
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in parents:
        at = at[part]
    at[last] = value
