"""Explanations of gangs with slices and sub-groups."""

from __future__ import annotations

from typing import Any

from extender.explain.gang_question import ExplainedSubGroup
from tests.worlds.explained_gangs import explained, members
from tests.worlds.gang_worlds import CLIQUE, RACK, GangWorld

SLICES: dict[str, Any] = {"slice-size": "2", "slice-level": "rack"}


def racks(layout: str, busy: str = "") -> GangWorld:
    """Racks by "name:nodes", with nodes of 8 GPUs such as a0. The nodes `busy` have none free."""
    world = GangWorld()
    for part in layout.split():
        rack, _, number = part.partition(":")
        for i in range(int(number)):
            name = f"{rack}{i}"
            world.add_node(name, "a100-pcie-8-bridged", {RACK: rack, CLIQUE: rack}, 8 if name in busy.split() else 0)
    return world


def test_each_slice_has_its_domain() -> None:
    world = racks("a:2 b:2")
    members(world, 4, **SLICES)
    found = explained(world)
    assert found.outcome == "fits"
    assert found.parts == (ExplainedSubGroup("slice 0", 2, RACK, "a", 2), ExplainedSubGroup("slice 1", 2, RACK, "b", 2))


def test_a_slice_that_has_no_room_now_is_named() -> None:
    world = racks("a:2 b:2", busy="a0 b0")
    members(world, 4, **SLICES)
    found = explained(world)
    assert found.outcome == "refused"
    assert f"slice 0 needs 2 pods in one domain of {RACK}: now the most room is in a, for 1" in found.sentence
    assert found.parts[0] == ExplainedSubGroup("slice 0", 2, RACK, "a", 1)


def test_a_slice_larger_than_its_level_ever_is() -> None:
    world = racks("a:2 b:2", busy="a0")
    members(world, 4, **{**SLICES, "slice-size": "4"})
    found = explained(world)
    assert "does not fit in this fleet" in found.sentence
    assert f"slice 0 needs 4 pods in one domain of {RACK}: even then the most room is in a, for 2" in found.sentence


def test_a_gang_that_fits_without_its_slices() -> None:
    world = racks("a:3 b:1")
    members(world, 4, **SLICES)
    found = explained(world)
    assert found.misses[0].sentence == "fits without its slices and sub-groups, across the cluster"


def test_slices_in_slices_name_the_smaller_one() -> None:
    world = racks("a:2 b:2")
    members(world, 4, **{**SLICES, "slice-size": "4,2", "slice-level": "rack,node"})
    said = explained(world).sentence
    assert "slice 0.0 needs 2 pods in one node: even then the most room is in a0, for 1" in said
    assert "none has room" not in said


def test_only_a_minimum_of_whole_slices_is_advised() -> None:
    """Three racks of 3 nodes have room for 8 pods, but a minimum of 8 is no multiple of 3."""
    world = racks("a:3 b:3 c:2")
    members(world, 9, **{**SLICES, "slice-size": "3"})
    said = [one.sentence for one in explained(world).misses]
    assert any("fits with a minimum of 6 instead of 9 members" in one for one in said), said
