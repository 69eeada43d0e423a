"""Explanations of pods and gangs whose claim is allocated for other pods, and of gangs whose members differ."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import pytest

from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.cli.cluster_objects import dump_of
from extender.cli.explain_command import _offline, _offline_explainer, _scenario
from tests.worlds.explain_worlds import explained
from tests.worlds.filled_caches import device_slice
from tests.worlds.running_berth import pod
from tests.worlds.shared_claim_worlds import DRIVERS, claim, fleet, held


@pytest.mark.parametrize("consumers", [("oth",), ()])
def test_the_end_of_the_pods_of_a_shared_claim_helps(consumers: tuple[str, ...]) -> None:
    objects = [*fleet({"n1": "g0 k0", "n2": "k0"}), held("sh", "n2", "k0", *consumers)]
    asked = [claim("own", "g"), pod("want", "own", "sh")]
    found = explained(objects, asked)
    holder = "pod default/oth" if consumers else "claim default/sh"
    assert f"fits on n1 if k0, held by {holder}, were free" in found["sentence"]
    if consumers:
        assert explained(objects, asked, ["default/oth"])["outcome"] == "fits"


def test_of_shared_claims_only_those_in_the_way_are_named() -> None:
    """The GPU of n1 is in use, too; the claim `near` can stay there."""
    objects = [
        *fleet({"n1": "g0 k0 k1", "n2": "k0"}),
        held("sh", "n2", "k0", "oth"),
        held("near", "n1", "k0", "oth"),
        held("busy", "n1", "g0", "job"),
    ]
    asked = [claim("own", "g"), pod("want", "own", "sh", "near")]
    found = explained(objects, asked)
    assert "fits on n1 if k0, held by pod default/oth; g0, held by pod default/job, were free" in found["sentence"]
    assert explained(objects, asked, ["default/job"])["outcome"] == "refused"


def test_a_shared_claim_that_could_never_move_is_no_advice() -> None:
    objects = [*fleet({"n1": "g0", "n2": "k0"}), held("sh", "n2", "k0", "oth")]
    found = explained(objects, [claim("own", "g"), pod("want", "own", "sh")])
    assert not any("were free" in miss for miss in found["misses"])
    assert any("freeing devices does not help" in miss for miss in found["misses"])


def gang(*claims: str, pods: int = 2) -> list[Json]:
    """Pods, each with a GPU of its own and these shared claims."""
    return [one for number in range(pods) for one in member(number, "g", claims, pods)]


def member(number: int, asks: str, shared: tuple[str, ...], minimum: int = 2) -> list[Json]:
    """A pod of the group gx and its own claim, which asks for a device of each letter."""
    notes = {"berth.dev/group": "gx", "berth.dev/group-min": str(minimum)}
    found = pod(f"gx{number}", *shared, f"own{number}", annotations=notes)
    found["metadata"]["uid"] = f"uid-gx{number}"
    return [claim(f"own{number}", *asks), found]


def explained_group(objects: list[Json], free: tuple[str, ...] = ()) -> Json:
    cache = dump_of(objects)
    scenario = _scenario(cache, {"without": [], "free": list(free)})
    (found,) = _offline_explainer(cache).groups(ObjectKey("default", "gx"), scenario, seconds=inf)
    return found


@pytest.mark.parametrize("consumers", [("oth",), ()])
def test_the_end_of_the_pods_of_a_shared_claim_helps_a_gang(consumers: tuple[str, ...]) -> None:
    objects = [*fleet({"t1": "g0 g1 g2 k0", "t2": "g0 k0"}), held("sh", "t2", "k0", *consumers), *gang("sh")]
    found = explained_group(objects)
    named = "default/oth" if consumers else "claim default/sh"
    assert [one["sentence"] for one in found["misses"]] == [f"fits on node t1 without {named} (1 device on t2)"]
    assert "does not fit in this fleet" not in found["sentence"]
    assert found["room_if_empty"] == 2
    if consumers:
        assert explained_group(objects, ("default/oth",))["outcome"] == "fits"


def test_a_gang_waits_for_reservations_of_a_shared_claim() -> None:
    """The claim gets room when one of its pods ends: no user has to edit the claim."""
    users = [f"u{number}" for number in range(255)]
    rest = [*fleet({"t1": "g0 g1 k0"}), *gang("sh")]
    found = explained_group([*rest, held("sh", "t1", "k0", *users)])
    assert found["outcome"] == "waiting"
    text = "claim default/sh has 1 of 256 reservations left, too few for group gx"
    assert found["sentence"] == f"group default/gx waits: {text}"
    assert explained_group([*rest, held("sh", "t1", "k0", *users[1:])])["outcome"] == "fits"


@pytest.mark.parametrize(("pods", "outcome"), [(256, "waiting"), (257, "blocked")])
def test_a_gang_with_more_members_than_a_claim_has_reservations_is_blocked(pods: int, outcome: str) -> None:
    found = explained_group([*fleet({"t1": "g0 k0"}), held("sh", "t1", "k0", "other"), *gang("sh", pods=pods)])
    assert found["outcome"] == outcome
    assert "claim default/sh has 255 of 256 reservations left, too few for group gx" in found["sentence"]


def test_a_gang_needs_the_end_of_the_pods_of_a_shared_claim_and_of_others() -> None:
    objects = [
        *fleet({"t1": "g0 g1 k0 k1", "t2": "g0 k0"}),
        held("sh", "t2", "k0", "oth"),
        held("near", "t1", "k0", "oth2"),
        held("busy", "t1", "g0", "job"),
        *gang("sh", "near"),
    ]
    (miss,) = explained_group(objects)["misses"]
    assert {pod for holder in miss["holders"] for pod in holder["pods"]} == {"default/oth", "default/job"}
    assert explained_group(objects, ("default/oth", "default/job"))["outcome"] == "fits"


def test_a_gang_does_not_fit_if_its_shared_claim_could_not_move() -> None:
    objects = [*fleet({"t1": "g0 g1 g2", "t2": "g0 k0"}), held("sh", "t2", "k0", "oth"), *gang("sh")]
    found = explained_group(objects)
    assert "group default/gx does not fit in this fleet" in found["sentence"]
    assert found["misses"] == []


def test_the_end_of_the_pods_of_a_shared_claim_helps_beside_the_end_of_others_on_its_node() -> None:
    """Two pods hold the claim that pins the gang. If they end, the gang fits on the node without pods."""
    objects = fleet({"n1": "g0 g1 g2", "n2": "g0 g1 g2"})
    objects += [held("sh", "n2", "g0", "oth", "oth2"), held("a", "n2", "g1", "a"), held("b", "n2", "g2", "b")]
    found = explained_group([*objects, *gang("sh")])
    assert [one["sentence"] for one in found["misses"]] == [
        "fits on node n1 without default/oth, default/oth2 (1 device on n2)",
        "fits on node n2 without default/a (1 device on n2) and default/b (1 device on n2)",
    ]
    assert explained_group([*objects, *gang("sh")], ("default/oth", "default/oth2"))["outcome"] == "fits"


def test_the_room_of_a_gang_is_that_of_the_members_that_no_shared_claim_pins() -> None:
    objects = fleet({"n1": "g0 g1", "n2": "g0 g1"})
    objects += [held("sh", "n1", "g0", "oth"), held("a", "n1", "g1", "a")]
    pinned, loose = (member(number, "g", shared) for number, shared in enumerate((("sh",), ())))
    found = explained_group([*objects, *pinned, *loose])
    assert "the most room is now on node n2, for 1" in found["sentence"]


@pytest.mark.parametrize(
    ("nodes", "asks", "room", "advice"),
    [
        ({"n1": "g0 g1 g2 g3"}, ("gg", "g", "k"), 2, ["fits with a minimum of 2 instead of 3 members"]),
        ({"n1": "g0 g1 g2 g3"}, ("k", "g", "g", "g"), 3, []),
        ({"n1": "g0 g1 g2 g3"}, ("g", "g", "k", "gg"), 3, ["fits with a minimum of 2 instead of 4 members"]),
    ],
)
def test_the_room_of_a_gang_is_that_of_the_members_that_fit(
    nodes: dict[str, str], asks: tuple[str, ...], room: int, advice: list[str]
) -> None:
    """No node has what one of the members asks for: the others have room."""
    members = [one for number, wanted in enumerate(asks) for one in member(number, wanted, (), len(asks))]
    found = explained_group([*fleet(nodes), *members])
    assert f"the most room would be on node n1, for {room} of {len(asks)} pods" in found["sentence"]
    assert [one["sentence"] for one in found["misses"]] == advice


def test_the_room_of_a_gang_whose_leader_waits_for_a_device_in_use() -> None:
    objects = [*fleet({"n1": "k0", "n2": "g0 g1 g2 g3"}), held("busy", "n1", "k0", "job")]
    members = [one for number, wanted in enumerate("kggg") for one in member(number, wanted, (), 4)]
    found = explained_group([*objects, *members])
    assert "the most room is now on node n2, for 3" in found["sentence"]


def test_a_shared_claim_with_consumed_capacity_may_end() -> None:
    """Such a claim is not hashable: the explanation failed."""
    shared = held("sh", "n2", "k0", "oth")
    shared["status"]["allocation"]["devices"]["results"][0] |= {"shareID": "s", "consumedCapacity": {"memory": "4Gi"}}
    objects = [*fleet({"n1": "g0 k0", "n2": "k0"}), shared]
    found = explained(objects, [claim("own", "g"), pod("want", "own", "sh")])
    assert "fits on n1 if k0, held by pod default/oth, were free" in found["sentence"]


@pytest.mark.parametrize("are_real", [False, True])
def test_pods_of_a_file_share_a_claim_of_it(are_real: bool) -> None:
    """Claims of a file have no UIDs: each pod was planned with devices of its own for the claim that they share."""
    objects, asked = fleet({"t1": "g0 k0", "t2": "g0 k0"}), [claim("sh", "k"), *gang("sh")]
    if are_real:
        found = explained_group([*objects, *asked])
    else:
        for one in asked:
            one["metadata"].pop("uid", None)
        question = {"objects": asked, "without": [], "free": [], "narrate": ""}
        found = _offline(dump_of(objects), None, None, question)[0]
    assert "group default/gx does not fit in this fleet" in found["sentence"]


NUMA = "resource.kubernetes.io/numaNode"


def place_of(node: str, places: Mapping[str, int]) -> Json:
    devices = [{"name": name, "attributes": {NUMA: {"int": place}}} for name, place in places.items()]
    return device_slice(node, DRIVERS["g"], devices)


def misses_of_two_on_one_place(n1: Mapping[str, int], n2: Mapping[str, int], busy: str = "g0") -> list[str]:
    """The near misses of a pod that wants two GPUs on one NUMA node and has a claim that is allocated on n2."""
    objects = [one for one in fleet({"n1": "", "n2": ""}) if one["kind"] != "ResourceSlice"]
    objects += [place_of("n1", n1), place_of("n2", n2), held("sh", "n2", busy, "oth")]
    asked = claim("own", "g", "g")
    asked["spec"]["devices"]["constraints"] = [{"matchAttribute": NUMA}]
    found = explained(objects, [asked, pod("want", "own", "sh")])
    assert found["outcome"] == "refused"
    misses: list[str] = found["misses"]
    return misses


def test_a_node_that_an_allocated_claim_forbids_is_no_place_without_a_constraint() -> None:
    """On n2 the claim itself has one of the two GPUs."""
    apart = {"g0": 0, "g1": 1}
    assert not any(NUMA in one or "NUMA node" in one for one in misses_of_two_on_one_place(apart, apart))


def test_a_constraint_that_only_a_forbidden_node_meets_is_named() -> None:
    (first, *_) = misses_of_two_on_one_place({"g0": 0, "g1": 0}, {"g0": 0, "g1": 1, "g2": 2})
    assert first == (
        "no node that the pod's allocated claims allow has 2 matching GPUs on one NUMA node; without the constraint on "
        f"{NUMA} the pod fits on n2, and Berth chooses near devices by itself"
    )
