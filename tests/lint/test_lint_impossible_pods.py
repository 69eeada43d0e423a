"""`berth lint --snapshot` finds the pods that no end of other pods helps, each cause once."""

from __future__ import annotations

from pathlib import Path

from extender.api.fields import Json
from tests.worlds.explain_worlds import asking, objects_of_world
from tests.worlds.lint_worlds import problems_beside
from tests.worlds.running_berth import pod
from tests.worlds.shared_claim_worlds import claim, fleet

IMPOSSIBLE = "fits on no node even with all devices free: "


def linted(asked: list[Json], objects: list[Json], folder: Path) -> list[str]:
    """The findings, without those about containers."""
    return [one for one in problems_beside(asked, objects, folder) if "no container" not in one]


def test_too_few_devices_for_an_extended_resource(tmp_path: Path) -> None:
    objects = objects_of_world([{"name": "g0"}], nodes=2)
    objects[0]["spec"]["extendedResourceName"] = "example.com/gpu"
    limits = {"limits": {"example.com/gpu": "2"}}
    asked = [pod("want", containers=[{"name": "main", "image": "pause", "resources": limits}])]
    (found,) = linted(asked, objects, tmp_path)
    assert found.startswith(f"{IMPOSSIBLE}too few devices match request")


def test_devices_of_two_claims_on_different_nodes(tmp_path: Path) -> None:
    asked = [claim("gpu", "g"), claim("nic", "k"), pod("want", "gpu", "nic")]
    (found,) = linted(asked, fleet({"n1": "g0", "n2": "k0", "n3": ""}), tmp_path)
    assert found == f"{IMPOSSIBLE}no device matches request g0 on 1 node, no device matches request k0 on 1 node"
    assert linted(asked, fleet({"n1": "g0 k0", "n2": "k0", "n3": "", "n4": ""}), tmp_path) == []


def test_two_claims_that_want_more_than_a_node_has(tmp_path: Path) -> None:
    asked = [claim("a", "g", "g"), claim("b", "g", "g"), pod("want", "a", "b")]
    (found,) = linted(asked, fleet({"n1": "g0 g1 g2", "n2": "", "n3": "k0"}), tmp_path)
    assert found.startswith(IMPOSSIBLE)


def test_one_cause_is_told_once(tmp_path: Path) -> None:
    (found,) = linted(asking({"count": 2}), objects_of_world([{"name": "g0"}]), tmp_path)
    assert found == f"{IMPOSSIBLE}too few devices match request r"


def test_cordons_and_selectors_of_nodes_are_no_mistakes_about_devices(tmp_path: Path) -> None:
    objects: list[Json] = objects_of_world([{"name": "g0"}])
    objects[-1]["spec"] = {"unschedulable": True}
    assert linted(asking({}), objects, tmp_path) == []


CONSUMES = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]


def test_devices_that_consume_counters_that_no_slice_has(tmp_path: Path) -> None:
    objects = objects_of_world([{"name": "g0", "consumesCounters": CONSUMES}])
    (found,) = linted(objects, objects, tmp_path)
    assert "counter set s" in found
    objects[1]["spec"]["pool"]["resourceSliceCount"] = 2
    assert linted(objects, objects, tmp_path) == [], "another slice may have them"


def test_a_cluster_without_dra_is_a_note(tmp_path: Path) -> None:
    limits = {"limits": {"nvidia.com/gpus": "1"}}
    asked = [pod("want", containers=[{"name": "main", "image": "pause", "resources": limits}])]
    found = linted(asked, [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}], tmp_path)
    assert "the cluster has no DeviceClass and no ResourceSlice" in found
    assert "no node and no DeviceClass of the snapshot provides nvidia.com/gpus" in found
