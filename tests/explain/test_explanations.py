"""What explain says is true: cases as data, and small worlds at random."""

from __future__ import annotations

import random
import re
from itertools import chain, combinations
from pathlib import Path

import pytest
import yaml

from extender.allocation import Features
from extender.api.fields import Json
from extender.api.pods import decode_pod
from extender.api.reasons import FREEABLE_CODES, Code
from extender.cel.dra import Dialect
from extender.cli.allocate_command import answers_of
from extender.cli.cluster_objects import dump_of
from extender.lint import CheckedManifests, check_devices
from extender.policy import Policy
from extender.scheduling import Evaluator
from extender.serve.evaluations import Evaluations
from extender.serve.filter import FilterService
from tests.worlds.explain_worlds import asking, explained, objects_of_world
from tests.worlds.lint_worlds import problems_beside
from tests.worlds.oracle import asking_objects, cluster_objects, random_world, varied
from tests.worlds.running_berth import pod

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "explanations.yaml").read_text(encoding="utf-8"))


def texts(found: Json) -> str:
    causes = [line for one in found["unschedulable"] for line in (one["reason"], *one["causes"])]
    return "\n".join([found["sentence"], *found["misses"], *causes])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: Json) -> None:
    objects = objects_of_world(case["devices"], case.get("held", {}), case.get("nodes", 1))
    found = texts(explained(objects, asking(*case["requests"], constraints=case.get("constraints", ()))))
    assert [part for part in case["says"] if part not in found] == [], found
    assert [part for part in case.get("never", ()) if part in found] == [], found


@pytest.mark.parametrize("case", [case for case in CASES if "lint" in case], ids=lambda case: case["name"])
def test_lint_finds_the_mistakes_that_no_wait_removes(case: Json, tmp_path: Path) -> None:
    asked = asking(*case["requests"], constraints=case.get("constraints", ()))
    objects = objects_of_world(case["devices"], case.get("held", {}), case.get("nodes", 1))
    found = [
        one
        for one in problems_beside(asked, objects, tmp_path)
        if "even with all devices free" in one or "lacks" in one
    ]
    assert bool(found) == case["lint"]


def test_the_end_of_the_pod_itself_is_no_advice() -> None:
    """The pod has a device by a claim that is allocated, and needs one more."""
    objects = objects_of_world([{"name": "g0"}, {"name": "g1"}], {"own": ["g0"], "other": ["g1"]})
    asked = asking({})
    asked[-1]["spec"]["resourceClaims"].append({"name": "own", "resourceClaimName": "own"})
    found = texts(explained(objects, asked))
    assert "fits on n1 if g1, held by pod default/other, were free" in found
    assert "default/own" not in found


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_lint_checks_claims_that_no_pod_of_the_files_uses(kind: str, tmp_path: Path) -> None:
    objects = objects_of_world([{"name": "g0", "capacity": {"mem": {"value": "8Gi"}}}])
    (claim, _) = asking({"capacity": {"requests": {"memory": "1Gi"}}})
    spec = claim["spec"] if kind == "ResourceClaim" else {"spec": claim["spec"]}
    (found,) = problems_beside([{**claim, "kind": kind, "spec": spec}], objects, tmp_path)
    assert "a device has no capacity memory, but mem" in found


@pytest.mark.parametrize(
    ("resource", "fits"),
    [
        ("nvidia.com/gpus", False),
        ("deviceclass.resource.kubernetes.io/absent.example.com", False),
        ("deviceclass.resource.kubernetes.io/gpu.example.com", True),
        ("x.dev/plugin", True),
        ("cpu", True),
    ],
)
def test_a_resource_that_nobody_provides_fits_nowhere(resource: str, fits: bool, tmp_path: Path) -> None:
    objects = objects_of_world([{"name": "g0"}])
    objects.append({**objects[-1], "metadata": {"name": "n2"}, "status": {"allocatable": {"x.dev/plugin": "1"}}})
    limits = {"limits": {resource: "1"}}
    asked = [pod("want", containers=[{"name": "main", "image": "pause", "resources": limits}])]
    found = explained(objects, asked)
    problem = f"no node and no DeviceClass of the snapshot provides {resource}"
    assert (problem not in problems_beside(asked, objects, tmp_path)) == fits
    wanted = f"pod default/want fits nowhere: no node and no DeviceClass provides {resource}"
    assert (found["sentence"] != wanted) == fits, found


@pytest.mark.parametrize(
    ("kind", "value", "term", "remedies"),
    [
        ("attributes", {"string": "a"}, '== "a"', ['orValue("")', "in"]),
        ("attributes", {"int": 3}, ">= 2", ["orValue(0)", "in"]),
        ("attributes", {"bool": True}, "", ["orValue(false)", "in"]),
        ("attributes", {"version": "2.0.0"}, '.isGreaterThan(semver("1.0.0"))', ['orValue(semver("0.0.0"))', "in"]),
        ("capacity", {"value": "8Gi"}, '.isGreaterThan(quantity("4Gi"))', ['orValue(quantity("0"))', "in"]),
    ],
)
def test_the_remedy_for_a_missing_attribute_helps(kind: str, value: Json, term: str, remedies: list[str]) -> None:
    objects = objects_of_world([{"name": "g0"}, {"name": "g1", kind: {"x": value}}])
    of = f'device.{kind}["gpu.example.com"]'

    def answer(expression: str) -> Json:
        return explained(objects, asking({"selectors": [{"cel": {"expression": expression}}]}))

    before = answer(f"{of}.x{term}")
    assert before["outcome"] == "refused"
    ways = {"in": (f'check "x" in {of} first', f'"x" in {of} && {of}.x{term}')}
    for remedy in remedies:
        advice, used = ways.get(remedy, (f"write {of}.?x.{remedy}", f"{of}.?x.{remedy}{term}"))
        assert advice in texts(before)
        assert answer(used)["outcome"] == "fits", used


