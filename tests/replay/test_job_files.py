"""What a file of jobs says, and the sentence about one that cannot be read."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.base.berth_errors import WireError
from extender.policy import Policy
from extender.replay import Job, fleet_of, placer_of, read_jobs, run_replay
from extender.replay.job_files import MAX_JOBS
from extender.replay.published_traces import TRACES, columns_of, read_nodes
from extender.sandbox import parse_nodes
from tests.worlds.process_starter import ROOT

POLICY = ROOT / "manifests" / "base" / "policy.yaml"
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "replay_jobs.yaml").read_text())


def read(folder: Path, case: dict[str, Any]) -> list[Job]:
    path = folder / "jobs"
    path.write_bytes(bytes.fromhex(case["bytes"]) if "bytes" in case else case["text"].encode())
    notes = Counter[str]()
    found = list(read_jobs(path, TRACES, case.get("columns", ""), notes).jobs)
    assert "notes" not in case or notes == case["notes"]
    return found


def facts(job: Job) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    default = Job("", -1)
    found = {f.name: getattr(job, f.name) for f in fields(Job) if getattr(job, f.name) != getattr(default, f.name)}
    return found | ({"parts": [facts(one) for one in job.parts]} if job.parts else {})


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_cases(case: dict[str, Any], tmp_path: Path) -> None:
    if "jobs" in case:
        assert [facts(job) for job in read(tmp_path, case)] == case["jobs"]
        return
    with pytest.raises(WireError) as raised:
        read(tmp_path, case)
    assert f"{tmp_path / 'jobs'}: {case['wrong']}" in str(raised.value)
    assert [words for words in case.get("also", ()) if words not in str(raised.value)] == []
    assert "\n" not in str(raised.value)


def test_a_million_jobs_are_refused_with_the_limit(tmp_path: Path) -> None:
    lines = "\n".join(f"{number},1" for number in range(MAX_JOBS + 1))
    with pytest.raises(WireError, match=f"line {MAX_JOBS + 2}: a replay takes at most {MAX_JOBS} jobs"):
        read(tmp_path, {"text": f"arrival,gpus\n{lines}"})


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("gpus=n", "--columns: names no column for arrival"),
        ("arrival=a,gpu=n", "--columns: 'gpu' is no field; the fields are name, arrival, duration, end, pods, gpus,"),
        ("arrival", "--columns: must be FIELD=COLUMN or FIELD=COLUMN*FACTOR, with commas, is 'arrival'"),
        ("arrival=a*-1", "--columns: must be FIELD=COLUMN or FIELD=COLUMN*FACTOR, with commas, is 'arrival=a*-1'"),
    ],
)
def test_columns_that_are_none(text: str, wrong: str) -> None:
    with pytest.raises(WireError) as raised:
        columns_of(text)
    assert str(raised.value).startswith(wrong)


def test_nodes_of_machine_files() -> None:
    nodes = parse_nodes("2xt4-4,4xgb200-nvl72-tray/2/4,1xt4-4")
    assert [node.name for node in nodes if node.machine.name == "t4-4"] == ["t4-4-00000", "t4-4-00001", "t4-4-00002"]
    cliques = [dict(node.labels) for node in nodes if node.labels]
    clique, rack, _ = Policy().group_levels
    assert cliques == [{clique: f"gb200-nvl72-tray-{n}", rack: "gb200-nvl72-tray-0"} for n in (0, 0, 1, 1)]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("t4-4", "--nodes: must be COUNTxMACHINE[/NODES],…, such as 36xgb200-nvl72-tray/18; is 't4-4'"),
        (
            "2xfoo",
            "--nodes: knows no machine 'foo': give a machine file (its form is in docs/replay.md), or one of a100",
        ),
        ("0xt4-4", "--nodes: names no node"),
        ("30000xt4-4", "--nodes: names more than 20000 nodes"),
        ("1000000xt4-4", "--nodes: names more than 20000 nodes"),
        (f"1xt4-4,{'9' * 5000}xt4-4", "--nodes: names more than 20000 nodes"),
        ("2xnone.yaml", "none.yaml: does not exist"),
        (
            f"1x{POLICY}",
            f"{POLICY}: has none of the fields of a machine file, which are name, gpu_product, gpus, vram_bytes,",
        ),
    ],
)
def test_nodes_that_are_none(text: str, wrong: str) -> None:
    with pytest.raises(WireError) as raised:
        parse_nodes(text)
    assert str(raised.value).startswith(wrong)


def machine_of_the_docs() -> str:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "replay.md").read_text(), re.DOTALL)
    return text


@pytest.mark.parametrize("field", ["links_per_gpu", "link_GBps_per_direction"])
def test_a_machine_file_with_links_of_no_number_or_speed_is_refused(field: str, tmp_path: Path) -> None:
    """Its GPUs would be joined by nothing, which is no fact."""
    lines = [line for line in machine_of_the_docs().splitlines() if not line.startswith(field)]
    (tmp_path / "half.yaml").write_text("\n".join(lines))
    with pytest.raises(WireError, match=field):
        parse_nodes(f"1x{tmp_path}/half.yaml")


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ("[0, 0, 4]", "[0, 0, 4] joins GPU 0 with itself"),
        ("[0, 1, 1.5]", "[0, 1, 1.5] must be two GPUs and a number of links, as whole numbers"),
        ("[0.5, 1, 2]", "[0.5, 1, 2] must be two GPUs and a number of links, as whole numbers"),
        ("[0, 2, 4, 50]", "[0, 2, 4, 50] names a GPU outside 0..1"),
    ],
)
def test_a_link_of_a_machine_file_that_is_none_is_named(link: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(
        "{name: pair, gpu_product: NVIDIA A100-PCIE-40GB, gpus: 2, vram_bytes: 42949672960, "
        f"link_GBps_per_direction: 25, links: [[0, 1, 4], {link}]}}"
    )
    with pytest.raises(WireError) as raised:
        parse_nodes(f"1x{path}")
    assert str(raised.value) == f"{path}: links: {wrong}"


def test_the_machine_file_of_the_docs_is_one(tmp_path: Path) -> None:
    (tmp_path / "hgx-a100.yaml").write_text(machine_of_the_docs())
    nodes = parse_nodes(f"2x{tmp_path}/hgx-a100.yaml")
    jobs = [Job(f"j{i}", i, gpus=8, topology="required") for i in range(3)]
    found = run_replay(fleet_of(nodes), jobs, placer_of("berth"))
    assert (found.started, found.joined, found.unknown_links) == (2, 1.0, 0)


def test_a_published_list_of_nodes_is_a_fleet(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn-1,64000,262144,2,P100\nn-2,96000,1024,0,\n")
    jobs = [
        Job("gpu", 0, gpus=2, product="P100", cpu=64_000),
        Job("cores", 1, cpu=96_000),
        Job("more", 2, cpu=1),
        Job("other", 3, gpus=1, product="V100"),
    ]
    found = run_replay(fleet_of(read_nodes(path)), jobs, placer_of("berth"))
    assert {name: job.pods[0].node for name, job in found.started_jobs.items()} == {"gpu": "n-1", "cores": "n-2"}
    assert found.never["more"] == "Insufficient cpu, memory or pods"
    path.write_text('gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,2,16,0\n"A10",1,32,1\n')  # the list of 2026
    nodes = [(one.name, one.machine.product, len(one.machine.readings), one.allocatable) for one in read_nodes(path)]
    assert nodes == [("0", "A10", 2, {"cpu": "16000m"}), ("1", "A10", 1, {"cpu": "32000m"})]
    path.write_text("machine,gpus\n")
    with pytest.raises(WireError, match="line 1: a list of nodes must have the columns machine,cap_cpu,"):
        read_nodes(path)
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn-1,many,262144,2,P100\n")
    with pytest.raises(WireError, match="line 2: cpu_milli must be a number of at least 0, is 'many'"):
        read_nodes(path)
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn-1,1,1,2,P100\nn-2,1,1,2,P100\nN_1,1,1,2,P100\n")
    with pytest.raises(WireError, match="line 4: has the name 'n-1', as line 2 has"):
        read_nodes(path)
