"""The reader at the border of C, on answers of real GPUs, and in a process that crashes, hangs or finds no NVML.

The places of GPUs: what sysfs says arrives in the fabric, and unknown stays apart from NUMA node 0."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml
from structlog.testing import capture_logs

from extender.agent import reader_process
from extender.agent.reader import Reader, Sysfs
from extender.agent.reader_process import AgentApp, ReaderProcess, ReadFailed, as_reading
from extender.agent.slice_publisher import slice_body
from extender.cluster import Delays
from extender.runtime.supervisor import Supervisor
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import Machine
from extender.topology.agent_slices import Reading
from tests.fakes import nvml as library
from tests.fakes.nvml import BorderFault, Library
from tests.worlds.eventually import HANG_SECONDS
from tests.worlds.filled_caches import read_agent

MACHINES = carried_machines()
RECORDED = yaml.safe_load((Path(__file__).parents[1] / "cases" / "nvml.yaml").read_text())
AT_ONCE = Delays(first=0.0, most=0.0)


# -- the border of C ---------------------------------------------------------------------------------------------


def fabric_info(version: int = library.FABRIC_V2) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    info.version = version
    return info


# What an agent might call, and why a real library would crash or write elsewhere.
FAULTS: dict[str, Callable[[Any], object]] = {
    "not an address": lambda gpu: pynvml.nvmlDeviceGetGpuFabricInfoV(gpu, fabric_info()),
    "version 0x2000028": lambda gpu: pynvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(fabric_info(0x2000028))),
    "40 bytes, not 36": lambda gpu: pynvml.nvmlDeviceGetGpuFabricInfoV(
        gpu, ctypes.byref(pynvml.c_nvmlGpuFabricInfo_v3_t())
    ),
    "version 0x1000018": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu, 0x1000018),
    "the handle is no pointer": lambda gpu: pynvml.nvmlDeviceGetName(None),
    "the handle is NULL": lambda gpu: pynvml.nvmlDeviceGetUUID(pynvml.c_nvmlDevice_t()),
    "the handle is of no GPU": lambda gpu: pynvml.nvmlDeviceGetUUID(
        ctypes.cast(ctypes.c_void_p(0x7F00_0000_1063), pynvml.c_nvmlDevice_t)
    ),
    "not a number": lambda gpu: pynvml.nvmlDeviceGetNvLinkState(gpu, "0"),
    "is not declared here": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, 0),
}


@pytest.mark.parametrize("problem", FAULTS)
def test_the_stand_in_refuses_what_the_real_library_cannot_bear(problem: str) -> None:
    library.install(Library(MACHINES["t4-4"]))
    pynvml.nvmlInit()
    with pytest.raises(BorderFault, match=problem):
        FAULTS[problem](pynvml.nvmlDeviceGetHandleByIndex(0))


def test_every_declared_function_is_called_by_the_agent() -> None:
    nvml = Library(MACHINES["dgx1-v100"])
    nvml.xids = [(0, 79)]
    reader = library.reader(nvml)
    reader.read()
    nvml.lost.add(0)
    for _ in range(40):
        reader.read()
    nvml.errors["nvmlDeviceGetMemoryInfo_v2"] = library.FUNCTION_NOT_FOUND
    reader.read()
    assert set(library.FUNCTIONS) - set(nvml.calls) == {"nvmlSystemGetDriverVersion"}  # .ci/gpu_check.py calls it


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_the_answers_of_a_real_gpu_make_this_reading(case: dict[str, Any]) -> None:
    product, memory = case["product"], case["memory"]
    gpu = Reading("", product, pcie_generation=case["pcieGeneration"], distances=(0,))
    nvml = Library(Machine("real", product, memory["total"], (gpu,)))
    nvml.buses, nvml.uuids, nvml.errors = [case["bus"].encode()], [case["uuid"].encode()], case["errors"]
    nvml.free, nvml.reserved, nvml.fields = {0: memory["free"]}, memory["reserved"], {0: case["fields"]}
    assert library.reader(nvml).read() == [{**case["reading"], "links": ()}]


@pytest.mark.parametrize("code", [library.DRIVER_NOT_LOADED, library.VERSION_MISMATCH, library.NO_PERMISSION, 12345])
@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_without_nvml_there_is_no_reading(call: str, code: int) -> None:
    nvml = Library(MACHINES["t4-4"])
    nvml.errors[call] = code
    reader = library.reader(nvml)
    with pytest.raises(pynvml.NVMLError) as raised:
        reader.read()
    assert raised.value.value == code


def test_text_that_is_not_unicode_is_unknown() -> None:
    nvml = Library(MACHINES["t4-4"])
    nvml.names[1], nvml.buses[2] = b"\xff\xfe", b"\xff"
    found = library.reader(nvml).read()
    assert len(found) == 4
    assert sorted(gpu["product"] for gpu in found) == ["", *["Tesla T4"] * 3]


def test_a_count_of_errors_beyond_32_bits_is_read_whole() -> None:
    nvml = Library(MACHINES["hgx-h100-8"])
    nvml.fields[3][38] = 5 << 32
    assert [gpu["nvlink_errors"] for gpu in library.reader(nvml).read()] == [0, 0, 0, 5 << 32, 0, 0, 0, 0]


def test_an_event_without_a_gpu_and_a_gpu_without_events_hide_no_xid() -> None:
    nvml = Library(MACHINES["t4-4"])
    nvml.xids = [(-1, 79), (2, 79)]
    assert [gpu["xid"] for gpu in library.reader(nvml).read()] == [0, 0, 79, 0]


# -- the process -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a process may take long to start."""
    monkeypatch.setattr(reader_process, "_DEADLINE_SECONDS", HANG_SECONDS)


