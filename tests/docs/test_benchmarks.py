"""Each benchmark runs on a small input whose result is known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from benchmarks import (
    call_paths,
    cel,
    gang_waking,
    pod_cost,
    quality,
    replayed_traces,
    requeue,
    serving,
    shared_devices,
    soak,
)
from benchmarks.serving import Effort
from tests.worlds.process_starter import Started, start


def cells_of(table: Iterable[str]) -> list[list[str]]:
    """The cells of a table in Markdown, with its head."""
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def test_pods_keep_whole_sets_for_large_jobs_with_berth_alone() -> None:
    rows = cells_of(quality.before_large(seeds=1))
    assert [size for size, *_ in rows[2:]] == ["1", "2", "4"]
    for _, *cells in rows[2:]:
        most, berth, first_fit, emptiest = map(int, cells)
        assert most == berth > first_fit > emptiest


def test_small_jobs_leave_a_rack_whole_with_berth_alone() -> None:
    rows = cells_of(quality.whole_racks(seeds=1, hours=12, shares=(0.4,)))
    free = {placement: int(cell.partition("%")[0]) for _, placement, cell, _ in rows[2:]}
    assert free["Berth"] > 75
    assert free["first fit"] < 10


def test_pods_of_openb_arrive_until_they_ask_for_all_gpus(tmp_path: Path) -> None:
    """The second list has neither times nor products, as those with more jobs of several GPUs."""
    names = "sn,cpu_milli,memory_mib,gpu,model\n"
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(f"{names}a,8000,1000,2,T4\nb,64000,1000,2,P100\n")
    first = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1000,10,1,500,T4\nq,1000,10,0,0,\n"
    for name, text in {"x": first, "y": "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,40000,10,2,1000\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "expected").mkdir()
    summary = "workload,policy,alloc_pct_at_100_mean\nx,FGD,75.0\nx,Random,1.0\ny,FGD,40.0\n"
    (tmp_path / "expected" / "summary_mean_std.csv").write_text(summary)
    rows = cells_of(quality.openb(tmp_path, seeds=1))
    assert rows[2] == ["x", "50.00", "50.00", "25.00", "+25.00"], "four shares fit on the two T4"
    assert rows[3] == ["y", "50.00", "50.00", "60.00", "-10.00"], "one node has the CPU for two GPUs"


def test_jobs_of_mapa_are_measured_with_its_own_regression(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("num_gpus,pattern,arrival,service,bw_sensitive\n2,ring,1,9,1\n2,ring,2,9,0\n")
    *_, first_fit, berth = quality.mapa(tmp_path)
    assert first_fit.startswith("| first fit |")
    assert berth.endswith("| 1.000 |"), "Berth gives the first job two GPUs with a double link"


def test_gangs_are_replayed_on_every_fleet_by_every_placement() -> None:
    rows = cells_of(quality.gangs(seeds=1, hours=3))
    assert len(rows) == 2 + 2 * 3
    inside = {(fleet, placement): int(cell.rstrip("%")) for fleet, placement, cell, *_ in rows[2:]}
    restarts = {(fleet, placement): cell for fleet, placement, _, _, cell, *_ in rows[2:]}
    for kind in replayed_traces.KINDS:
        assert inside[kind.name, "Berth"] > inside[kind.name, "first fit"] > inside[kind.name, "emptiest node"]
        assert restarts[kind.name, "Berth"] == "0.00"


def test_a_trace_with_gangs_is_the_same_for_the_same_seed() -> None:
    kind = replayed_traces.KINDS[0]
    jobs = replayed_traces.gang_jobs(kind, 24, seed=1)
    assert jobs == replayed_traces.gang_jobs(kind, 24, seed=1) != replayed_traces.gang_jobs(kind, 24, seed=2)


def test_masks_of_selectors(capsys: pytest.CaptureFixture[str]) -> None:
    cel.masks(cel.fleet(2))
    printed = capsys.readouterr().out.splitlines()
    assert "bytes each" in printed[0]
    assert [line.split()[0] for line in printed[2:]] == [*cel.SELECTORS, *cel.OURS_ONLY]


def test_predictions_of_bandwidth_are_near_measurements() -> None:
    rows = quality.predictions()
    assert len(rows) == len(quality.MEASURED)
    assert all(abs(found / measured - 1) < 0.3 for name, _, found, measured in rows if name != quality.MISFIT)


def test_a_soak_tells_memory_that_grows_from_memory_that_does_not() -> None:
    def rows(mib: list[float]) -> list[soak.Row]:
        return [soak.Row(number, one, {}) for number, one in enumerate(mib)]

    assert not soak.grew(rows([100, 120, *[121] * 8]))
    assert soak.grew(rows([100, 120, *[131] * 8])), "more than the last tenth may have"
    assert soak.grew(rows([100.0 + 2 * tenth for tenth in range(10)])), "slowly, and it never ends"


def test_the_cost_of_a_pod_is_the_cpu_between_two_readings() -> None:
    def used(ms: float, *requests: str) -> pod_cost.Usage:
        return pod_cost.Usage({"berth": ms / 1000}, pod_cost.requests_in("\n".join(requests)))

    line = 'apiserver_request_total{{code="{}",resource="{}",subresource="{}",verb="{}"}} {}'.format
    before = used(100, line(200, "pods", "", "WATCH", 3), line(201, "pods", "binding", "POST", 10))
    binds = line(201, "pods", "binding", "POST", 14), line(409, "pods", "binding", "POST", 1)
    after = used(120, line(200, "pods", "", "WATCH", 3), *binds, line(200, "", "readyz", "GET", 9))
    each = after.per_pod(before, pods=5)
    assert each.requests == {"POST pods/binding": 1.0}
    assert pod_cost.lines(each) == [
        "ms of CPU per pod: berth 4.00; all 4.00",
        "requests per pod: POST pods/binding 1.00",
    ]


def test_plugins_have_the_part_of_their_extension_point_that_they_have_in_the_sample() -> None:
    found = pod_cost.plugins_in(
        """
