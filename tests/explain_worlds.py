"""Pods that are explained: helpers of the tests of explanations."""

from __future__ import annotations

from extender.console.decision_history import PodHistory
from extender.model import ObjectKey
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


async def recorded(b: Berthing, name: str) -> PodHistory:
    """The console's history of a pod, once a record of the pod has arrived."""
    return await eventually(lambda: b.console.history.newest(ObjectKey("default", name)), f"a record of {name}")


async def why(b: Berthing, name: str, **params: str) -> dict:
    reply = await b.client.get(f"/v1/explain/default/{name}", params=params)
    assert reply.status_code == 200, reply.text
    return reply.json()