@asynccontextmanager
async def reading(*command: str) -> AsyncIterator[ReaderProcess]:
    process = ReaderProcess(command, AT_ONCE)
    try:
        yield process
    finally:
        await process.stop()


async def test_one_process_reads_again_and_again() -> None:
    async with reading(*library.command("hgx-h100-8")) as process:
        found = await process.read()
        pid = process.pid
        assert [gpu.product for gpu in found] == [MACHINES["hgx-h100-8"].product] * 8
        assert found[0].distances == MACHINES["hgx-h100-8"].readings[0].distances
        assert await process.read() == found
        assert process.pid == pid
    assert process.pid is None


def test_the_process_ends_when_the_agent_was_killed() -> None:
    alone = subprocess.Popen(library.command("t4-4"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert alone.stdin is not None
    with alone:
        alone.stdin.close()
        assert alone.wait(HANG_SECONDS) == 0


async def test_a_crash_of_the_library_is_named_counted_and_followed_by_the_next_try(tmp_path: Path) -> None:
    command = library.command(
        "t4-4", crashes="nvmlDeviceGetGpuFabricInfoV", once=str(tmp_path / "once"), xids=[(2, 79)]
    )
    async with reading(*command) as process:
        with capture_logs() as logs, pytest.raises(ReadFailed, match="crashed with SIGSEGV"):
            await process.read()
        assert [line["problem"] for line in logs] == ["the process that reads NVML crashed with SIGSEGV"]
        assert len(await process.read()) == 4
        assert process.failures == {"crash": 1, "hang": 0, "nvml": 0}
        assert process.problem == ""


async def test_a_killed_process_forgets_no_xid(tmp_path: Path) -> None:
    async with reading(*library.command("t4-4", xids=[(2, 79)], once=str(tmp_path / "once"))) as process:
        assert [gpu.xid for gpu in await process.read()] == [0, 0, 79, 0]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ReadFailed, match="SIGKILL"):
            await process.read()
        assert [gpu.xid for gpu in await process.read()] == [0, 0, 79, 0]


async def test_a_call_that_hangs_is_given_up_and_its_process_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_process, "_DEADLINE_SECONDS", 0.2)
    async with reading(*library.command("t4-4", hangs="nvmlInitWithFlags")) as process:
        for _ in range(2):
            with pytest.raises(ReadFailed, match="did not answer within"):
                await process.read()
        assert process.failures["hang"] == 2
        assert process.pid is None


async def test_no_process_is_started_beside_one_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is blocked in the driver survives SIGKILL."""
    monkeypatch.setattr(reader_process, "_DEADLINE_SECONDS", 0.1)
    async with reading(sys.executable, "-c", "import time; time.sleep(1000)") as process:
        with monkeypatch.context() as patched:
            patched.setattr(Process, "kill", lambda _: None)
            patched.setattr(reader_process, "_END_SECONDS", 0.01)
            with pytest.raises(ReadFailed, match="did not answer within"):
                await process.read()
        assert process._killed is not None  # noqa: SLF001 - the process that did not end
        with pytest.raises(ReadFailed, match="blocked in the driver"):
            await process.read()
        process._killed.kill()  # noqa: SLF001
        await process._killed.wait()  # noqa: SLF001
        with pytest.raises(ReadFailed, match="did not answer within"):
            await process.read()
        assert process.failures["hang"] == 2


async def test_tries_wait_ever_longer_and_start_no_process_meanwhile() -> None:
    now = [0.0]
    process = ReaderProcess([sys.executable, "-c", "pass"], clock=lambda: now[0])
    tries = []
    for now[0] in map(float, range(0, 600, 10)):
        before = process.failures.total()
        with pytest.raises(ReadFailed, match="exit code 0"):
            await process.read()
        if process.failures.total() > before:
            tries.append(now[0])
    assert 10 <= len(tries) <= 22
    assert tries[1] == 10.0
    assert max(after - before for before, after in pairwise(tries)) >= 30


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ([sys.executable, "-c", "print('{')"], "exit code 0"),
        ([sys.executable, "-c", "raise SystemExit(7)"], "exit code 7"),
        (["/nonexistent"], "cannot be started"),
        (library.command("t4-4", errors={"nvmlInitWithFlags": library.DRIVER_NOT_LOADED}), "NVML: Driver Not Loaded"),
        (library.command("t4-4", errors={"nvmlDeviceGetCount_v2": library.UNINITIALIZED}), "NVML: Uninitialized"),
    ],
)
async def test_a_process_that_gives_no_reading_says_why(command: list[str], problem: str) -> None:
    async with reading(*command) as process:
        for _ in range(2):
            with pytest.raises(ReadFailed, match=problem):
                await process.read()
        assert process.failures.total() == 2


async def test_a_machine_without_the_library_is_told_once() -> None:
    """The real command. A machine with NVIDIA's driver gives readings."""
    async with reading(*ReaderProcess()._command) as process:  # noqa: SLF001 - the command of the agent
        found, problems = tuple[Reading, ...](), list[str]()
        with capture_logs() as logs:
            for _ in range(2):
                try:
                    found = await process.read()
                except ReadFailed as error:
                    problems.append(str(error))
        assert found or (all(problem.startswith("NVML: ") for problem in problems) and len(logs) == 1)