def freed(found: Json) -> list[list[str]]:
    """The claims that each near miss by release names, as pods."""
    misses = [miss for miss in found["misses"] if miss.startswith("fits on") and "and more," not in miss]
    return [re.findall(r"held by pod (default/held-\d+)", miss) for miss in misses]


def share_a_claim(objects: list[Json], asked: list[Json], rng: random.Random) -> list[str]:
    """The pod shares a claim of whole devices that another pod uses. The names of such claims."""
    found = [
        one
        for one in objects
        if one["kind"] == "ResourceClaim"
        and not any("shareID" in r or "adminAccess" in r for r in one["status"]["allocation"]["devices"]["results"])
    ]
    if not found or rng.random() < 0.6:
        return []
    shared = rng.choice(found)
    results = shared["status"]["allocation"]["devices"]["results"]
    node = {"p": "n", "q": "m"}[results[0]["pool"]]
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    shared["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [only]}
    request = {"name": "r", "exactly": {"deviceClassName": "any", "count": len(results)}}
    shared["spec"] = {"devices": {"requests": [request]}}
    asked[-1]["spec"]["resourceClaims"].append({"name": "sh", "resourceClaimName": shared["metadata"]["name"]})
    return [shared["metadata"]["name"]]


def emptied(objects: list[Json], shared: list[str]) -> list[Json]:
    """The cluster after all other pods have ended: only the shared claim is left, without devices."""
    claims = [one for one in objects if one["kind"] == "ResourceClaim" and one["metadata"]["name"] in shared]
    left = [{name: value for name, value in one.items() if name != "status"} for one in claims]
    return [*(one for one in objects if one["kind"] != "ResourceClaim"), *left]


def check_world(seed: int) -> None:
    """What explain says about one random world is true, and `berth allocate` answers alike."""
    rng = random.Random(seed)
    world = varied(random_world(rng), rng)
    objects, asked = cluster_objects(world, rng), asking_objects(world)
    shared = share_a_claim(objects, asked, rng)
    found, where = explained(objects, asked), f"seed {seed}: {world}"
    fits = found["outcome"] == "fits"
    offline = answers_of([("", one) for one in [*objects, *asked]], "preferred", None)
    assert any(one["allocations"] is not None for one in offline) == fits, (where, offline, texts(found))
    service = FilterService(
        dump_of([*objects, *asked]), Policy(), Evaluator(Features()), Evaluations(lambda: 0.0), lambda: 0.0
    )
    wanted = {**asked[-1], "metadata": {**asked[-1]["metadata"], "uid": "uid-want"}}
    served = service.filter(decode_pod(wanted), [one["metadata"]["name"] for one in objects if one["kind"] == "Node"])
    assert not served.error, where
    assert (served.passed != []) == fits, (where, served, texts(found))
    if fits:
        return
    assert found["outcome"] == "refused", where
    empty = explained(emptied(objects, shared), asked)["outcome"] == "fits"
    codes = {Code[one["code"]] for one in found["unschedulable"]}
    fails = Code.INVALID in codes  # a selector fails on a device; the search reaches it if those before are busy
    if not fails and not codes & (FREEABLE_CODES | {Code.ELSEWHERE}):
        assert not empty, (where, texts(found))
    if any("freeing devices does not help" in miss for miss in found["misses"]):
        assert not empty, (where, texts(found))
    if not shared and not fails:  # nothing is held in the world of lint
        files = CheckedManifests([("", one) for one in asked], [], set())
        supply = [("", one) for one in objects if one["kind"] in ("DeviceClass", "ResourceSlice")]
        cluster = dump_of(one for one in objects if one["kind"] not in ("Pod", "ResourceClaim")).snapshot()
        checks = check_devices(files, supply, Dialect(), cluster, knows_nodes=True)
        lint = [one.problem for one in checks if one.severity != "note"]
        assert empty or lint, (where, texts(found))
        assert not (empty and any("even with all devices free" in one for one in lint)), where
    advice = freed(found)
    assert set(served.failed.values()) == {one["reason"] for one in found["unschedulable"]}, where
    assert fails or bool(advice) == empty, (where, texts(found))
    for pods in advice:
        assert explained(objects, asked, pods)["outcome"] == "fits", (where, pods, texts(found))
        for part in chain.from_iterable(combinations(pods, count) for count in range(1, len(pods))):
            assert explained(objects, asked, part)["outcome"] != "fits", (where, pods, part)


@pytest.mark.parametrize("block", range(8))
def test_what_explain_says_of_a_random_world_is_true(block: int) -> None:
    for number in range(25):
        check_world(block * 1_000_000 + number)
