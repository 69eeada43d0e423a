"""An explanation begins with the nodes that could serve the pod, and what it advises helps when it is done."""

from __future__ import annotations

import re

import pytest

from extender.cli.explain_command import _first_fit
from extender.console import ComparedSets
from extender.console.decision_history import GpuSet
from tests.worlds.commands import berth_beside
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import decided, run_pod, why
from tests.worlds.running_berth import Berthing, berthing, claim

DRIVER = "gpu.nvidia.com"
V100 = f"device.attributes['{DRIVER}'].productName.startsWith('Tesla V100')"
FLEET = {"v1": "dgx1-v100", "v2": "dgx1-v100", "h1": "hgx-h100-8", **{f"t{i}": "t4-4" for i in range(5)}}


async def shown(b: Berthing, *words: str) -> str:
    return (await berth_beside(["explain", *words, "--server", str(b.client.base_url).rstrip("/")]))[1]


async def test_nodes_that_could_serve_come_first_and_others_are_counted() -> None:
    """Two of eight nodes have the product: that they are in use is what the user has to know."""
    async with berthing(FLEET) as b:
        for name in ("a", "b"):
            await run_pod(b, name, [claim(name, 8, V100)])
        assert await run_pod(b, "waits", [claim("waits", 4, V100)]) == ""
        sentence = (await why(b, "waits"))["sentence"]
        assert sentence.startswith(
            "pod default/waits fits nowhere: "
            "matching devices are in use for request gpu on both Tesla V100-SXM2-16GB nodes; fits on v1 if "
        )
        assert sentence.endswith("; no device matches request gpu on 6 others")
        await run_pod(b, "wide", [claim("wide", 9, V100)])
        sentence = (await why(b, "wide"))["sentence"]
        assert "too few devices match request gpu on both Tesla V100-SXM2-16GB nodes; " in sentence


async def test_what_would_help_helps_when_it_is_done() -> None:
    async with berthing({"v1": "dgx1-v100", "t1": "t4-4"}) as b:
        await run_pod(b, "holder", [claim("holder", 6, V100)])
        await run_pod(b, "waits", [claim("waits", 4, V100)])
        assert "held by pod default/holder, were free" in (await why(b, "waits"))["misses"][0]
        assert (await why(b, "waits", free="default/holder"))["outcome"] == "fits"


TERMS = {
    f"device.attributes['{DRIVER}'].productName == 'V100'": " == 'Tesla V100-SXM2-16GB'",
    f"device.attributes['{DRIVER}'].productName.startsWith('V100')": " == 'Tesla V100-SXM2-16GB'",
    f"device.attributes['{DRIVER}'].productName in ['V100', 'A100']": " == 'Tesla V100-SXM2-16GB'",
    f"device.capacity['{DRIVER}'].memory.compareTo(quantity('32Gi')) >= 0": '.compareTo(quantity("15.7Gi")) >= 0',
    f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('32Gi'))": '.compareTo(quantity("15.7Gi")) >= 0',
}


@pytest.mark.parametrize("term", TERMS)
async def test_the_expression_to_copy_matches(term: str) -> None:
    async with berthing({"v1": "dgx1-v100"}) as b:
        await run_pod(b, "p", [claim("p", 1, f"device.driver == '{DRIVER}' && {term}")])
        found = await why(b, "p")
        (failing,) = found["failing"]
        assert f"`{term}` matches none of 8 devices; 8 have " in failing
        copied = re.search("`([^`]*)` matches 8$", failing)
        assert copied is not None, failing
        assert copied[1].endswith(TERMS[term])
        assert await run_pod(b, "q", [claim("q", 1, copied[1])]) == "v1"
        lines = [line.strip() for line in (await shown(b, "default/p")).splitlines()]
        assert f"fails  {failing}" in lines
        assert any(line.startswith("passes ") and "matches 8 of 8" in line for line in lines)


async def test_an_expression_that_too_few_devices_of_a_node_match_is_not_proposed() -> None:
    """A pod that needs five A100s was told to select a product of which the node has four."""
    term = f"device.attributes['{DRIVER}'].productName == 'T4'"
    async with berthing({"v1": "dgx1-v100", "t1": "t4-4", "t2": "t4-4"}) as b:
        for count in (4, 5):
            await run_pod(b, f"p{count}", [claim(f"p{count}", count, term)])
            (failing,) = (await why(b, f"p{count}"))["failing"]
            assert "8 have 'Tesla T4'" in failing
            assert ("== 'Tesla T4'` matches 8" in failing) == (count == 4)


async def test_only_changes_are_told_as_changes() -> None:
    """That 3 of the T4 nodes have no links was told as 'or:' and under 'What would help'."""
    async with berthing({"t1": "t4-4", "h1": "hgx-h100-8"}) as b:
        term = f"device.attributes['{DRIVER}'].productName.contains('T4')"
        await run_pod(b, "p", [claim("p", 2, term)], {"berth.dev/topology": "required"})
        found = await why(b, "p")
        facts = [
            "freeing devices does not help: it would not fit with all of them free either",
            "no node has 2 free matching GPUs that links join; 2 nodes have 0",
        ]
        assert [found["facts"], set(facts) <= set(found["misses"])] == [facts, True], found
        out = await shown(b, "default/p")
        assert ("or: " in out, "what would help: " in out) == (False, False)
        assert f"  {facts[1]}\n" in out


async def test_a_change_behind_a_fact_is_told_as_one() -> None:
    async with berthing({"v1": "dgx1-v100", "v2": "dgx1-v100"}) as b:
        await run_pod(b, "holder", [claim("holder", 6, V100)])
        await run_pod(b, "other", [claim("other", 6, V100)])
        await run_pod(b, "p", [claim("p", 4)])
        found = await why(b, "p")
        (fact,) = found["facts"]
        assert fact == "no node has 4 free devices for request gpu; 2 nodes have 2"
        lines = [line.strip() for line in (await shown(b, "default/p")).splitlines()]
        assert [line for line in lines if line.startswith("or: ")] == [
            f"or: {miss}" for miss in found["misses"][1:] if miss != fact
        ]
        assert fact in lines


async def test_the_best_bandwidth_is_called_the_best_and_first_fit_is_beside_it() -> None:
    async with berthing({"v1": "dgx1-v100"}) as b:
        await run_pod(b, "p", [claim("p", 4)])
        entry = await decided(b, "p")
        await eventually(lambda: entry.sets, "p is compared")
        out = await shown(b, "default/p")
        assert "; predicted 80 GB/s, the best for this pod (" in out
        assert re.search("\\n  first fit takes (the same GPUs: )?gpu-0, ", out), out


def test_first_fit_is_told_with_its_loss() -> None:
    names = tuple(f"gpu-{i}" for i in range(4))
    good, bad = GpuSet((0, 3), 50.0, is_joined=True), GpuSet((0, 1), 12.0, is_joined=False)
    assert _first_fit(ComparedSets(names, (), good, bad)) == (
        "first fit takes gpu-0, gpu-1, not joined by links: 12 GB/s instead of 50"
    )
    assert _first_fit(ComparedSets(names, (), good, good)) == "first fit takes the same GPUs: gpu-0, gpu-3"
