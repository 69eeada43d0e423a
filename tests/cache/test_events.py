"""Events on the sandbox API server."""

from __future__ import annotations

from extender.api.object_meta import ObjectKey
from extender.cluster import ApiClient, Credentials, Writer
from extender.sandbox import Cluster


async def test_a_console_that_restarted_does_not_write_the_same_event_again() -> None:
    cluster, pod = Cluster(), ObjectKey("default", "p" * 253)
    async with cluster.serving() as api, ApiClient(Credentials(api, None, lambda: None)) as client:
        for note in ("fits nowhere", "fits nowhere", "another reason"):
            await Writer(client).create_event("Pod", pod, "uid", "NotPlaced", note)
    assert sorted(event["note"] for event in cluster.store.all("events")) == ["another reason", "fits nowhere"]
