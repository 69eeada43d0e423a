"""The console keeps the jobs that it saw end, as a file of jobs for berth replay."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.api.object_meta import ObjectKey
from extender.api.pods import decode_pod
from extender.api.resource_claims import decode_claim
from extender.console.job_history import JobHistory
from extender.replay import Job, fleet_of, placer_of, read_jobs, run_replay
from extender.replay.published_traces import TRACES
from extender.sandbox import parse_nodes
from tests.worlds.applications import console, serve
from tests.worlds.cache_worlds import many_nodes
from tests.worlds.eventually import eventually
from tests.worlds.process_worlds import free_port
from tests.worlds.running_berth import TWO_NODES, claim, cluster_of, pod

EPOCH = 1_767_225_600.0
SNAPSHOT = many_nodes().snapshot()
GANG = {"berth.dev/group": "secret-team", "berth.dev/group-min": "2", "berth.dev/group-required": "clique"}


async def test_jobs_that_end_are_a_file_for_a_replay(tmp_path: Path) -> None:
    cluster, pages = cluster_of(TWO_NODES), free_port()
    async with cluster.serving() as api, serve(cluster, api) as one, console(api, pages) as people:
        for name, count in (("p", 2), ("q", 1), ("runs", 1)):
            await one.create(claim(name, count), pod(name, name))
            assert await one.bind(name, (await one.filter(name))["NodeNames"][0]) == ""

        async def bound() -> bool:
            return len((await people.get("/v1/fleet")).json()["decisions"]) == 3

        await eventually(bound, "the console has read the three pods")
        assert (await people.get("/v1/jobs.jsonl")).text == ""
        for name in ("p", "q"):
            cluster.store.remove("resourceclaims", ("default", name))

        async def ended() -> httpx.Response | None:
            found = await people.get("/v1/jobs.jsonl")
            return found if found.text.count("\n") == 2 else None

        reply = await eventually(ended, "two jobs have ended")
        assert reply.headers["content-disposition"] == 'attachment; filename="jobs.jsonl"'
        jobs = await asyncio.to_thread(saved, tmp_path / "jobs.jsonl", reply.content)
        outcome = await asyncio.to_thread(run_replay, fleet_of(parse_nodes("1xt4-4")), jobs, placer_of("berth"))
        assert (outcome.started, sorted(job.all_gpus for job in jobs)) == (2, [1, 2])


def saved(path: Path, content: bytes) -> list[Job]:
    path.write_bytes(content)
    return list(fleet_of(parse_nodes("1xt4-4")).counted(read_jobs(path, TRACES, "", Counter()).jobs))


class Seen:
    """A history, and the binds and ends of pods that it is told."""

    def __init__(self) -> None:
        self.now = EPOCH
        self.history = JobHistory(lambda: self.now)

    def binds(
        self, name: str, *, users: tuple[str, ...] = (), notes: dict[str, str] | None = None, **spec: Any
    ) -> None:
        created = datetime.datetime.fromtimestamp(self.now, datetime.UTC).isoformat()
        obj = pod(name, name, annotations=notes, **spec)
        obj["metadata"] |= {"uid": name, "creationTimestamp": created}
        given = claim(name, 2)
        given["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"key": "secret"}}}]
        reserved = [{"resource": "pods", "name": one, "uid": one} for one in users or (name,)]
        found = decode_claim({**given, "status": {"reservedFor": reserved}})
        self.history.bound(decode_pod(obj), [found], SNAPSHOT)

    def ends(self, name: str) -> None:
        self.history.claim_changed(ObjectKey("default", name), None)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.history.lines().splitlines()]


def test_a_gang_is_one_job_that_runs_from_its_last_bind_to_its_last_end(tmp_path: Path) -> None:
    seen = Seen()
    seen.now = EPOCH + 10
    seen.binds("a", notes=GANG)
    seen.now = EPOCH + 20
    seen.binds("b", notes=GANG)
    seen.now = EPOCH + 100
    seen.ends("a")
    assert seen.lines == []
    seen.now = EPOCH + 120
    seen.ends("b")
    (job,) = saved(tmp_path / "jobs.jsonl", seen.history.lines())
    assert (job.pods, job.duration, job.all_gpus, job.group_required) == (2, 100, 4, "clique")
    assert b"secret" not in seen.history.lines(), "neither names nor parameters of drivers"


def test_members_of_a_gang_that_differ_are_parts_of_one_job(tmp_path: Path) -> None:
    seen = Seen()
    seen.binds("a", notes=GANG)
    seen.binds("b", notes=GANG, tolerations=[{"key": "team", "operator": "Exists"}])
    seen.ends("a")
    assert seen.lines == []
    seen.ends("b")
    (job,) = saved(tmp_path / "jobs.jsonl", seen.history.lines())
    (part,) = job.parts
    assert (job.all_pods, job.all_gpus, job.group_required, job.spec) == (2, 4, "clique", None)
    assert part.spec == {"tolerations": [{"key": "team", "operator": "Exists"}]}


def test_a_job_keeps_what_limits_its_nodes(tmp_path: Path) -> None:
    seen = Seen()
    affinity = {"nodeSelectorTerms": [{"matchExpressions": [{"key": k, "operator": "Exists"}]} for k in ("b", "c")]}
    seen.binds(
        "p",
        notes={"berth.dev/topology": "product"},
        nodeSelector={"a": "1"},
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}},
        tolerations=[{"key": "team", "operator": "Exists"}],
    )
    seen.ends("p")
    (job,) = saved(tmp_path / "jobs.jsonl", seen.history.lines())
    assert job.topology == "product"
    assert job.spec is not None
    assert job.spec["tolerations"] == [{"key": "team", "operator": "Exists"}]
    terms = job.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[one["key"] for one in term["matchExpressions"]] for term in terms] == [["a", "b"], ["a", "c"]]


def test_a_job_keeps_bandwidths_and_the_levels_of_kueue(tmp_path: Path) -> None:
    seen = Seen()
    own = {"berth.dev/min-bandwidth-gbps": "100", "berth.dev/bandwidth": "2e2", "berth.dev/expected-memory": "40Gi"}
    group = {name: text for name, text in GANG.items() if name != "berth.dev/group-required"}
    level = {"kueue.x-k8s.io/podset-required-topology": "example.com/rack"}
    for name in "ab":
        seen.binds(name, notes=group | own | level)
    for name in "ab":
        seen.ends(name)
    (job,) = saved(tmp_path / "jobs.jsonl", seen.history.lines())
    assert (job.min_bandwidth_gbps, job.bandwidth, job.expected_memory) == (100, 200, 40 << 30)
    assert (job.pods, job.group_required) == (2, "example.com/rack")


def test_pods_that_share_a_claim_are_left_out() -> None:
    seen = Seen()
    seen.binds("p", users=("p", "q"))
    seen.ends("p")
    assert seen.lines == []


def test_jobs_are_in_the_order_of_their_arrival_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by bytes, with names and times of their own."""
    monkeypatch.setattr("extender.console.job_history.MAX_JOBS", 3)
    seen = Seen()
    for number in range(5):
        seen.now = EPOCH + number
        seen.binds(f"p{number}")
    for number in (4, 0, 3, 1, 2):
        seen.now += 10
        seen.ends(f"p{number}")
    assert [(one["name"], one["arrival"], one["duration"]) for one in seen.lines] == [
        ("job-1", 0.0, 43.0),
        ("job-2", 1.0, 52.0),
        ("job-3", 2.0, 31.0),
    ]
    monkeypatch.undo()
    monkeypatch.setattr("extender.console.job_history.MAX_BYTES", 1000)
    small = Seen()
    for number in range(50):
        small.binds(f"p{number}", notes={"berth.dev/topology": "required"})
        small.ends(f"p{number}")
    assert 0 < len(small.history.lines()) <= 1000 + 50 * len(small.lines)
    assert 1 < len(small.lines) < 50


def test_the_jobs_that_run_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.console.job_history.MAX_BYTES", 1000)
    seen = Seen()
    for number in range(50):
        seen.binds(f"p{number}")
    for number in range(50):
        seen.ends(f"p{number}")
    assert 1 < len(seen.lines) < 50
    seen.now += 100
    seen.binds("later")  # what has ended makes room
    seen.ends("later")
    assert seen.lines[-1]["arrival"] == 100
