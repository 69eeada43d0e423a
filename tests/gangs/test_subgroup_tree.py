"""The tree of sub-groups of a gang, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from extender.api.asked_subgroups import SubGroupIndex
from extender.api.pods import Pod, decode_pod
from extender.scheduling.subgroup_tree import (
    BoundMember,
    SubGroup,
    lacking_subgroup,
    needed_members,
    subgroups_of,
    subgroups_problem,
)
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld

LEVELS = (CLIQUE, RACK, SPINE)
NO_NODES = GangWorld().cache.snapshot()


def pods(
    names: str, labels: Mapping[str, str] | None = None, others: Mapping[str, str] | None = None, **notes: str
) -> list[Pod]:
    """Pods of the group `job`; keywords and `others` are annotations, those of Berth with '_' for '-'."""
    annotations = {f"berth.dev/{key.replace('_', '-')}": value for key, value in notes.items()} | dict(others or {})
    found = []
    for name in names.split():
        own = {"berth.dev/group": "job", **annotations}
        metadata = {"name": name, "namespace": "default", "uid": name, "annotations": own, "labels": dict(labels or {})}
        found.append(decode_pod({"metadata": metadata, "spec": {}}))
    return found


def tree(subgroups: Sequence[SubGroup]) -> list[object]:
    """Name, level and members of each sub-group, and the tree below it."""
    return [
        [one.name, one.level, " ".join(one.members), *([tree(one.inner)] if one.inner else [])] for one in subgroups
    ]


def sliced(names: str, **notes: str) -> list[Pod]:
    return pods(names, None, None, group_slice_size="2", group_slice_level="rack", **notes)


def lws(indices: Sequence[int], size: int) -> list[Pod]:
    """Workers of a LeaderWorkerSet of `size` pods with the leader, in slices of 2."""
    notes = {"leaderworkerset.sigs.k8s.io/size": str(size)}
    found = []
    for index in indices:
        labels = {"leaderworkerset.sigs.k8s.io/worker-index": str(index)}
        found += pods(f"v-{index}", labels, notes, group_slice_size="2", group_slice_level="rack")
    return found


def test_the_workers_of_a_leader_that_is_in_no_slice_count_from_one() -> None:
    """Whichever of them exist: 6 workers and the leader are 7 pods, which slices of 2 do not divide."""
    assert [one.members for one in subgroups_of(lws([1, 2, 4], 7), (), LEVELS, NO_NODES)] == [
        ("v-1", "v-2"),
        ("v-4",),
    ]
    (one,) = subgroups_of(lws([6], 7), bound(1, 3, 4, 5), LEVELS, NO_NODES)
    assert dict(one.placed) == {"n5": 1}
    assert subgroups_problem("job", lws([1, 2, 3, 4, 5, 6], 7), (), 7, LEVELS) == ""


def test_sub_groups_with_slices_of_their_own() -> None:
    leader = pods("l-0", subgroup="leader", subgroup_required="node")
    workers = sliced("w-0 w-1 w-2 w-3", subgroup="workers", subgroup_required="spine")
    others = pods("x-0 x-1", subgroup="others")
    assert tree(subgroups_of([*leader, *workers, *others], (), LEVELS, NO_NODES)) == [
        ["sub-group leader", "node", "l-0"],
        [
            "sub-group workers",
            SPINE,
            "w-0 w-1 w-2 w-3",
            [["slice 0 of sub-group workers", RACK, "w-0 w-1"], ["slice 1 of sub-group workers", RACK, "w-2 w-3"]],
        ],
    ]


def test_the_jobs_of_a_replicated_job_are_cut_in_their_order() -> None:
    """Pod 0 and 1 of job 1 come before pod 0 and 1 of job 2; job 0 is of another replicated job."""
    every = []
    for job in (2, 1):
        for index in (1, 0):
            labels = {
                "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                "jobset.sigs.k8s.io/job-global-index": str(job),
                "jobset.sigs.k8s.io/job-index": str(job - 1),
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            every += pods(f"js-{job}-{index}-x", labels, group_slice_size="2", group_slice_level="rack")
    every.sort(key=lambda pod: pod.membership.rank or 0 if pod.membership else 0)
    assert tree(subgroups_of(every, (), LEVELS, NO_NODES)) == [
        ["slice 0 of sub-group workers", RACK, "js-1-0-x js-1-1-x"],
        ["slice 1 of sub-group workers", RACK, "js-2-0-x js-2-1-x"],
    ]


def bound(*ranks: int, subgroup: str = "") -> list[BoundMember]:
    """Bound members of these indices, each on a node of its own."""
    return [BoundMember(SubGroupIndex(subgroup, rank, True), f"n{rank}") for rank in ranks]


def jobs(*pods_of_job: int, size: int) -> list[Pod]:
    """The pods of the Jobs of a replicated job."""
    found = []
    for job, number in enumerate(pods_of_job):
        for index in range(number):
            labels = {
                "jobset.sigs.k8s.io/replicatedjob-name": "w",
                "jobset.sigs.k8s.io/job-global-index": str(job + 5),
                "jobset.sigs.k8s.io/job-index": str(job),
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            found += pods(f"w-{job}-{index}", labels, group_slice_size=str(size), group_slice_level="rack")
    return found


W0, W1 = "slice 0 of sub-group w: ", "slice 1 of sub-group w: "
TREES = {
    "neighbouring indices": (sliced("w-0 w-1 w-2 w-3"), (), ["slice 0: w-0 w-1", "slice 1: w-2 w-3"]),
    "a leader without slices": (
        [*pods("leader"), *sliced("w-0 w-1 w-2 w-3")], (), ["slice 0: w-0 w-1", "slice 1: w-2 w-3"],
    ),
    "a leader of a LeaderWorkerSet": (lws([0, 1, 2, 3], 4), (), ["slice 0: v-0 v-1", "slice 1: v-2 v-3"]),
    "a position is no index": (
        sliced("w-0 w-2 w-3 w-5"), (), ["slice 0: w-0", "slice 1: w-2 w-3", "slice 2: w-5"],
    ),
    "a new pod returns to its slice": (sliced("w-3"), (0, 1, 2), ["slice 1: w-3 beside n2"]),
    "pod w-1 does not exist yet": (sliced("w-4"), (0, 2, 3, 5), ["slice 2: w-4 beside n5"]),
    "the old pod of the index terminates": (sliced("w-3"), (2, 3), ["slice 1: w-3 beside n2 n3"]),
    "parts of a Job": (
        jobs(4, 4, size=2), (), [f"{W0}w-0-0 w-0-1", f"{W1}w-0-2 w-0-3", "w-1-0 w-1-1", "w-1-2 w-1-3"],
    ),
    "no Job is split beside others": (jobs(3, 2, size=2), (), ["w-0-0 w-0-1", "w-0-2", "w-1-0 w-1-1"]),
    "whole Jobs": (jobs(2, 2, 2, 2, size=4), (), ["w-0-0 w-0-1 w-1-0 w-1-1", "w-2-0 w-2-1 w-3-0 w-3-1"]),
    "Jobs without pods": (jobs(0, 0, 2, 1, size=4), (), ["w-2-0 w-2-1 w-3-0"]),
}  # fmt: skip


@pytest.mark.parametrize("title", TREES)
def test_the_slices_of_pods_with_an_index(title: str) -> None:
    members, running, expected = TREES[title]
    found = []
    for one in subgroups_of(members, bound(*running), LEVELS, NO_NODES):
        beside = f" beside {' '.join(sorted(one.placed))}" if one.placed else ""
        found.append(f"{one.name}: {' '.join(one.members)}{beside}")
    assert [text.endswith(end) for text, end in zip(found, expected, strict=True)] == [True] * len(expected), found


def test_slices_in_slices() -> None:
    every = pods("w-0 w-1 w-2 w-3 w-4 w-5 w-6 w-7", group_slice_size="4,2", group_slice_level="rack,node")
    assert tree(subgroups_of(every, (), LEVELS, NO_NODES)) == [
        ["slice 0", RACK, "w-0 w-1 w-2 w-3", [["slice 0.0", "node", "w-0 w-1"], ["slice 0.1", "node", "w-2 w-3"]]],
        ["slice 1", RACK, "w-4 w-5 w-6 w-7", [["slice 1.0", "node", "w-4 w-5"], ["slice 1.1", "node", "w-6 w-7"]]],
    ]


def test_pods_without_an_index_fill_the_slices_that_run() -> None:
    """Racks a and b lack a pod of a slice each, rack c none. A new pod takes the place in a, the next one that in b."""
    world = GangWorld()
    for name in ("a0", "a1", "a2", "b0", "c0", "c1"):
        world.add_node(name, labels={RACK: name[0]})
    running = [BoundMember(SubGroupIndex("", None, True), node) for node in ("a0", "b0", "c0", "a1", "a2", "c1")]
    found = subgroups_of(sliced("job-x job-y job-z job-v"), running, LEVELS, world.cache.snapshot())
    assert [(one.members, dict(one.placed)) for one in found] == [
        (("job-x",), {"a2": 1}),
        (("job-y",), {"b0": 1}),
        (("job-z", "job-v"), {}),
    ]


def test_slices_in_slices_of_pods_without_an_index() -> None:
    """Slices of 4 in a rack, in slices of 2 on a node. One pod lacks on a0; b has half a slice."""
    world = GangWorld()
    for name in ("a0", "a1", "b0"):
        world.add_node(name, labels={RACK: name[0]})
    running = [BoundMember(SubGroupIndex("", None, True), node) for node in ("a0", "a1", "a1", "b0", "b0")]
    new = pods("job-x job-y job-z", group_slice_size="4,2", group_slice_level="rack,node")
    first, second = subgroups_of(new, running, LEVELS, world.cache.snapshot())
    assert (first.members, dict(first.placed)) == (("job-x",), {"a0": 1, "a1": 2})
    assert [(one.members, dict(one.placed)) for one in first.inner] == [(("job-x",), {"a0": 1})]
    assert [(one.members, dict(one.placed)) for one in second.inner] == [(("job-y", "job-z"), {})]


W = "sub-group w"
SIZE = "pod annotation berth.dev/group-slice-size"
NO_LEVEL = f"is no level: write node or {CLIQUE} or {RACK} or {SPINE}"
PROBLEMS = {
    "slices that do not divide the pods": (
        sliced("w-0 w-1 w-2"), 3, f"{SIZE}: 2 does not divide the 3 pods of group job",
    ),
    "a slice larger than the group": (
        pods("w-0 w-1", group_slice_size="4", group_slice_level="rack"), 2,
        f"{SIZE}: 4 does not divide the 2 pods of group job",
    ),
    "slices that do not divide a sub-group": (
        [*pods("l-0"), *sliced("w-0 w-1 w-2", subgroup="workers")], 4,
        f"{SIZE}: 2 does not divide the 3 pods of sub-group workers of group job",
    ),
    "a leader is not counted": ([*pods("l-0"), *sliced("w-0 w-1")], 3, ""),
    "indices that begin with 1": (
        sliced("w-1 w-2 w-3 w-4"), 4,
        f"{SIZE}: slices begin with index 0, but the pods of group job have the indices 1 to 4",
    ),
    "two pods with one index": (
        sliced("v-0 w-0 w-1 v-1"), 4, f"{SIZE}: default/v-0 and default/w-0 of group job have the same index, 0",
    ),
    "a pod without an index": (
        sliced("w-0 w-x"), 2, f"{SIZE}: default/w-x of group job has no index, but default/w-0 has one",
    ),
    "slices that end within a Job": (
        jobs(3, 3, 3, 3, size=4), 12,
        f"{SIZE}: slices of 4 pods are neither parts of a Job of 3 pods of {W} of group job nor several such Jobs",
    ),
    "pods beyond the minimum": (sliced("w-0 w-1 w-2"), 2, ""),
    "a level that does not exist": (
        pods("w-0 w-1", group_slice_size="2", group_slice_level="row"), 2,
        f"pod annotation berth.dev/group-slice-level: 'row' {NO_LEVEL}",
    ),
    "a level of a sub-group that does not exist": (
        pods("w-0 w-1", subgroup="a", subgroup_required="row"), 2,
        f"pod annotation berth.dev/subgroup-required: 'row' {NO_LEVEL}",
    ),
    "different slices": (
        [*sliced("w-0 w-1"), *pods("w-2 w-3", group_slice_size="2", group_slice_level="node")], 4,
        (
            "the pods of group job disagree about their slices: "
            "default/w-0 has 2 pods in one rack, default/w-2 has 2 pods in one node"
        ),
    ),
    "different levels of a sub-group": (
        [*pods("w-0", subgroup="a", subgroup_required="rack"), *pods("w-1", subgroup="a")], 2,
        (
            "the pods of sub-group a of group job disagree about their required level: "
            "default/w-0 has rack, default/w-1 has none"
        ),
    ),
    "minimums of sub-groups above that of the group": (
        [*pods("v-0 v-1", subgroup="a", subgroup_min="2"), *pods("w-0 w-1", subgroup="b", subgroup_min="2")], 3,
        (
            "the minimums of the sub-groups of group job (berth.dev/subgroup-min) are 4 pods together, "
            "and its own minimum is 3"
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", PROBLEMS)
def test_what_is_wrong_with_sub_groups(title: str) -> None:
    members, minimum, problem = PROBLEMS[title]
    assert subgroups_problem("job", members, (), minimum, LEVELS) == problem


def test_the_minimum_of_each_sub_group() -> None:
    servers, workers = pods("v-0", subgroup="ps", subgroup_min="2"), pods("w-0 w-1 w-2", subgroup="w", subgroup_min="2")
    assert lacking_subgroup([*servers, *workers], (), 0) == ("ps", 2)
    assert lacking_subgroup([*servers, *workers], (), 1) is None, "a bound pod without devices may be the second server"
    running = bound(7, subgroup="ps")
    assert lacking_subgroup([*servers, *workers], running, 0) is None
    assert needed_members([*servers, *workers], running) == {"v-0", "w-0", "w-1"}


def test_pods_that_run_without_an_index_are_counted() -> None:
    running = [BoundMember(SubGroupIndex("", None, True), node) for node in ("a0", "a1", "b0")]
    assert subgroups_problem("job", sliced("job-x"), running, 4, LEVELS) == ""
    problem = "pod annotation berth.dev/group-slice-size: 2 does not divide the 3 pods of group job"
    assert subgroups_problem("job", sliced("job-x"), running[:2], 3, LEVELS) == problem


def test_digits_of_a_generated_name_are_no_index() -> None:
    (pod,) = sliced("job-x7t24")
    assert pod.membership is not None
    assert pod.membership.rank == 24
    metadata = {"name": "job-x7t24", "generateName": "job-", "annotations": {"berth.dev/group": "job"}}
    generated = decode_pod({"metadata": {**metadata, "namespace": "default"}, "spec": {}}).membership
    assert generated is not None
    assert generated.rank is None
