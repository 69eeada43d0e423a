"""GET /v1/fleet?since=CURSOR: a page gets what has changed since its last reply."""

from __future__ import annotations

from typing import Any

import pytest

from extender.sandbox import carried_machines
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback


async def asked(b: Berthing, cursor: str = "") -> dict[str, Any]:
    reply = await b.client.get("/v1/fleet", params={"since": cursor})
    assert reply.status_code == 200
    return reply.json()


async def test_a_page_gets_what_has_changed_since_its_last_reply() -> None:
    async with berthing({"n": "t4-4", "gone": "t4-4"}) as b:
        first = await asked(b)
        assert first["whole"]
        assert [row["name"] for row in first["nodes"]] == ["gone", "n"]
        quiet = await asked(b, first["cursor"])
        assert (quiet["whole"], quiet["nodes"], quiet["gone"], quiet["decisions"]) == (False, [], [], [])
        b.cluster.add_node("later", carried_machines()["t4-4"])
        b.cluster.api.registry.delete(RESOURCES["", "nodes"], ("", "gone"))
        await b.settled()
        changed = await asked(b, first["cursor"])
        assert [row["name"] for row in changed["nodes"]] == ["later"]
        assert changed["gone"] == ["gone"]
        later = await asked(b, changed["cursor"])
        assert (later["nodes"], later["gone"]) == ([], [])


async def test_a_decision_and_a_waiting_pod_are_in_one_reply_alone() -> None:
    async with berthing({"n": "t4-4"}) as b:
        first = await asked(b)
        await b.create(claim("c0"), pod("p0", "c0"))
        assert not await b.bind("p0", "n")
        cursor = first["cursor"]

        async def decided() -> bool:
            nonlocal cursor
            reply = await asked(b, cursor)
            cursor = reply["cursor"]
            return [one["pod"] for one in reply["decisions"]] == ["default/p0"]

        await eventually(decided)
        assert (await asked(b, cursor))["decisions"] == []


OTHERS = ["", "x", "00000000-1-1-1-1", "-", "1" * 5000, "{epoch}-1-1-1", "{epoch}-1-x-1-1", "{epoch}-9999999-1-1-1"]


@pytest.mark.parametrize("cursor", OTHERS)
async def test_a_cursor_that_this_process_did_not_give_gets_the_whole_fleet(cursor: str) -> None:
    async with berthing({"n": "t4-4"}) as b:
        own = (await asked(b))["cursor"]
        found = await asked(b, cursor.format(epoch=own.split("-")[0]))
        assert found["whole"]
        assert [row["name"] for row in found["nodes"]] == ["n"]
