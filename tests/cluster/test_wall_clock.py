"""The timestamps of serve are those of its wall clock; `tests/worlds/chaos_clock.py` gives it a clock that jumps."""

from __future__ import annotations

import datetime

from extender.cluster import ApiClient, Credentials, now_rfc3339, seconds_since
from extender.policy import Policy
from extender.sandbox import Cluster, carried_machines
from extender.serve import Service
from extender.web.serve_app import Probes, ServeApp
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Serving, claim, pod
from tests.worlds.supervised_worlds import client_of

LONG_AGO = datetime.datetime(2001, 2, 3, 4, 5, 6, 7, datetime.UTC)


def test_timestamps_are_of_the_given_clock() -> None:
    assert now_rfc3339(lambda: LONG_AGO) == "2001-02-03T04:05:06Z"
    assert seconds_since("2001-02-03T04:05:00Z", lambda: LONG_AGO) == 6.000007


async def test_serve_writes_the_time_of_its_clock() -> None:
    cluster = Cluster(bookmark_seconds=0.5)
    cluster.add_node("n1", carried_machines()["t4-4"])
    async with (
        cluster.serving() as api,
        ApiClient(Credentials(api, None, lambda: None)) as client,
        Service(client, Policy(), wall_clock=lambda: LONG_AGO) as service,
        client_of(ServeApp(service, Probes(service))) as http,
    ):
        b = Serving(cluster, ServeApp(service, Probes(service)), http, api)
        await eventually(lambda: not service.informers.not_ready)
        cluster.apply(claim("c"))
        cluster.apply(pod("p", "c"))
        await b.settled()
        assert (await b.filter("p"))["NodeNames"] == ["n1"]
        assert await b.bind("p", "n1") == ""
        allocation = cluster.store["resourceclaims", ("default", "c")]["status"]["allocation"]
        assert allocation["allocationTimestamp"] == "2001-02-03T04:05:06Z"
