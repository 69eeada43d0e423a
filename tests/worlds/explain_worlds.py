"""Pods that are explained: helpers of the tests of explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from extender.api.fields import Json
from extender.api.resource_claims import GROUP_ANNOTATION
from extender.cli.cluster_objects import dump_of
from extender.cli.explain_command import _offline
from extender.cluster import Writer
from extender.console import Brief, DecisionHistory, Explainer, Questions
from extender.console.decision_history import DecidedPod
from extender.console.fleet_overview import FleetOverview, FleetSampler
from extender.policy import Policy
from tests.worlds.eventually import eventually
from tests.worlds.filled_caches import class_of_driver, device_slice
from tests.worlds.running_berth import Berthing, pod, status_in_use


async def run_pod(b: Berthing, name: str, claims: list[dict], annotations: dict[str, str] | None = None) -> str:
    """Create claims and pod, filter, and bind to the first node. The answer is the node or ''."""
    for one in claims:
        b.cluster.apply(one)
    b.cluster.apply(pod(name, *(c["metadata"]["name"] for c in claims), annotations=annotations))
    await b.settled()
    names = (await b.filter(name))["NodeNames"]
    if names:
        assert await b.bind(name, names[0]) == ""
        await b.settled()
        return names[0]
    return ""


async def decided(b: Berthing, name: str) -> DecidedPod:
    """The decision about a bound pod, once the console has read it."""
    uid = b.pod(name)["metadata"]["uid"]
    return await eventually(lambda: b.console.history.entry(uid), f"the decision about {name}")


async def refused(b: Berthing, name: str, message: str, namespace: str = "default") -> None:
    """Write the condition of a pod that kube-scheduler could not place, and wait until the console's watch shows it."""
    obj = b.cluster.store["pods", (namespace, name)]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    status = {**obj.get("status", {}), "conditions": [condition]}
    b.cluster.store.put("pods", (namespace, name), {**obj, "status": status})
    uid, pods = obj["metadata"]["uid"], b.console.cache.store.pods
    await eventually(lambda: uid in pods and pods[uid].unschedulable == message, f"the condition of {name}")


async def why(b: Berthing, name: str, **params: str) -> dict:
    reply = await b.client.get(f"/v1/explain/default/{name}", params=params)
    assert reply.status_code == 200, reply.text
    return reply.json()


class Counting(Explainer):
    """Counts its explanations in brief. `clock` returns seconds; while it stands still, no limit of work ends one."""

    def __init__(self, b: Berthing, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(b.console.cache, b.console.cluster.evaluator, Policy(), clock)
        self.count = 0

    def brief(self, *args: Any, **kwargs: Any) -> Brief | None:
        self.count += 1
        return super().brief(*args, **kwargs)


def questions(b: Berthing, explainer: Explainer) -> Questions:
    """Questions to another explainer than that of the console."""
    console = b.console
    return Questions(explainer, console.history, Writer(console.client), console.refreshed)


def overview_of(b: Berthing, explainer: Explainer) -> FleetOverview:
    """The data of the page with another explainer, while its clock stands still."""
    cache = b.console.cache
    sampler = FleetSampler(cache, b.console.refreshed, lambda: 5.0)
    return FleetOverview(cache, DecisionHistory(), explainer, sampler, lambda: 5.0)


GROUP_PATH = "/v1/explain/group/default/job"


async def group_explained(b: Berthing, **params: str) -> Json:
    reply = await b.client.get(GROUP_PATH, params=params)
    assert reply.status_code == 200, reply.text
    (found,) = reply.json()
    assert isinstance(found, dict)
    return found


GPU = "gpu.example.com"


def objects_of_world(
    devices: list[Json], held: Mapping[str, list[str]] = MappingProxyType({}), nodes: int = 1, **slice_: Any
) -> list[Json]:
    """Nodes n1 and so on, each with the same devices, and a class per driver. A device may have a `driver`.

    `held` are claims of n1 with their devices, each of a pod of its name; NAME/GROUP names a group, too. A device
    ending in * is held with admin access.
    """
    drivers = dict.fromkeys(device.get("driver", GPU) for device in devices)
    driver_of = {device["name"]: device.get("driver", GPU) for device in devices}
    found: list[Json] = []
    for driver in drivers:
        found.append(class_of_driver(driver))
        own = [{k: v for k, v in d.items() if k != "driver"} for d in devices if d.get("driver", GPU) == driver]
        found += [device_slice(f"n{number + 1}", driver, own, **slice_) for number in range(nodes)]
    found += [{"kind": "Node", "metadata": {"name": f"n{number + 1}"}} for number in range(nodes)]
    for title, names in held.items():
        name, _, group = title.partition("/")
        results = []
        for device in names:
            bare = device.rstrip("*")
            one = {"request": "r", "driver": driver_of[bare], "pool": "n1", "device": bare}
            results.append({**one, **({"adminAccess": True} if device != bare else {})})
        found.append(held_claim(name, results, group))
    return [{"apiVersion": "v1" if one["kind"] == "Node" else "resource.k8s.io/v1", **one} for one in found]


def held_claim(name: str, results: list[Json], group: str = "") -> Json:
    """A claim with these devices that the pod of the same name uses."""
    metadata: Json = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    if group:
        metadata["annotations"] = {GROUP_ANNOTATION: group}
    status = status_in_use(results, {name: f"pod-{name}"})
    requests = [{"name": "r", "exactly": {"deviceClassName": GPU}}]
    spec = {"devices": {"requests": requests}}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": spec, "status": status}


def asking(*requests: Json, constraints: Sequence[Json] = (), **annotations: str) -> list[Json]:
    """The pod `want` with a claim of these requests. A request without a name is called r."""
    named = []
    for one in requests:
        rest = {key: value for key, value in one.items() if key != "name"}
        form = rest if "firstAvailable" in rest else {"exactly": {"deviceClassName": GPU, **rest}}
        named.append({"name": one.get("name", "r"), **form})
    devices: Json = {"requests": named, **({"constraints": list(constraints)} if constraints else {})}
    asked: Json = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": devices}}
    return [
        {**asked, "metadata": {"name": "asked", "namespace": "default"}},
        pod("want", "asked", annotations=annotations),
    ]


def explained(objects: list[Json], asked: list[Json], free: Sequence[str] = (), **options: Any) -> Json:
    """What `berth explain -f` says about the one pod of `asked` on a snapshot of `objects`."""
    cache, question = dump_of(objects), {"objects": asked, "without": [], "free": list(free), "narrate": ""}
    (found,) = _offline(cache, None, options.get("policy"), question)
    return found