async def test_a_failing_reader_is_shown_by_probe_and_metric_and_restarts_no_agent() -> None:
    async with reading(sys.executable, "-c", "raise SystemExit(7)") as process:
        app = AgentApp(process, Supervisor())
        with pytest.raises(ReadFailed):
            await process.read()
        answer = app.answer("GET", "/livez")
        assert (answer.status, answer.body) == (200, b"ok; the process that reads NVML ended with exit code 7")
        assert b'berth_nvml_failures_total{cause="crash"} 1.0' in app.answer("GET", "/metrics").body


# All that `berth agent` imports when it runs.
PARENT = (
    "extender.cli.serve_commands, extender.agent.reader_process, extender.agent.slice_publisher, "
    "extender.entry.listening, extender.cluster, extender.runtime.supervisor, extender.web.http_server"
)


def test_the_processes_of_the_agent_load_no_more_than_they_need() -> None:
    """Their memory: docs/install.md. Each of these packages takes 3 to 16 MiB."""
    child = subprocess.run(
        [sys.executable, "-c", "import sys, extender.agent.reader, pynvml; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert [name for name in child if name.startswith("extender") and name.count(".") == 1] == ["extender.agent"]
    assert not {"asyncio", "structlog", "typing_extensions"} & set(child)
    parent = subprocess.run(
        [sys.executable, "-c", f"import sys, extender.cli.main, {PARENT}; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    heavy = {"kubernetes", "pydantic", "pynvml", "re2", "fastapi", "extender.cache", "extender.cel", "extender.policy"}
    assert not heavy & set(parent)


CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "sysfs.yaml").read_text())


def written(root: Path, case: dict[str, Any]) -> Sysfs:
    """A sysfs with these NUMA nodes and devices."""
    for number, (cpus, distance) in case["nodes"].items():
        node = root / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpus}\n")
        (node / "distance").write_text(f"{distance}\n")
    for address, device in case["gpus"].items():
        link = root / "bus/pci/devices" / address
        if device["at"] is None:
            continue
        link.parent.mkdir(parents=True, exist_ok=True)
        if device["at"] == "circle":
            link.symlink_to(link)
            continue
        place = root / "devices" / device["at"] / address
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{device['numa_node']}\n")
        link.symlink_to(os.path.relpath(place, link.parent))
    return Sysfs(root)


def published(addresses: list[str], sysfs: Sysfs) -> Any:
    """The fabric of the slice that the agent publishes for GPUs with these addresses."""
    gpu = Reading("", "NVIDIA GB200", distances=(6,) * len(addresses))
    nvml = library.Library(Machine("m", gpu.product, 1 << 30, (gpu,) * len(addresses)))
    nvml.buses = [f"0000{address}".encode() for address in addresses]
    for number, address in enumerate(addresses):
        if address.startswith("ffff"):
            nvml.buses[number] = b"ffffffff:ff:ff.f"
    library.install(nvml)
    readings = tuple(as_reading(one) for one in Reader(pynvml, sysfs).read())
    found, problems = read_agent(slice_body("n", "u", readings, 1, stale=False))
    assert problems == ()
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_place_in_sysfs_arrives_in_the_fabric(tmp_path: Path, case: dict[str, Any]) -> None:
    found = published(list(case["gpus"]), written(tmp_path, case))
    assert [[gpu.numa, gpu.pcie_root] for gpu in found.gpus] == case["places"]
    assert found.graph.numa == tuple(numa or 0 for numa, _ in case["places"])


def test_a_machine_of_the_sandbox_has_its_places() -> None:
    found, _ = read_agent(fabric_slice("n", carried_machines()["gb200-nvl72-tray"]))
    roots = ["pci0008:00", "pci0009:00", "pci0018:00", "pci0019:00"]
    assert [(gpu.numa, gpu.pcie_root) for gpu in found.gpus] == list(zip([0, 0, 1, 1], roots, strict=True))


def test_the_fabric_command_says_where_no_numa_node_is_known(tmp_path: Path) -> None:
    machine = {"name": "m", "gpu_product": "Tesla T4", "gpus": 2, "vram_bytes": 1 << 34, "numa": [-1, 1]}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(machine))
    said = subprocess.run(
        [sys.executable, "-m", "extender", "fabric", str(tmp_path / "m.yaml")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert [line.split("│")[4].strip() for line in said.splitlines() if line.startswith("│")] == ["?", "1"]
