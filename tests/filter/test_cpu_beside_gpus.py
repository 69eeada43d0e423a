"""Of equal nodes, a pod gets the one where the free GPUs keep the CPU that other pods will need beside them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback
TWO = {"n1": "t4-4", "n2": "t4-4"}  # nodes with 128 cores and 4 GPUs: 24 cores of a node serve one free GPU
MARK = "berth.dev/cpu"


def asking(name: str, cpu: str = "", *claims: str) -> dict[str, Any]:
    containers = [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu} if cpu else {}}}]
    return pod(name, *(claims or (name,)), containers=containers)


async def place(b: Berthing, name: str, cpu: str = "", node: str = "") -> str:
    """Bind a new pod with one GPU and so much CPU to this node, or to the one that filter puts first."""
    await b.create(claim(name), asking(name, cpu))
    node = node or (await b.filter(name))["NodeNames"][0]
    assert not await b.bind(name, node)
    await b.settled()
    return node


async def one_gpu_in_use(b: Berthing, cpu: str, node: str) -> None:
    """On each of the two nodes, a pod with one GPU; that on this node has so much CPU."""
    for number, name in enumerate(TWO):
        await place(b, f"first-{number}", cpu if name == node else "", name)


@pytest.mark.parametrize(
    ("used", "on", "asked", "node", "words"),
    [
        ("", "n1", "40", "n1", ""),
        ("16", "n1", "16", "n1", ""),
        ("64", "n1", "40", "n2", ""),
        ("64500m", "n1", "39500m", "n2", ""),
        ("64", "n2", "", "n2", "0.32 GPUs without CPU get used"),
        ("120", "n2", "4", "n2", "0.80 GPUs without CPU get used"),
    ],
)
async def test_a_pod_leaves_cpu_beside_free_gpus(used: str, on: str, asked: str, node: str, words: str) -> None:
    async with berthing(TWO) as b:
        await one_gpu_in_use(b, used, on)
        assert await place(b, "p", asked) == node
        text = b.pod("p")["metadata"]["annotations"]["berth.dev/decision"]
        assert words in text if words else "CPU" not in text


async def test_explain_says_which_node_would_lose_gpus() -> None:
    async with berthing(TWO) as b:
        await one_gpu_in_use(b, "64", "n1")
        await b.create(claim("p"), asking("p", "40"))
        found = (await b.client.get("/v1/explain/default/p")).json()["best"]
        words = {one["node"]: str(one["parts"]) for one in found}
        assert list(words) == ["n2", "n1"]
        assert "0.64 GPUs lose the CPU beside them" in words["n1"]
        assert "CPU" not in words["n2"]
        assert (await b.filter("p"))["NodeNames"] == list(words)
        assert (await b.prioritize("p", list(words)))["n2"] == 10


async def test_one_claim_of_a_pod_says_its_cpu() -> None:
    async with berthing(TWO) as b:
        await place(b, "plain")
        await b.create(claim("one"), claim("two"), asking("p", "2500m", "one", "two"))
        assert not await b.bind("p", (await b.filter("p"))["NodeNames"][0])
        notes = {one["metadata"]["name"]: one["metadata"]["annotations"] for one in b.claims()}
        assert {name: one.get(MARK) for name, one in notes.items()} == {"plain": None, "one": "2500m", "two": None}


@pytest.mark.parametrize(
    ("text", "node"), [("64000m", "n2"), ("999999999m", "n1"), ("9" * 10 + "m", "n1"), ("-64000m", "n1"), ("64", "n1")]
)
async def test_what_tenants_write_on_a_claim_is_a_bounded_number_or_nothing(text: str, node: str) -> None:
    async with berthing(TWO) as b:
        await one_gpu_in_use(b, "", "n1")
        one = next(one for one in b.claims() if one["metadata"]["name"] == "first-0")
        one["metadata"]["annotations"][MARK] = text
        b.cluster.store.put("resourceclaims", ("default", "first-0"), one)
        await b.settled()
        assert await place(b, "p", "40") == node


async def test_cpu_counts_until_the_claim_ends() -> None:
    async with berthing(TWO) as b:
        await one_gpu_in_use(b, "64", "n1")
        assert b.app.service.cache.snapshot().claimed_cpu == {"n1": 64_000}
        b.cluster.store.remove("pods", ("default", "first-0"))
        b.cluster.store.remove("resourceclaims", ("default", "first-0"))
        await b.settled()
        assert not b.app.service.cache.snapshot().claimed_cpu
