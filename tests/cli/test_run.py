"""`berth run` as a user runs it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import termios
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from rich.text import Text

from extender.cli.run_command import FLEET
from tests.worlds.commands import berth_run_once
from tests.worlds.eventually import answers
from tests.worlds.manifests import script
from tests.worlds.process_starter import ROOT, start
from tests.worlds.process_worlds import free_port

ONCE = ("run", "--once", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")


def test_every_example_lands_as_its_file_says() -> None:
    drawing = script("make_run_picture")
    coloured = drawing.printed()
    out = Text.from_ansi(coloured).plain
    assert "train-eight" in out
    assert "✗" not in out
    # Berth joins the GPUs of every pod; first fit takes GPUs of two bridges, and interleaves the gangs.
    joined = "Joined by links: Berth 10 of 10 multi-GPU pods outside of gangs, first fit on the same nodes 4 of 10."
    assert joined in " ".join(out.split())
    assert re.search(r"pair-a +│ .*\d━\d.* 240 │ #━1 2━# ○━○ ○━○ .* 20 *$", out, re.MULTILINE)
    assert "Whole in one domain: Berth 2 of 2 gangs, first fit 0 of 2." in out
    assert out.rstrip().endswith("Without --once it runs on. Next: docs/tutorial-your-own-pod.md of the repository")
    assert "… never-fits" in out  # it waits, as its file says
    assert drawing.picture(coloured) == drawing.FILE.read_text(), "docs/img/run.svg is stale: make picture"


def test_no_figure_is_one_that_quality_calls_a_misfit() -> None:
    misfits = re.findall(r"^\| (\S+) \|.*\| misfit", (ROOT / "docs" / "quality.md").read_text(), re.MULTILINE)
    assert misfits
    assert not set(misfits) & set(FLEET)


def test_an_example_that_lands_elsewhere_fails_the_run(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "06-one-small.yaml").read_text().replace('"t4-4,dgx1-v100"', '"hgx-h100-8"')
    (tmp_path / "wrong.yaml").write_text(text)
    code, out, _ = berth_run_once("--examples", str(tmp_path))
    assert code == 1
    assert "expected on hgx-h100-8" in " ".join(out.split())


def test_a_gang_that_is_not_in_one_domain_fails_the_run(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "09-gangs.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.replace('"nvidia.com/gpu.clique"', '"topology.kubernetes.io/rack"'))
    code, out, _ = berth_run_once("--examples", str(tmp_path))
    assert code == 1
    assert re.search(r"✗ llm-a .* clique nvl72-[12], expected in one rack ", out)
    # Its own place is as expected. A busy machine may announce that the pods wait for another attempt.
    assert not re.search("[✓✗…] llm-a-0", out)


def test_a_gang_without_room_waits_whole_where_first_fit_starts_a_part(tmp_path: Path) -> None:
    template, first, *_ = yaml.safe_load_all((ROOT / "examples" / "09-gangs.yaml").read_text())
    notes = first["metadata"]["annotations"]
    del notes["berth.dev/expect-domain"]
    notes |= {"berth.dev/group-min": "9", "berth.dev/expect-pending": "no domain has room for all pods of group llm-a"}
    pods = [{**first, "metadata": {**first["metadata"], "name": f"llm-a-{i}"}} for i in range(9)]
    (tmp_path / "nine.yaml").write_text(yaml.safe_dump_all([template, *pods]))
    code, out, _ = berth_run_once("--examples", str(tmp_path))
    assert code == 0, out
    assert re.search(r"… llm-a .* 0 of 9 pods .* 8 of 9 pods", out)
    assert "✓" not in out


def test_a_wait_for_another_attempt_is_announced(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "10-never.yaml").read_text()
    (tmp_path / "never.yaml").write_text(re.sub(r"\n +berth.dev/expect-pending:.*", "", text))
    code, out, _ = berth_run_once("--examples", str(tmp_path))
    assert code == 1
    assert "No node for never-fits yet" in out


def test_an_expected_domain_without_a_group_is_an_error(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "06-one-small.yaml").read_text().replace("expect-machine", "expect-domain")
    (tmp_path / "wrong.yaml").write_text(text)
    code, _, errors = berth_run_once("--examples", str(tmp_path))
    assert code == 2
    assert "berth.dev/expect-domain]: the pod names no group" in errors


def test_a_port_that_is_used_is_an_error_with_the_command_for_free_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option in ("--listen", "--console"):
            code, _, errors = berth_run_once(option, address)
            assert code == 2
            assert f"{option}: cannot listen on {address}: Address already in use" in errors
            assert "berth run --listen 127.0.0.1:0 --console 127.0.0.1:0" in errors


def test_a_narrow_terminal_cuts_no_name(tmp_path: Path) -> None:
    for name in ("05-degraded.yaml", "09-gangs.yaml"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (50, 80))
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = start(*ONCE, "--examples", str(tmp_path), stdout=follower, env=env)
    os.close(follower)
    shown = b""
    with suppress(OSError):  # the end of a pseudo-terminal
        while part := os.read(leader, 65_536):
            shown += part
    os.close(leader)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    assert process.wait() == 0
    assert max(map(len, lines)) <= 80
    assert sum(line.count("hgx-b200-8-degraded-1") for line in lines) == 1


def test_a_folder_without_examples_is_an_error(tmp_path: Path) -> None:
    code, _, errors = berth_run_once("--examples", str(tmp_path))
    assert code == 2
    assert "holds no .yaml files" in errors


def test_jobs_arrive_run_and_end_on_a_fleet_of_ones_own(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    # The second job fits only after the first one has ended.
    jobs.write_text("name,arrival,duration,pods,gpus,cpu\nfirst,0,600,1,4,\nsecond,60,600,2,2,\nthird,90,,1,,2\n")
    code, out, errors = berth_run_once("--nodes", "1xt4-4", "--jobs", str(jobs), "--speed", "60")
    assert (code, errors) == (0, "")
    assert "Your fleet: 1 node." in out
    assert "3 jobs arrive within 2 min; at --speed 60 this takes 2 s." in out
    assert re.search(r"After 2\d min of the jobs' time 3 of 3 jobs arrived: 0 wait, 1 run, 2 ended\.", out)


@pytest.mark.parametrize("nodes", [(), ("--nodes", "1xhgx-h100-8")])
def test_jobs_with_parts_of_gpus_and_with_memory_run_on_any_fleet(nodes: tuple[str, ...], tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("name,arrival,duration,gpus,memory,nics\na,0,60,0.5,,0.5\nb,1,60,1,40Gi,\n")
    code, out, errors = berth_run_once(*nodes, "--jobs", str(jobs))
    assert code == 0, errors
    assert "2 of 2 jobs arrived: 0 wait" in out


def test_a_job_that_does_not_start_fails_the_run_with_its_reason(tmp_path: Path) -> None:
    jobs, policy = tmp_path / "jobs.jsonl", tmp_path / "policy.yaml"
    jobs.write_text('{"name": "gang", "arrival": 0, "gpus": 4, "group_required": "rack", "parts": [{"gpus": 8}]}\n')
    policy.write_text("group_levels: [example.com/rack]\n")  # a label that no node has
    words = ("--nodes", "2xhgx-h100-8/2/2", "--jobs", str(jobs))
    assert berth_run_once(*words)[0] == 0
    code, out, _ = berth_run_once(*words, "--policy", str(policy))
    assert code == 1
    assert "1 job arrives within 0 s;" in out
    assert "1 wait, 0 run, 0 ended" in out
    assert re.search("^gang waits: .*example.com/rack", out, re.MULTILINE)


def test_a_fleet_without_jobs_is_empty() -> None:
    code, out, _ = berth_run_once("--nodes", "2xhgx-h100-8")
    assert code == 0
    assert "Your fleet: 2 nodes." in out
    assert "No workloads" in out
    assert "The next large job still finds 8 x NVIDIA H100 80GB HBM3 on each of 2 nodes." in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--jobs", "j.csv", "--examples", "."), "--jobs: does not go with --examples: give one of them"),
        (("--speed", "60"), "--speed: goes with --jobs"),
        (("--jobs", "j.csv", "--speed", "0"), "--speed: must be a number above 0, at most 1000000, is 0"),
        (("--jobs", "j.csv", "--speed", "nan"), "--speed: must be a number above 0, at most 1000000, is nan"),
        (("--nodes", "3xfoo"), "--nodes: knows no machine 'foo'"),
        (("--jobs", "missing.csv"), "missing.csv: "),
        (("--policy", "missing.yaml"), "missing.yaml: "),
    ],
)
def test_unusable_options_are_one_sentence(options: tuple[str, ...], message: str) -> None:
    code, _, errors = berth_run_once(*options)
    assert code == 2
    assert errors.startswith(f"berth: {message}")
    assert "\n" not in errors


def test_a_claim_that_no_api_server_takes_names_its_line(tmp_path: Path) -> None:
    request = '{"name": "GPU_0", "exactly": {"deviceClassName": "gpu.nvidia.com"}}'
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text(f'{{"arrival": 0, "claim": {{"devices": {{"requests": [{request}]}}}}}}\n')
    code, _, errors = berth_run_once("--nodes", "1xt4-4", "--jobs", str(jobs))
    assert code == 2
    assert errors.startswith(f"berth: {jobs}: line 1: claim.devices.requests[0].name: Invalid value: 'GPU_0': a ")


async def test_the_scheduler_of_a_run_is_supervised() -> None:
    listen, console = free_port(), free_port()
    options = ("--listen", f"127.0.0.1:{listen}", "--console", f"127.0.0.1:{console}")
    run = start("run", *options)
    try:
        failures = 'berth_task_failures_total{task="sandbox-scheduler"} 0.0'
        await answers(f"http://127.0.0.1:{listen}/metrics", 200, failures)
    finally:
        run.terminate()
        await asyncio.to_thread(run.wait)
