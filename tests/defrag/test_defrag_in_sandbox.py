"""What berth defrag advises, carried out in the sandbox: the pods that waited run, and so do those that moved."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from extender.sandbox import Cluster, carried_machines, write_kubeconfig
from extender.sandbox.apiserver.registry import RESOURCES
from extender.sandbox.apiserver.versioned_store import ObjectStore
from tests.worlds.commands import berth_beside
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import claim, pod, served

Json = dict[str, Any]
RESERVE, FREE = "berth.dev/defrag=:NoSchedule", "berth.dev/defrag:NoSchedule-"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "owner", "controller": True}


def node_of(store: ObjectStore, name: str) -> str:
    found: Json = store.get("pods", ("default", name)) or {}
    return (found.get("spec") or {}).get("nodeName") or ""


def create(cluster: Cluster, name: str, gpus: int, node: str = "", **notes: str) -> None:
    """A pod of a ReplicaSet of its own, with these annotations of Berth; on one node, if it is named."""
    cluster.apply(claim(name, gpus))
    made = pod(name, name)
    made["metadata"]["ownerReferences"] = [{**OWNER, "name": f"{name}-owner"}]
    made["metadata"]["annotations"] = {f"berth.dev/{note.replace('_', '-')}": value for note, value in notes.items()}
    made["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    cluster.apply(made)


async def carried_out(cluster: Cluster, command: str) -> None:
    """A command of kubectl. The controller of a deleted pod creates one of another name at once."""
    words = shlex.split(command)
    if words[1:3] == ["taint", "nodes"]:
        *names, change = words[3:]
        for name in names:
            node = cluster.store["nodes", ("", name)]
            taints = [{"key": "berth.dev/defrag", "effect": "NoSchedule"}] if change == RESERVE else []
            assert change in (RESERVE, FREE)
            cluster.store.put("nodes", ("", name), {**node, "spec": {**node.get("spec", {}), "taints": taints}})
        return
    assert words[1:3] == ["-n", "default"]
    if words[3] == "wait":
        assert words[4:7] == ["--for=condition=PodScheduled", "--timeout=10m", "pod"]
        await eventually(lambda: all(node_of(cluster.store, name) for name in words[7:]))
    elif words[3] == "patch":
        assert (words[4], words[6:9]) == ("pod", ["--type", "json", "-p"])
        change = json.loads(words[9])
        cluster.api.registry.patch(RESOURCES["", "pods"], ("default", words[5]), change, "", strategic=False)
    else:
        assert words[3:5] == ["delete", "pod"]
        for name in words[5:]:
            cluster.delete_pod("default", name)
            cluster.store.remove("resourceclaims", ("default", name))
            create(cluster, f"{name}-again", 1)


@dataclass(frozen=True)
class World:
    """Pods that run, on which nodes, and those that wait. `again`: the restarted pods that find a place again."""

    run: dict[str, tuple[int, str]]
    wait: tuple[str, ...]
    notes: dict[str, str]
    ask: list[str]
    restarts: list[str]
    again: tuple[str, ...] = ()


WORLDS = {
    "one pod": World(
        {"a": (1, "n0"), "b": (1, "n1"), "c": (1, "n1"), "d": (4, "n2")},
        ("large",),
        {},
        ["pod", "large"],
        ["a"],
        ("a",),
    ),
    # The restarted pods find no other place, and are tried again while the gang pauses after its failed plans.
    "a gang": World(
        {"a": (1, "n0"), "b": (1, "n1"), "full": (8, "n2")},
        ("w-0", "w-1"),
        {"group": "w", "group_min": "2"},
        ["group", "w"],
        ["a", "b"],
    ),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
async def test_the_commands_give_what_the_proof_says(world: World, tmp_path: Path) -> None:
    cluster = Cluster(bookmark_seconds=0.5)
    for name in ("n0", "n1", "n2"):
        cluster.add_node(name, carried_machines()["hgx-h100-8"], {"kubernetes.io/hostname": name})
    async with served(cluster) as (api, scheduler):
        for name, (gpus, node) in world.run.items():
            create(cluster, name, gpus, node)
            await eventually(lambda name=name: node_of(cluster.store, name))
        for name in world.wait:
            create(cluster, name, 8, **world.notes)
        await eventually(lambda: len(scheduler.pending()) == len(world.wait))
        write_kubeconfig(tmp_path, api)
        words = ["defrag", *world.ask, "--kubeconfig", str(tmp_path / "kubeconfig"), "--output", "json"]
        code, out, err = await berth_beside(words)
        assert code == 0, err
        (found,) = json.loads(out)["advice"]
        assert [move["restart"] for move in found["moves"]] == [f"pod default/{name}" for name in world.restarts]
        for command in found["commands"]:
            await carried_out(cluster, command)
        assert sorted(node_of(cluster.store, name) for name in world.wait) == found["placed_on"]
        await eventually(lambda: all(node_of(cluster.store, f"{name}-again") for name in world.again))
        await eventually(lambda: len(scheduler.pending()) == len(world.restarts) - len(world.again))
