"""Levels by name: what a gang asks for, and what that means with a policy."""

from __future__ import annotations

from typing import Any

import pytest

from extender.api.group_topology import AskedTopology, GroupTopology, Level, group_topology
from tests.worlds.gang_pods import member, planned, reasons
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE
from tests.worlds.running_berth import berthing

LEVELS = (CLIQUE, RACK, SPINE)
OWN, KUEUE = "berth.dev/group-required", "kueue.x-k8s.io/podset-required-topology"
HOST = "kubernetes.io/hostname"
UNKNOWN = f"is no level: write node or {CLIQUE} or {RACK} or {SPINE}"


def meaning(
    required: str = "", preferred: str = "", nearness: str = "", group: str = "", annotation: str = OWN
) -> GroupTopology:
    levels = [Level(annotation, name) if name else None for name in (required, preferred)]
    return group_topology(AskedTopology(nearness, *levels), group, LEVELS)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, GroupTopology("preferred")),
        ({"nearness": "required"}, GroupTopology("required")),
        ({"nearness": "none"}, GroupTopology("none")),
        ({"required": "rack"}, GroupTopology("preferred", RACK)),
        ({"required": RACK}, GroupTopology("preferred", RACK)),
        ({"required": "clique"}, GroupTopology("preferred", CLIQUE)),
        ({"required": "gpu.clique"}, GroupTopology("preferred", CLIQUE)),
        ({"required": "node"}, GroupTopology("node")),
        ({"required": "kubernetes.io/hostname"}, GroupTopology("node")),
        ({"required": "rack", "preferred": "clique"}, GroupTopology("preferred", RACK, CLIQUE)),
        ({"preferred": "node"}, GroupTopology("preferred", "", "node")),
        ({"required": "rack", "nearness": "none"}, GroupTopology("none", RACK)),
        ({"required": "rack", "nearness": "required"}, GroupTopology("preferred", RACK)),
        ({"preferred": "rack", "nearness": "none"}, GroupTopology("preferred", "", RACK)),
        ({"required": "rack", "group": SPINE}, GroupTopology("preferred", RACK)),
        ({"required": "rack", "group": CLIQUE}, GroupTopology("preferred", CLIQUE)),
        ({"required": "node", "group": "zone"}, GroupTopology("node", "zone")),
        ({"nearness": "required", "group": "zone"}, GroupTopology("required", "zone")),
        ({"nearness": "required", "preferred": "rack", "group": "zone"}, GroupTopology("preferred", "zone", RACK)),
        ({"required": "rack", "group": HOST}, GroupTopology("preferred", HOST)),
        ({"required": "example.com/block", "annotation": KUEUE}, GroupTopology("preferred", "example.com/block")),
        ({"required": "block", "annotation": KUEUE}, GroupTopology("preferred", "block")),
        ({"required": "rack", "annotation": KUEUE}, GroupTopology("preferred", "rack")),
        ({"required": RACK, "annotation": KUEUE}, GroupTopology("preferred", RACK)),
    ],
)
def test_the_meaning_of_what_a_gang_asks_for(asked: dict[str, Any], found: GroupTopology) -> None:
    assert meaning(**asked) == found


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"required": "row"}, f"pod annotation {OWN}: 'row' {UNKNOWN}"),
        ({"preferred": "example.com/row"}, f"pod annotation {OWN}: 'example.com/row' {UNKNOWN}"),
        (
            {"required": "rack", "group": "zone"},
            (
                f"pod annotation {OWN}: 'rack' cannot be combined with the PodGroup's constraint to zone: "
                "zone is no label of group_levels"
            ),
        ),
    ],
)
def test_a_level_that_does_not_exist(asked: dict[str, Any], problem: str) -> None:
    assert meaning(**asked).problem == problem


def test_a_name_that_several_levels_have() -> None:
    asked = AskedTopology(required=Level(OWN, "rack"))
    problem = group_topology(asked, "", ("a.com/rack", "b.com/rack")).problem
    assert problem == f"pod annotation {OWN}: 'rack' names several levels: a.com/rack, b.com/rack"


# -- over HTTP -----------------------------------------------------------------------------------------------------


@pytest.mark.loopback
async def test_members_that_ask_for_different_levels_are_named() -> None:
    async with berthing({"n0": "a100-pcie-8-bridged", "n1": "a100-pcie-8-bridged"}) as b:
        member(b, "p0", minimum=2, required="node")
        member(b, "p1", minimum=2, required="rack")
        await b.settled()
        (text,) = await reasons(b, "p1")
        why = "default/p0 has node, default/p1 has rack"
        assert text == f"the pods of group job disagree about their required level: {why}"


@pytest.mark.loopback
async def test_a_level_that_does_not_exist_is_named_by_filter_and_explain() -> None:
    async with berthing({"n0": "a100-pcie-8-bridged", "n1": "a100-pcie-8-bridged"}) as b:
        for name in ("p0", "p1"):
            member(b, name, minimum=2, required="row")
        await b.settled()
        problem = f"pod annotation {OWN}: 'row' {UNKNOWN}"
        assert await reasons(b, "p0") == {problem}
        found = (await b.client.get("/v1/explain/group/default/job")).text
        assert f"group default/job is rejected: {problem}" in found


ACROSS = "fits without the constraint to one node, across the cluster"


@pytest.mark.loopback
async def test_one_node_or_nothing() -> None:
    async with berthing({"n0": "a100-pcie-8-bridged", "n1": "a100-pcie-8-bridged"}) as b:
        for i in range(2):
            member(b, f"p{i}", minimum=2, gpus=4, required="node")
            member(b, f"q{i}", group="other", minimum=2, required="node")
        await b.settled()
        assert await reasons(b, "q0") == {"no domain has room for all pods of group other together"}
        (found,) = (await b.client.get("/v1/explain/group/default/other")).json()
        assert found["topology"] == "node"
        assert [one["sentence"] for one in found["misses"]] == [ACROSS]
        assert len(set((await planned(b, "p0", "p1")).values())) == 1
