"""Products that other jobs need: a pod without a wish leaves them to these jobs."""

from __future__ import annotations

import pytest

from extender.cache.fleet_baseline import ProductDemand, ProductSelectors, ProductStock
from extender.sandbox import carried_machines
from tests.worlds.running_berth import Berthing, berthing, claim, pod

L40S, A6000, T4, B200 = "l40s-8-pix", "rtx-a6000-4-bridged", "t4-4", "hgx-b200-8-degraded"
BY_NAME = "device.attributes['gpu.nvidia.com'].productName.contains('L40S')"
BY_MEMORY = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('46Gi')) < 0"
ANY = "device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA')"


async def learn(b: Berthing, selector: str, number: int = 40, prefix: str = "old", **exactly: str) -> None:
    """Show Berth allocated claims for two GPUs."""
    names = [f"{prefix}-{i}" for i in range(number)]
    await b.create(*(claim(name, 2, selector, **exactly) for name in names))
    for name in names:
        found = b.cluster.store["resourceclaims", ("default", name)]
        found["status"] = {"allocation": {"devices": {"results": []}}}
        b.cluster.store.put("resourceclaims", ("default", name), found)
    await b.settled()


async def chosen(b: Berthing, name: str, selector: str = "") -> tuple[str, str]:
    """(node that filter prefers, explain's sentence about its value) of a pod for two GPUs."""
    await b.create(claim(name, 2, selector), pod(name, name))
    node = (await b.filter(name))["NodeNames"][0]
    best = (await b.client.get(f"/v1/explain/default/{name}")).json()["best"][0]
    assert best["node"] == node, "filter and explain have one order"
    return node, next(part["sentence"] for part in best["parts"] if part["name"] == "value")


@pytest.mark.parametrize(
    ("selector", "number", "node"),
    [
        ("", 40, L40S),
        (ANY, 40, L40S),
        (BY_NAME, 31, L40S),  # too few claims for an estimate
        (BY_NAME, 40, A6000),
        (BY_MEMORY, 40, A6000),
        (f"{BY_NAME} && 1 / 0 == 1", 40, L40S),  # no answer
        ("this is no CEL", 40, L40S),
        (BY_NAME + " || false" * 200, 40, L40S),  # too long to be tried
    ],
)
async def test_a_pod_without_a_wish_leaves_a_product_to_the_jobs_that_need_it(
    selector: str, number: int, node: str
) -> None:
    async with berthing({L40S: L40S, A6000: A6000}) as b:
        await learn(b, selector, number)
        found, sentence = await chosen(b, "p")
        assert (found, "need" in sentence) == (node, False)


async def test_a_device_class_names_products_too() -> None:
    async with berthing({L40S: L40S, A6000: A6000}) as b:
        b.cluster.apply(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "l40s"},
                "spec": {"selectors": [{"cel": {"expression": BY_NAME}}]},
            }
        )
        await learn(b, "", deviceClassName="l40s")
        assert (await chosen(b, "p"))[0] == A6000


async def test_explain_says_that_other_jobs_need_the_product() -> None:
    async with berthing({L40S: L40S, A6000: A6000}) as b:
        await learn(b, BY_NAME)
        node, sentence = await chosen(b, "p", BY_NAME)
        assert node == L40S
        assert sentence.endswith(": other jobs need this product")


async def test_a_much_cheaper_product_comes_first_though_jobs_name_it() -> None:
    async with berthing({L40S: L40S, B200: B200}) as b:
        await learn(b, BY_NAME)
        assert (await chosen(b, "p"))[0] == L40S


@pytest.mark.parametrize(("named", "node"), [(36, A6000), (10, T4)])
async def test_a_cheap_product_is_kept_for_the_jobs_that_name_most_of_it(named: int, node: str) -> None:
    """Other jobs can use both products. Where few jobs name the cheap one, enough is left for them anyway."""
    async with berthing({T4: T4, A6000: A6000}) as b:
        await learn(b, BY_NAME.replace("L40S", "T4"), named, prefix="named")
        await learn(b, "", 40 - named)
        for _ in range(2):  # each tries the selectors of one new request
            b.app.service.cache.snapshot()
        assert (await chosen(b, "p"))[0] == node


async def test_the_demand_follows_the_fleet() -> None:
    """Where all nodes have the product, a job that names it takes it from no one."""
    async with berthing({L40S: L40S}) as b:
        await learn(b, BY_NAME)
        assert "need" not in (await chosen(b, "before"))[1]
        b.cluster.add_node(A6000, carried_machines()[A6000])
        await b.settled()
        assert (await chosen(b, "after"))[0] == A6000


def test_an_update_tries_one_new_wish() -> None:
    """A tenant's selectors may be costly, and no deadline covers a snapshot."""
    demand, asked = ProductDemand(), {ProductSelectors("gpu", (f"{number} == 0",)): 1 for number in range(3)}
    partial = []
    for _ in range(3):
        demand.update(asked, ProductStock(), {})
        partial.append(demand.is_partial)
    assert partial == [True, True, False]
