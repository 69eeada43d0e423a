"""What a pod of a PodGroup below CompositePodGroups belongs to: cases as data, and in every order of events."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.api.pod_groups import GroupSource, Membership
from extender.cache import ClusterCache
from extender.runtime.informers import watched_resources
from tests.worlds.group_trees import composite, pod_group
from tests.worlds.running_berth import Json, pod

CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "group_trees.yaml").read_text()
)


def group(name: str, kind: str, parent: str, minimum: int, level: str = "") -> Json:
    return pod_group(name, parent, minimum, level) if kind == "PodGroup" else composite(name, minimum, parent, level)


class Watches:
    """A cache that gets objects as the watches show them."""

    def __init__(self) -> None:
        self.cache = ClusterCache()
        self._apply = {kind.name: kind.apply for kind in watched_resources(self.cache)}

    def show(self, objects: Iterable[Json]) -> None:
        for obj in objects:
            self._apply[f"{obj['kind'].lower()}s"](f"default/{obj['metadata']['name']}", obj)

    def hide(self, obj: Json) -> None:
        self._apply[f"{obj['kind'].lower()}s"](f"default/{obj['metadata']['name']}", None)

    def membership(self, name: str) -> Membership:
        (found,) = (one for one in self.cache.store.pods.values() if one.key.name == name)
        assert found.membership is not None
        assert found.membership.problem or self.cache.store.members[found.membership.key][found.uid] == found
        return found.membership


def member(name: str, of: str, notes: dict[str, str] | None = None) -> Json:
    made = pod(name, schedulingGroup={"podGroupName": of}, annotations=notes or {})
    return {**made, "metadata": {**made["metadata"], "uid": f"u-{name}", "namespace": "default"}}


@pytest.mark.parametrize("title", CASES)
def test_the_gang_of_a_pod(title: str) -> None:
    case = CASES[title]
    watches = Watches()
    watches.show(group(name, *facts) for name, facts in case["groups"].items())
    watches.show([member("p", case["pod"], case.get("notes"))])
    found = watches.membership("p")
    assert (found.key.name, found.problem, found.lacks) == (
        case["gang"],
        case.get("problem", ""),
        case.get("lacks", ""),
    )
    if found.problem or found.lacks:
        return
    asked, is_alone = found.subgroups, case["gang"] == case["pod"]
    assert found.key.source is (GroupSource.CORE if is_alone else GroupSource.COMPOSITE)
    assert found.minimum == (0 if is_alone else case["minimum"])
    assert asked.name == case.get("subgroup", "")
    if "around" in case:
        assert [[one.name, one.level.name if one.level is not None else None] for one in asked.around] == case["around"]
    assert dict(asked.minimums) == case.get("minimums", {})


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_events_does_not_matter(seed: int) -> None:
    """Groups and pods come in any order, and one group goes and comes again."""
    rng = random.Random(seed)
    names = [f"c{i}" for i in range(4)]
    objects = [composite(name, rng.randint(0, 2), rng.choice(["", *names]), "rack") for name in names]
    objects += [pod_group(f"g{i}", rng.choice(["", *names]), rng.randint(0, 3)) for i in range(5)]
    objects += [member(f"p{i}", f"g{i}") for i in range(5)]
    straight = Watches()
    straight.show(objects)
    rng.shuffle(objects)
    shuffled = Watches()
    shuffled.show(objects)
    again = rng.choice([one for one in objects if one["kind"] != "Pod"])
    shuffled.hide(again)
    shuffled.show([again])
    for i in range(5):
        assert shuffled.membership(f"p{i}") == straight.membership(f"p{i}")


def test_a_tree_that_is_too_large_is_an_error_while_it_is() -> None:
    watches = Watches()
    groups = [pod_group(f"g{i}", "root", 1) for i in range(256)]
    watches.show([composite("root", 1), *groups[:255], member("first", "g0"), member("last", "g255")])
    assert watches.membership("first").key.name == "root"
    watches.show(groups[255:])
    text = "the tree of CompositePodGroup root has more than 256 groups"
    assert [watches.membership(name).problem for name in ("first", "last")] == [text, text]
    watches.hide(groups[7])
    assert [watches.membership(name).problem for name in ("first", "last")] == ["", ""]
