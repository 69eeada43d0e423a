"""The console's advice which pods to restart: over HTTP, and on the page in headless Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from extender.console import questions
from tests.worlds.browser import CHROMIUM, NAMES, browsing
from tests.worlds.explain_worlds import refused
from tests.worlds.running_berth import Berthing, berthing, claim, pod

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}


@asynccontextmanager
async def fragmented() -> AsyncIterator[Berthing]:
    """Two nodes of 8 GPUs. `web` has 1 of n1 and may be restarted, `bare` has 2 of n2; `late` waits for 8."""
    async with berthing({"n1": "hgx-h100-8", "n2": "hgx-h100-8"}) as b:
        for name, count, node in (("web", 1, "n1"), ("bare", 2, "n2")):
            made: dict[str, Any] = pod(name, name)
            made["metadata"]["ownerReferences"] = [OWNER] if name == "web" else []
            await b.create(claim(name, count), made)
            assert node in (await b.filter(name, [node]))["NodeNames"]
            assert await b.bind(name, node) == ""
        await b.create(claim("late", 8), pod("late", "late"))
        await b.settled()
        yield b


async def test_the_advice_is_that_of_the_command() -> None:
    async with fragmented() as b:
        reply = await b.client.get("/v1/restarts/default/late")
        assert reply.status_code == 200, reply.text
        (found,) = reply.json()["advice"]
        assert found["sentence"] == "pod default/late: there is room after 1 restart, cost 1 GPU-hours"
        assert [(move["restart"], move["goes_to"]) for move in found["moves"]] == [("pod default/web", ["n2"])]
        assert found["proof"].startswith("proved: the filter and the binds of berth serve, on 2 nodes, placed")
        assert "kubectl -n default delete pod web" in found["commands"]
        assert list(found["stays"].values()) == [["default/bare"]]
        assert "PodDisruptionBudgets could not be listed" in reply.json()["not_known"][0]


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("default/web", 400, "pod default/web: is bound to node n1: berth defrag is for pods that wait"),
        ("default/nobody", 400, "pod default/nobody: was not found among the pods that wait for devices"),
        ("group/default/nobody", 400, "group default/nobody: has no waiting pod"),
    ],
)
async def test_a_question_that_is_none(path: str, status: int, text: str) -> None:
    async with fragmented() as b:
        reply = await b.client.get(f"/v1/restarts/{path}")
        assert (reply.status_code, reply.json()["error"]) == (status, text)


async def test_a_group_for_which_no_restart_makes_room() -> None:
    notes = {"berth.dev/group": "w", "berth.dev/group-min": "2"}
    async with fragmented() as b:
        for name in ("w-0", "w-1"):
            await b.create(claim(name, 8), pod(name, name, annotations=notes))
        await b.settled()
        (found,) = (await b.client.get("/v1/restarts/group/default/w")).json()["advice"]
    assert found["sentence"] == (
        "group default/w: there is no room even if all pods that may be restarted end: "
        "one of the pods alone has room, but not so many together"
    )
    assert (found["moves"], found["commands"]) == ([], [])


async def test_a_search_that_takes_too_long_ends() -> None:
    with patch.object(questions, "_SEARCH_SECONDS", 0.0):
        async with fragmented() as b:
            (found,) = (await b.client.get("/v1/restarts/default/late")).json()["advice"]
    assert found["verdict"] == "gave-up"
    assert "the search gave up" in found["sentence"]


@pytest.mark.skipif(not CHROMIUM, reason=f"install Chromium: PATH has no {', '.join(NAMES)}")
async def test_the_page_shows_the_advice(tmp_path: Path) -> None:
    async with fragmented() as b, browsing(str(b.client.base_url)) as page:
        await page.until("document.getElementById('link').textContent === 'live'")
        await refused(b, "late", "0/2 nodes are available: 2 in use.")
        await page.run("openPod('default/late')")
        await page.until("document.querySelector('#detail-body button.search') !== null")
        assert "berth defrag pod late -n default" in await page.run("document.getElementById('detail-body').innerText")
        await page.run("document.querySelector('#detail-body button.search').click()")
        await page.until("document.querySelector('.restarts').innerText.includes('proved: ')")
        text = await page.run("document.querySelector('.restarts').innerText")
        assert "there is room after 1 restart, cost 1 GPU-hours" in text
        assert "pod default/web\tReplicaSet web\tn1: gpu-0\t1\tn2" in text
        assert "kubectl taint nodes n1 berth.dev/defrag=:NoSchedule\n" in text
        assert "kubectl -n default delete pod web\n" in text
        assert "never restarted, because no controller owns them, so nothing creates them again: 1 pod" in text
        await page.picture(tmp_path / "restarts.png")
        assert await page.run("document.getElementById('detail').scrollWidth <= innerWidth")
        assert page.errors == []
