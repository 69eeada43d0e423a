"""`berth nodes`, `claims` and `top` against a Berth that serves."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
from typer.main import get_command
from typer.testing import CliRunner

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.cli.main import commands
from extender.console.fleet_overview import FleetSampler
from extender.policy import load_policy
from extender.runtime.informers import CacheRefresh
from tests.worlds.commands import berth_beside
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import decided, refused
from tests.worlds.running_berth import Berthing, berthing, claim, pod

cli = commands()


async def command(b: Berthing, *args: str) -> tuple[int, str]:
    """The exit code of the command, and its output of both streams."""
    code, out, errors = await berth_beside([*args, "--server", str(b.client.base_url).rstrip("/")])
    return code, out + errors


async def test_fleet_commands() -> None:
    async with berthing({"n1": "dgx1-v100", "n2": "t4-4"}) as b:
        for name, count in (("a", 4), ("b", 16)):
            b.cluster.apply(claim(name, count))
            b.cluster.apply(pod(name, name))
        await b.settled()
        node = (await b.filter("a"))["NodeNames"][0]
        assert await b.bind("a", node) == ""
        await b.settled()
        await refused(b, "b", "0/2 nodes are available: 2 too few devices match request gpu.")
        await decided(b, "a")
        code, out = await command(b, "nodes", "n1")
        assert code == 0
        assert "n1" in out
        assert "n2" not in out
        assert "Tesla V100-SXM2-16GB" in out
        code, out = await command(b, "nodes", "--output", "json")
        assert sum(n["gpus"].count("u") for n in orjson.loads(out)) == 4
        code, out = await command(b, "nodes", "nothing")
        assert code == 1
        assert "has nothing in its name" in out
        code, out = await command(b, "claims", "--output", "wide")
        assert "default/a" in out
        assert "berth" in out
        assert "gpu.nvidia.com/" in out
        code, out = await command(b, "top", "--once")
        assert "1 pod waits" in out
        assert "default/b" in out
        assert "too few devices match" in out
        assert re.search(r"(\d\d:\d\d:\d\dZ|\d{4}-\d\d-\d\d) +default/a ", out), "the time, or the day"
        assert "free (f)" not in out, "top shows no letters"
        code, out = await command(b, "explain", "pod", "default/b")
        assert code == 1
        assert "too few devices match request gpu" in out
        assert "no node has 16 free devices" in out
        code, out = await command(b, "explain", "default/a")
        assert code == 0
        assert f"pod default/a was bound to {node}" in out
        code, out = await command(b, "explain", "default/absent")
        assert code == 2
        assert out.endswith("berth: pod default/absent does not exist")


async def test_the_fleet_says_what_the_next_large_job_finds() -> None:
    nodes = {
        "n1": "hgx-h100-8",
        "n2": "hgx-h100-8",
        "n3": "t4-4",
        **{f"tray-{i}": "gb200-nvl72-tray" for i in range(4)},
    }

    def found(b: Berthing) -> list[str]:
        b.console.fleet_sampler.sample()
        return [f"{job['gpus']} x {job['where']}" for job in b.console.overview.fleet()["large_jobs"]]

    async with berthing(nodes) as b:
        h100 = "8 x NVIDIA H100 80GB HBM3 on each of 2 nodes"
        assert found(b) == [h100, "4 x NVIDIA GB200 on each of 4 nodes"], "no label names a clique"
        for i in range(4):
            node = b.cluster.store["nodes", ("", f"tray-{i}")]
            node["metadata"].setdefault("labels", {})["nvidia.com/gpu.clique"] = f"c{i // 3}"
            b.cluster.store.put("nodes", ("", f"tray-{i}"), node)
        await b.settled()
        assert found(b) == ["12 x NVIDIA GB200 on 3 nodes of one clique", h100]
        b.cluster.occupy("tray-0", (1,))
        b.cluster.occupy("n2", (0, 1))
        await b.settled()
        assert found(b) == ["8 x NVIDIA GB200 on 2 nodes of one clique", "8 x NVIDIA H100 80GB HBM3 on one node"]
        b.cluster.occupy("n1", range(8))
        await b.settled()
        assert found(b)[1] == "6 x NVIDIA H100 80GB HBM3 on one node"


async def test_policy_status_names_products_that_no_gpu_has() -> None:
    policy = load_policy("{products: {H100: 9, H10O: 8}, overrides: [{products: {H100: 1, Tesla: 1}}]}")
    async with berthing({"n1": "hgx-h100-8"}, policy) as b:
        b.console.fleet_sampler.sample()
        code, out = await command(b, "policy", "status")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("products")] == [
        "products: no GPU of the fleet has 'H10O' in its product name",
        "products: no GPU of the fleet has 'Tesla' in its product name",
    ]


async def test_the_waiting_pods_of_one_namespace_hide_no_others() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for namespace, number in (("default", 60), ("honest", 1)):
            for i in range(number):
                one = {"metadata": {"name": f"p{i}", "namespace": namespace, "uid": f"{namespace}-{i}"}}
                b.cluster.apply({**pod(f"p{i}", "none"), **one})
        await eventually(lambda: b.console.overview.fleet()["waiting"] == 61)
        shown = [row["pod"] for row in b.console.overview.fleet()["pending"]]
        assert len(shown) == 50
        assert "honest/p0" in shown[:2]


def test_the_trend_has_points_of_the_last_10_hours_also_if_nothing_changed() -> None:
    now, cache = 0.0, ClusterCache(Features())
    sampler = FleetSampler(cache, CacheRefresh(cache).wait, lambda: now)
    for now in range(0, 60_000, 5):  # noqa: B007 - the sampler reads it
        sampler.sample()
    assert {after.at - before.at for before, after in pairwise(sampler.trend)} == {75}
    assert (sampler.trend[-1].at, len(sampler.trend)) == (59_925, 480)


def test_kubectl_finds_it_as_a_plugin() -> None:
    assert 'kubectl-berth = "extender.__main__:main"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_every_command_has_help_with_an_example() -> None:
    known: dict[str, Any] = get_command(cli).commands  # type: ignore[attr-defined] # a group has commands
    for name in known.keys() - {"version"}:
        for words in [[name, under] for under in getattr(known[name], "commands", ())] or [[name]]:
            found = CliRunner().invoke(cli, [*words, "--help"])
            assert (found.exit_code, "Example" in found.output) == (0, True), words
