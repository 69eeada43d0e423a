"""Pods that are explained: helpers of the tests of explanations."""

from __future__ import annotations

from extender.console.decision_history import DecidedPod
from tests.eventually import eventually
from tests.running_berth import Berthing, pod


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