scheduler_scheduling_algorithm_duration_seconds_sum 0.05
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="p",status="Success"} 0.01
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="p",status="Error"} 0.03
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Score",profile="p",status="Success"} 0.004
scheduler_plugin_execution_duration_seconds_sum{extension_point="Filter",plugin="Fit",status="Success"} 0.003
scheduler_plugin_execution_duration_seconds_sum{extension_point="Filter",plugin="Name",status="Success"} 0.001
""",
        pods=10,
    )
    assert found == pytest.approx({"algorithm": 5, "Filter": 4, "Filter Fit": 3, "Filter Name": 1, "Score": 0.4})
    head, *rows = pod_cost.table({"in-tree": found, "berth": {"Filter": 2.0}}, least=3.5)
    assert head.split() == ["in-tree", "berth"]
    assert [row.split() for row in rows] == [["Filter", "4.00", "2.00"], ["algorithm", "5.00", "0.00"]]


def test_looks_for_pods_to_wake_are_measured_beside_filters() -> None:
    found = requeue.measure(nodes=4, shapes=6, pods=12, events=1, gap=0.01)
    assert found["few_us"]
    assert found["many_us"]
    assert found["asked_mib"]
    assert found["waiting_mib"]


def test_changes_of_shared_devices_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    shared_devices.measure(nodes=8, devices=8)
    printed = capsys.readouterr().out.splitlines()
    assert sum("longest stretch" in line for line in printed) == 6
    assert "after a claim on a shared device: snapshot" in printed[-1]


def test_waiting_gangs_are_planned_only_after_a_change_that_may_help() -> None:
    useless, useful, planned = gang_waking.measure(nodes=8, gangs=2, members=9, changes=2)
    assert (useless.plans, useful.plans, planned.plans) == (0, 0, 2)


def test_each_request_is_followed_through_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(call_paths.measure(show=True))
    printed = capsys.readouterr().out.splitlines()
    counts = [int(line.split()[-6]) for line in printed[2:] if line and not line.startswith((" ", "+", "20"))]
    assert len(counts) == 10
    assert all(counts)


def test_serving_a_fleet_of_four(capsys: pytest.CaptureFixture[str]) -> None:
    """The processes of `make bench`, with a few calls of each kind: pods fit where they should, are bound, and the
    console tells of it."""

    def launch(args: Sequence[str], stdout: int) -> Started:
        return start(*args[1:], module=args[0], stdout=stdout)

    found = serving.one_size(4, "uniform", 0, Effort(warm_up=1, calls=2, rounds=1, binds=2), launch)
    serving.show(found)
    assert found["passed"] == {"one": 4, "four": 4, "never": 0}
    assert found["bound"] == 2
    assert found["visible_ms"] is not None
    assert "explanation of a known shape" in capsys.readouterr().out
