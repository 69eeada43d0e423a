"""What berth defrag advises, carried out in the sandbox: the pods that waited run, and so do those that moved."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

from extender.entry.all_in_one import both
from extender.sandbox import Cluster, Scheduler, carried_machines, listening, write_kubeconfig
from extender.sandbox.apiserver.versioned_store import ObjectStore
from tests.worlds.commands import berth_beside
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import claim, patient, pod
from tests.worlds.skipping_loop import clock

Json = dict[str, Any]
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner", "uid": "owner", "controller": True}


def node_of(store: ObjectStore, name: str) -> str:
    found: Json = store.get("pods", ("default", name)) or {}
    return (found.get("spec") or {}).get("nodeName") or ""


def create(cluster: Cluster, name: str, gpus: int, node: str = "") -> None:
    """A pod of a ReplicaSet; on one node, if it is named."""
    cluster.apply(claim(name, gpus))
    made = pod(name, name)
    made["metadata"]["ownerReferences"] = [OWNER]
    made["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    cluster.apply(made)


def carried_out(cluster: Cluster, command: str) -> None:
    """A command of kubectl. The controller of a deleted pod creates one of another name at once."""
    words = shlex.split(command)
    if words[1] in ("cordon", "uncordon"):
        for name in words[2:]:
            node = cluster.store["nodes", ("", name)]
            spec = {**node.get("spec", {}), "unschedulable": words[1] == "cordon"}
            cluster.store.put("nodes", ("", name), {**node, "spec": spec})
    else:
        assert words[1:5] == ["-n", "default", "delete", "pod"]
        for name in words[5:]:
            cluster.delete_pod("default", name)
            cluster.store.remove("resourceclaims", ("default", name))
            create(cluster, f"{name}-again", 1)


async def test_the_commands_give_what_the_proof_says(tmp_path: Path) -> None:
    cluster = Cluster(bookmark_seconds=0.5)
    for name in ("n0", "n1", "n2"):
        cluster.add_node(name, carried_machines()["hgx-h100-8"], {"kubernetes.io/hostname": name})
    async with (
        cluster.serving() as api,
        both(api, patient(), clock=clock()) as (app, _),
        listening(app, "127.0.0.1", 0) as url,
    ):
        await eventually(lambda: not app.service.informers.not_ready)
        scheduler = Scheduler(cluster.store, url)
        task = asyncio.create_task(scheduler.run())
        for name, gpus, node in (("a", 1, "n0"), ("b", 1, "n1"), ("c", 1, "n1"), ("d", 4, "n2")):
            create(cluster, name, gpus, node)
            await eventually(lambda name=name: node_of(cluster.store, name))
        create(cluster, "large", 8)
        await eventually(lambda: scheduler.pending)
        write_kubeconfig(tmp_path, api)
        words = ["defrag", "pod", "large", "--kubeconfig", str(tmp_path / "kubeconfig"), "--output", "json"]
        code, out, err = await berth_beside(words)
        assert code == 0, err
        (found,) = json.loads(out)["advice"]
        assert [move["restart"] for move in found["moves"]] == ["pod default/a"]
        for command in found["commands"]:
            carried_out(cluster, command)
        await eventually(lambda: node_of(cluster.store, "large") and node_of(cluster.store, "a-again"))
        assert node_of(cluster.store, "large") == found["placed_on"][0] == "n0"
        assert node_of(cluster.store, "a-again") in ("n1", "n2")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
