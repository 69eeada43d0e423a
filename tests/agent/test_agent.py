"""The agent and the real pynvml on a stand-in for the NVML library, fed from machine files and recorded answers."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from extender.agent.reader_process import AgentApp, ReaderProcess, as_reading
from extender.agent.slice_publisher import SlicePublisher, quantize
from extender.cluster import ApiClient, Credentials
from extender.runtime.supervisor import Supervisor
from extender.sandbox import Cluster, carried_machines, fabric_slice, load_machine, write_kubeconfig
from extender.sandbox.apiserver.registry import RESOURCES
from extender.sandbox.machines import node_object
from extender.topology.sets import bandwidth, ranked
from tests.fakes import nvml as library
from tests.fakes.nvml import Library
from tests.worlds.eventually import eventually
from tests.worlds.filled_caches import read_agent
from tests.worlds.process_starter import start
from tests.worlds.running_berth import drop_fields
from tests.worlds.shared_folder import SHARED, needs
from tests.worlds.supervised_worlds import Breakable

MACHINES = carried_machines()
SLICES = RESOURCES["resource.k8s.io", "resourceslices"]
NAME = ("", "fabric.berth.dev-n")


@asynccontextmanager
async def served(nvml: Library) -> AsyncIterator[tuple[Cluster, ApiClient]]:
    cluster = Cluster()
    cluster.apply(node_object("n", nvml.machine, {}))
    async with cluster.serving() as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        yield cluster, client


@asynccontextmanager
async def publishing(nvml: Library, **times: Any) -> AsyncIterator[tuple[Cluster, SlicePublisher]]:
    async with served(nvml) as (cluster, client):
        yield cluster, SlicePublisher(client, "n", library.reading(nvml), **times)


def published(cluster: Cluster) -> Any:
    """The fabric of the slice, None where there is none."""
    obj = cluster.store.get("resourceslices", NAME)
    return read_agent(obj)[0] if obj is not None else None


@pytest.mark.parametrize("name", sorted(MACHINES))
async def test_published_fabric_is_that_of_the_machine(name: str) -> None:
    """Links, switches, rates, distances, NUMA and memory arrive as the file has them."""
    async with publishing(Library(MACHINES[name])) as (cluster, agent):
        await agent.step()
        found, wanted = published(cluster), read_agent(fabric_slice("n", MACHINES[name]))[0]
        assert (found.graph.links, found.graph.switch_links) == (wanted.graph.links, wanted.graph.switch_links)
        assert (found.graph.link_gbps, found.graph.pcie_gbps) == (wanted.graph.link_gbps, wanted.graph.pcie_gbps)
        assert found.graph.numa == wanted.graph.numa
        places = [(gpu.numa, gpu.pcie_root) for gpu in found.gpus]
        assert places == [(gpu.numa, gpu.pcie_root) for gpu in wanted.gpus]
        assert found.uuids == wanted.uuids
        obj = cluster.store["resourceslices", NAME]
        assert all(d["taints"][0]["effect"] == "NoSchedule" for d in obj["spec"]["devices"])
        assert obj["metadata"]["ownerReferences"][0]["kind"] == "Node"
        assert all(
            len(d["attributes"]) <= 32 and all(len(str(next(iter(a.values())))) <= 64 for a in d["attributes"].values())
            for d in obj["spec"]["devices"]
        )


async def test_writes_on_change_only() -> None:
    """The agent ignores small changes of the memory in use, and writes a real change once."""
    nvml = Library(MACHINES["hgx-h100-8"])
    async with publishing(nvml) as (_, agent):
        for tremble in (0, 50, 100, 30, 80):
            nvml.free[0] = nvml.machine.memory_bytes - (tremble << 20)
            await agent.step()
        assert agent.writes == 1
        nvml.free[0] = 10 << 30
        await agent.step()
        await agent.step()
        assert agent.writes == 2


async def test_server_that_drops_taints_is_not_written_to_again_and_again() -> None:
    """1.34 and 1.35 by default (DRADeviceTaints is off)."""
    nvml = Library(MACHINES["t4-4"])
    async with publishing(nvml) as (cluster, agent):
        drop_fields(cluster, drop_taints)
        for _ in range(3):
            await agent.step()
        assert agent.writes == 1
        nvml.fields[0][230] = 1
        await agent.step()
        await agent.step()
        assert agent.writes == 2
        assert not any(device.get("taints") for device in cluster.store["resourceslices", NAME]["spec"]["devices"])


def drop_taints(resource: str, obj: dict) -> None:
    if resource == "resourceslices":
        for device in obj["spec"]["devices"]:
            device.pop("taints", None)


def test_hysteresis_holds_at_an_edge() -> None:
    """A free memory that moves around the edge of a step of 256 MiB."""
    reading, edge = as_reading(library.reader(Library(MACHINES["t4-4"])).read()[0]), 10 * 256 << 20
    first = quantize((replace(reading, memory_free_bytes=edge),), ())
    for wobble in (-100 << 20, 100 << 20, -200 << 20):
        moved = replace(reading, memory_free_bytes=edge + wobble)
        assert quantize((moved,), first)[0].memory_free_bytes == edge


CODES = [
    library.UNINITIALIZED, library.NOT_SUPPORTED, library.NO_PERMISSION, library.DRIVER_NOT_LOADED,
    library.FUNCTION_NOT_FOUND, library.GPU_IS_LOST, library.RESET_REQUIRED, library.VERSION_MISMATCH,
    library.NOT_READY, library.UNKNOWN, 12345,
]  # fmt: skip


@pytest.mark.parametrize("call", library.OF_DEVICES)
async def test_any_call_may_fail(call: str) -> None:
    """A value that NVML does not give stays unknown and causes no error. None: the library is old and lacks it."""
    wanted = read_agent(fabric_slice("n", MACHINES["dgx1-v100"]))[0].graph
    full = (1 << wanted.size) - 1
    async with served(Library(MACHINES["dgx1-v100"])) as (cluster, client):
        for code in (*CODES, None):
            nvml = Library(MACHINES["dgx1-v100"])
            nvml.missing, nvml.errors = ({call}, {}) if code is None else (set(), {call: code})
            await SlicePublisher(client, "n", library.reading(nvml)).step()
            found = published(cluster)
            assert nvml.begun == 1
            if found is None:
                continue
            cluster.api.registry.delete(SLICES, NAME)
            for count in (2, 4, 8):
                most = bandwidth(wanted, ranked(wanted, full, count)[0])
                best = bandwidth(found.graph, ranked(found.graph, (1 << found.graph.size) - 1, count)[0])
                assert best <= max(most, found.graph.pcie_gbps) or call == "nvmlDeviceGetNvLinkRemotePciInfo_v2"


CLIQUE = "3f6d0b9e-1c55-4a8e-9d1a-6a2f00000001.32766"


@pytest.mark.parametrize(
    ("machine", "options", "down", "fact", "value"),
    [
        ("hgx-h100-8", {"hidden_switch": True}, (), "graph.switch_links", (18,) * 8),
        ("hgx-h100-8", {}, range(6), "graph.switch_links", (18, 18, 18, 12, 18, 18, 18, 18)),
        ("gb200-nvl72-tray", {"clique": CLIQUE}, (), "clique", CLIQUE),
    ],
    ids=["a hidden switch is still a switch", "links that are down do not count", "the clique of a rack"],
)
async def test_facts_of_a_machine(machine: str, options: Any, down: Sequence[int], fact: str, value: object) -> None:
    nvml = Library(MACHINES[machine], **options)
    nvml.down = {(3, link) for link in down}
    async with publishing(nvml) as (cluster, agent):
        await agent.step()
        assert attrgetter(fact)(published(cluster)) == value


async def test_failed_readings_make_the_slice_stale_until_one_succeeds() -> None:
    nvml = Library(MACHINES["dgx1-v100"])
    async with publishing(nvml) as (cluster, agent):
        await agent.step()
        nvml.errors["nvmlDeviceGetCount_v2"] = library.UNINITIALIZED
        with capture_logs() as logs:
            await agent.step()
            await agent.step()
        assert [(line["event"], line["why"]) for line in logs] == [("readings are stale", "Uninitialized")]
        assert published(cluster) is None
        nvml.errors.clear()
        await agent.step()
        assert published(cluster) is not None


async def test_a_node_without_nvml_has_no_stale_readings() -> None:
    """It never had one. The log says so, and the cluster gets no slice."""
    nvml = Library(MACHINES["t4-4"])
    nvml.errors["nvmlInitWithFlags"] = library.DRIVER_NOT_LOADED
    async with publishing(nvml) as (cluster, agent):
        with capture_logs() as logs:
            for _ in range(5):
                await agent.step()
        assert [(line["event"], line["why"]) for line in logs] == [("there is no reading yet", "Driver Not Loaded")]
        assert published(cluster) is None


async def test_an_agent_that_has_read_nothing_leaves_the_slice_of_the_process_before() -> None:
    nvml = Library(MACHINES["t4-4"])
    async with served(nvml) as (cluster, client):
        await SlicePublisher(client, "n", library.reading(nvml)).step()
        known = cluster.store["resourceslices", NAME]
        nvml.errors["nvmlInitWithFlags"] = library.DRIVER_NOT_LOADED
        agent = SlicePublisher(client, "n", library.reading(nvml))
        for _ in range(3):
            await agent.step()
        assert cluster.store["resourceslices", NAME] == known
        nvml.errors.clear()
        await agent.step()
        assert len(cluster.store["resourceslices", NAME]["spec"]["devices"]) == 4


@pytest.mark.parametrize("errors", [{}, {"nvmlInitWithFlags": library.DRIVER_NOT_LOADED}])
async def test_a_node_that_the_cluster_lacks_is_named(errors: dict[str, int]) -> None:
    nvml = Library(MACHINES["t4-4"])
    nvml.errors |= errors
    async with served(nvml) as (cluster, client):
        agent = SlicePublisher(client, "nope", library.reading(nvml))
        with capture_logs() as logs:
            await agent.step()
        problems = [line["problem"] for line in logs if "problem" in line]
        assert problems == ["the cluster has no node nope; --node must be the name of a Node"]
        assert cluster.store.get("resourceslices", ("", "fabric.berth.dev-nope")) is None


def kubelet(reader: ReaderProcess, supervisor: Supervisor | None = None) -> httpx.AsyncClient:
    app = AgentApp(reader, supervisor or Supervisor())
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]  # httpx types ASGI more narrowly
    return httpx.AsyncClient(transport=transport, base_url="http://agent")


async def test_a_failing_task_of_the_agent_is_counted_and_named() -> None:
    supervisor = Breakable()
    async with publishing(Library(MACHINES["t4-4"])) as (_, agent), kubelet(ReaderProcess(), supervisor) as client:
        supervisor.start("publisher", agent.run)
        await eventually(lambda: supervisor.runs.get("publisher"))
        supervisor.break_("publisher", again=True)
        await eventually(lambda: supervisor.failing)
        live, scraped = await client.get("/livez"), (await client.get("/metrics")).text
        assert live.status_code == 200, "a restart of the agent would not help"
        assert live.text == "ok; task publisher keeps failing: RuntimeError: a bug in publisher"
        assert 'berth_task_failures_total{task="publisher"}' in scraped
        await supervisor.stop()


async def test_wiped_slice_is_put_back_and_a_lost_gpu_leaves() -> None:
    nvml = Library(MACHINES["t4-4"])
    async with publishing(nvml) as (cluster, agent):
        await agent.step()
        cluster.api.registry.delete(SLICES, NAME)
        await agent.step()
        assert len(published(cluster).gpus) == 4
        nvml.lost.add(1)
        await agent.step()
        assert len(published(cluster).gpus) == 3


async def test_nvml_is_begun_once_and_once_in_five_minutes_while_a_gpu_is_lost() -> None:
    nvml = Library(MACHINES["t4-4"])
    async with publishing(nvml) as (_, agent):
        for _ in range(40):
            await agent.step()
        assert nvml.calls["nvmlInitWithFlags"] == 1
        nvml.lost.add(1)
        for _ in range(62):
            await agent.step()
        assert (nvml.calls["nvmlInitWithFlags"], nvml.begun, nvml.event_sets) == (3, 1, 1)
        assert nvml.registered == {0, 2, 3}


async def test_the_owners_of_a_slice_stay_as_they_are() -> None:
    """A change of owners needs the right to delete slices on OpenShift. A slice of a deleted node is deleted, too."""
    nvml = Library(MACHINES["t4-4"])
    async with publishing(nvml) as (cluster, agent):
        await agent.step()
        before = cluster.store["resourceslices", NAME]["metadata"]["ownerReferences"]
        cluster.api.registry.delete(RESOURCES["", "nodes"], ("", "n"))
        cluster.apply(node_object("n", nvml.machine, {}))
        nvml.lost.add(1)
        await agent.step()
        assert agent.writes == 2
        assert cluster.store["resourceslices", NAME]["metadata"]["ownerReferences"] == before


@needs("topologies")
def test_all_machines_of_the_collection_are_chosen_exhaustively() -> None:
    """Every machine up to eight GPUs, every free mask, every count: no set is better than the first."""
    files = [p for p in sorted((SHARED / "topologies").glob("*.json")) if p.name != "index.json"]
    assert len(files) >= 57
    for path in files:
        machine = load_machine(path)
        graph = read_agent(fabric_slice("n", machine))[0].graph
        if graph.size > 8:
            continue
        by_mask = [bandwidth(graph, mask) for mask in range(1 << graph.size)]
        for free in range(1, 1 << graph.size):
            best: dict[int, float]
            subset, best = free, {}
            while subset:
                best[subset.bit_count()] = max(best.get(subset.bit_count(), 0.0), by_mask[subset])
                subset = (subset - 1) & free
            for count, wanted in best.items():
                assert by_mask[ranked(graph, free, count)[0]] == wanted


async def test_the_slice_shows_xids_link_errors_and_mig() -> None:
    """A critical XID marks a GPU as sick until the agent restarts, an XID of an application does not; rising error
    counts are published.
    """
    nvml = Library(MACHINES["hgx-h100-8"])
    nvml.xids, nvml.fields[2][230] = [(3, 79), (4, 31)], 1
    async with publishing(nvml) as (cluster, agent):
        await agent.step()
        nvml.fields[5][38] = 1000
        await agent.step()
        found = published(cluster)
        sick = {i: gpu.note for i, gpu in enumerate(found.gpus) if not gpu.healthy}
        assert sick == {2: "needs a GPU reset", 3: "XID 79", 5: "NVLink errors are rising"}
        facts = cluster.store["resourceslices", NAME]["spec"]["devices"]
        assert facts[5]["attributes"]["nvlinkErrors"] == {"int": 512}
        assert facts[3]["attributes"]["xid"] == {"int": 79}
        writes = agent.writes
        nvml.fields[5][38] = 1001
        await agent.step()
        assert agent.writes == writes, "a count in the same power of two is no news"
        assert found.gpus[0].memory_reserved_bytes == 600 << 20


@pytest.mark.parametrize(
    "broken", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlDeviceGetMigMode"]
)
async def test_a_driver_without_events_or_mig_has_none(broken: str) -> None:
    nvml = Library(MACHINES["t4-4"])
    nvml.errors[broken] = library.NOT_SUPPORTED
    async with publishing(nvml) as (cluster, agent):
        await agent.step()
        await agent.step()
        assert nvml.event_sets <= 1
        found = published(cluster)
        assert all(gpu.healthy for gpu in found.gpus)


async def test_mig_is_published_and_hides_memory_only() -> None:
    async with publishing(Library(MACHINES["hgx-h100-8"], mig=True)) as (cluster, agent):
        await agent.step()
        assert published(cluster).gpus[0].memory_free_bytes is None
        devices = cluster.store["resourceslices", NAME]["spec"]["devices"]
        assert all(d["attributes"]["migEnabled"] == {"bool": True} for d in devices)


async def test_a_heartbeat_every_five_minutes_and_no_sooner() -> None:
    now = [1000]
    async with publishing(Library(MACHINES["t4-4"]), minute=lambda: now[0]) as (cluster, agent):
        for minute in (1000, 1001, 1004, 1005, 1006, 1009, 1010):
            now[0] = minute
            await agent.step()
        assert agent.writes == 3
        assert cluster.store["resourceslices", NAME]["spec"]["devices"][0]["attributes"]["readAt"] == {"int": 1010}


async def test_the_command_ends_on_sigterm(tmp_path: Path) -> None:
    """The first process of a container gets SIGTERM only if it has a handler for it."""
    cluster = Cluster()
    cluster.apply(node_object("n", MACHINES["t4-4"], {}))
    async with cluster.serving() as api:
        options = ("--node", "n", "--kubeconfig", str(write_kubeconfig(tmp_path, api)), "--probes", "127.0.0.1:0")
        process = start("agent", *options, stderr=subprocess.PIPE)
        assert process.stderr is not None
        with process.stderr as said:
            await asyncio.to_thread(said.readline)  # it says that there is no driver, or what it published
            process.terminate()
            assert await asyncio.to_thread(process.wait) == 0
