"""The tree of parts of a gang, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from extender.api.group_parts import BoundPart
from extender.api.pods import Pod, decode_pod
from extender.scheduling import (
    BoundMember,
    GangPart,
    lacking_subgroup,
    needed_members,
    parts_of,
    parts_problem,
)
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE

LEVELS = (CLIQUE, RACK, SPINE)


def pods(names: str, labels: Mapping[str, str] | None = None, **notes: str) -> list[Pod]:
    """Pods of the group `job`; keywords are annotations, with '_' for '-'."""
    annotations = {f"berth.dev/{key.replace('_', '-')}": value for key, value in notes.items()}
    found = []
    for name in names.split():
        own = {"berth.dev/group": "job", **annotations}
        metadata = {"name": name, "namespace": "default", "uid": name, "annotations": own, "labels": dict(labels or {})}
        found.append(decode_pod({"metadata": metadata, "spec": {}}))
    return found


def tree(parts: Sequence[GangPart]) -> list[object]:
    """Name, level and members of each part, and the tree below it."""
    return [
        [part.name, part.level, " ".join(part.members), *([tree(part.parts)] if part.parts else [])] for part in parts
    ]


def sliced(names: str, **notes: str) -> list[Pod]:
    return pods(names, None, group_slice_size="2", group_slice_level="rack", **notes)


def test_slices_have_neighbouring_indices() -> None:
    assert tree(parts_of(sliced("w-0 w-1 w-2 w-3"), (), LEVELS)) == [
        ["slice 0", RACK, "w-0 w-1"],
        ["slice 1", RACK, "w-2 w-3"],
    ]


def test_slices_in_slices() -> None:
    every = pods("w-0 w-1 w-2 w-3 w-4 w-5 w-6 w-7", group_slice_size="4,2", group_slice_level="rack,node")
    assert tree(parts_of(every, (), LEVELS)) == [
        ["slice 0", RACK, "w-0 w-1 w-2 w-3", [["slice 0.0", "node", "w-0 w-1"], ["slice 0.1", "node", "w-2 w-3"]]],
        ["slice 1", RACK, "w-4 w-5 w-6 w-7", [["slice 1.0", "node", "w-4 w-5"], ["slice 1.1", "node", "w-6 w-7"]]],
    ]


def test_a_leader_without_slices_is_in_none() -> None:
    found = parts_of([*pods("w-0"), *sliced("w-1 w-2 w-3 w-4")], (), LEVELS)
    assert tree(found) == [["slice 0", RACK, "w-1 w-2"], ["slice 1", RACK, "w-3 w-4"]]


def test_sub_groups_with_slices_of_their_own() -> None:
    leader = pods("l-0", subgroup="leader", subgroup_required="node")
    workers = sliced("w-0 w-1 w-2 w-3", subgroup="workers", subgroup_required="spine")
    others = pods("x-0 x-1", subgroup="others")
    assert tree(parts_of([*leader, *workers, *others], (), LEVELS)) == [
        ["sub-group leader", "node", "l-0"],
        [
            "sub-group workers",
            SPINE,
            "w-0 w-1 w-2 w-3",
            [
                ["slice 0 of sub-group workers", RACK, "w-0 w-1"],
                ["slice 1 of sub-group workers", RACK, "w-2 w-3"],
            ],
        ],
    ]


def test_the_jobs_of_a_replicated_job_are_cut_in_their_order() -> None:
    """Pod 0 and 1 of job 1 come before pod 0 and 1 of job 2; jobs of other replicated jobs are between them."""
    every = []
    for job in (3, 1):
        for index in (1, 0):
            labels = {
                "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                "jobset.sigs.k8s.io/job-global-index": str(job),
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            every += pods(f"js-{job}-{index}-x", labels, group_slice_size="2", group_slice_level="rack")
    every.sort(key=lambda pod: pod.membership.rank or 0 if pod.membership else 0)
    assert tree(parts_of(every, (), LEVELS)) == [
        ["slice 0 of sub-group workers", RACK, "js-1-0-x js-1-1-x"],
        ["slice 1 of sub-group workers", RACK, "js-3-0-x js-3-1-x"],
    ]


def bound(*ranks: int, subgroup: str = "") -> list[BoundMember]:
    """Bound members of these indices, each on a node of its own."""
    return [BoundMember(BoundPart(subgroup, rank), f"n{rank}") for rank in ranks]


def test_a_new_pod_returns_to_its_slice() -> None:
    (part,) = parts_of(sliced("w-3"), bound(0, 1, 2), LEVELS)
    assert (part.name, part.members, dict(part.placed)) == ("slice 1", ("w-3",), {"n2": 1})


def test_a_pod_keeps_its_slice_while_another_one_does_not_exist() -> None:
    """Pod w-1 does not exist yet: by position, w-4 would be in the slice of w-2 and w-3."""
    (part,) = parts_of(sliced("w-4"), bound(0, 2, 3, 5), LEVELS)
    assert (part.members, dict(part.placed)) == (("w-4",), {"n5": 1})


def test_two_pods_with_one_index_are_in_one_slice_or_the_next() -> None:
    found = parts_of(sliced("w-2 v-2 w-3"), bound(0, 1), LEVELS)
    assert sorted(uid for part in found for uid in part.members) == ["v-2", "w-2", "w-3"]


PROBLEMS = {
    "slices that do not divide the pods": (
        sliced("w-0 w-1 w-2"),
        3,
        "pod annotation berth.dev/group-slice-size: 2 does not divide the 3 pods of group job",
    ),
    "a slice larger than the group": (
        pods("w-0 w-1", group_slice_size="4", group_slice_level="rack"),
        2,
        "pod annotation berth.dev/group-slice-size: 4 does not divide the 2 pods of group job",
    ),
    "slices that do not divide a sub-group": (
        [*pods("l-0"), *sliced("w-0 w-1 w-2", subgroup="workers")],
        4,
        "pod annotation berth.dev/group-slice-size: 2 does not divide the 3 pods of sub-group workers of group job",
    ),
    "a leader is not counted": ([*pods("l-0"), *sliced("w-0 w-1")], 3, ""),
    "pods beyond the minimum": (sliced("w-0 w-1 w-2"), 2, ""),
    "a level that does not exist": (
        pods("w-0 w-1", group_slice_size="2", group_slice_level="row"),
        2,
        f"pod annotation berth.dev/group-slice-level: 'row' is no level: write node or {CLIQUE} or {RACK} or {SPINE}",
    ),
    "a level of a sub-group that does not exist": (
        pods("w-0 w-1", subgroup="a", subgroup_required="row"),
        2,
        f"pod annotation berth.dev/subgroup-required: 'row' is no level: write node or {CLIQUE} or {RACK} or {SPINE}",
    ),
    "different slices": (
        [*sliced("w-0 w-1"), *pods("w-2 w-3", group_slice_size="2", group_slice_level="node")],
        4,
        (
            "the pods of group job disagree about their slices: "
            "default/w-0 has 2 pods in one rack, default/w-2 has 2 pods in one node"
        ),
    ),
    "different levels of a sub-group": (
        [*pods("w-0", subgroup="a", subgroup_required="rack"), *pods("w-1", subgroup="a")],
        2,
        (
            "the pods of sub-group a of group job disagree about their required level: "
            "default/w-0 has rack, default/w-1 has none"
        ),
    ),
    "minimums of sub-groups above that of the group": (
        [*pods("v-0 v-1", subgroup="a", subgroup_min="2"), *pods("w-0 w-1", subgroup="b", subgroup_min="2")],
        3,
        (
            "the minimums of the sub-groups of group job (berth.dev/subgroup-min) are 4 pods together, "
            "and its own minimum is 3"
        ),
    ),
}


@pytest.mark.parametrize("title", PROBLEMS)
def test_what_is_wrong_with_parts(title: str) -> None:
    members, minimum, problem = PROBLEMS[title]
    assert parts_problem("job", members, (), minimum, LEVELS) == problem


def test_the_minimum_of_each_sub_group() -> None:
    servers, workers = pods("v-0", subgroup="ps", subgroup_min="2"), pods("w-0 w-1 w-2", subgroup="w", subgroup_min="2")
    assert lacking_subgroup([*servers, *workers], (), 0) == ("ps", 2)
    assert lacking_subgroup([*servers, *workers], (), 1) is None, "a bound pod without devices may be the second server"
    running = bound(7, subgroup="ps")
    assert lacking_subgroup([*servers, *workers], running, 0) is None
    assert needed_members([*servers, *workers], running) == {"v-0", "w-0", "w-1"}
